"""A complete run: from input files to the output and the totals."""

from collections import Counter
from collections.abc import Callable, Iterator

from attrs import frozen

from streamtool.batch.outputs import PARQUET, Checkpoint, LinesOutput, Output, Table
from streamtool.batch.reading import ReadingOptions, Result
from streamtool.batch.sources import Batch, batches, find_files
from streamtool.batch.workers import read_batches
from streamtool.core.errors import SettingsError


@frozen
class BatchRun:
    """A run to execute: its input files, options and output."""

    names: tuple[str, ...]
    """Input files and folders."""
    options: ReadingOptions
    jobs: int = 1
    output: str | None = None
    """Output file. None: standard output."""
    resume: bool = False

    def execute(self, told: Callable[[Result], object]) -> Counter[str]:
        """Execute the run and return the total counts. `told` is called with each result. Raises SettingsError."""
        chosen = find_files(self.names)
        if self.output is not None and self.output in chosen:
            raise SettingsError(f"--output: {self.output} is one of the input files", param="output")
        begun = self._begun()
        counts = Counter(begun.counts)
        with self._opened(begun) as output:
            for result in read_batches(self.options, self._batches(chosen, begun), self.jobs):
                output.write(result)
                counts += result.counts
                told(result)
        return counts

    def _begun(self) -> Checkpoint:
        if not self.resume:
            return Checkpoint()
        if self.output is None or self.output.endswith(PARQUET):
            raise SettingsError("--resume requires --output FILE.jsonl, because only JSONL output can be continued")
        return Checkpoint.read(self.output)

    def _opened(self, begun: Checkpoint) -> Output:
        if self.output is not None and self.output.endswith(PARQUET):
            return Table(self.output)
        return LinesOutput(self.output, begun)

    def _batches(self, names: list[str], begun: Checkpoint) -> Iterator[Batch]:
        for name in names:
            for batch in batches(name, begun.done.get(name, 0)):
                if self.options.field is None and not batch.recording:
                    raise SettingsError(f"{name} cannot be read: it is not a recording; use --field to select the text")
                yield batch
