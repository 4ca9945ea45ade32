"""A whole run: which records, by how many processes, to where, and the sums in the end."""

from collections import Counter
from collections.abc import Callable, Iterator

from attrs import frozen

from streamtool.batch.outputs import PARQUET, Checkpoint, Lines, Output, Table
from streamtool.batch.reading import ReadingOptions, Result
from streamtool.batch.sources import Batch, batches, files
from streamtool.batch.workers import results
from streamtool.errors import SettingsError


@frozen
class BatchRun:
    """What is to be done."""

    names: tuple[str, ...]
    """Files and folders."""
    options: ReadingOptions
    jobs: int = 1
    output: str | None = None
    """A file; None: standard output."""
    resume: bool = False

    def all_of_it(self, told: Callable[[Result], object]) -> Counter[str]:
        """Do it. `told` hears of each batch. Returns the counts; raises SettingsError."""
        chosen = files(self.names)
        if self.output is not None and self.output in chosen:
            raise SettingsError(f"--output: {self.output} is one of the files that are read", param="output")
        begun = self._begun()
        counts = Counter(begun.counts)
        with self._opened(begun) as output:
            for result in results(self.options, self._batches(chosen, begun), self.jobs):
                output.write(result)
                counts += result.counts
                told(result)
        return counts

    def _begun(self) -> Checkpoint:
        if not self.resume:
            return Checkpoint()
        if self.output is None or self.output.endswith(PARQUET):
            raise SettingsError("--resume needs --output FILE.jsonl, which can be continued")
        return Checkpoint.of(self.output)

    def _opened(self, begun: Checkpoint) -> Output:
        if self.output is not None and self.output.endswith(PARQUET):
            return Table(self.output)
        return Lines(self.output, begun)

    def _batches(self, names: list[str], begun: Checkpoint) -> Iterator[Batch]:
        for name in names:
            for batch in batches(name, begun.done.get(name, 0)):
                if self.options.field is None and not batch.recording:
                    raise SettingsError(
                        f"{name} cannot be read: it is no recording: say where its records have their text (--field)"
                    )
                yield batch
