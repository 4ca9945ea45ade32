"""A whole run: which records, by how many processes, to where, and the sums in the end."""

from collections import Counter
from collections.abc import Callable, Iterator

from attrs import frozen

from streamtool.batch.outputs import PARQUET, Lines, Output, Progress, Table
from streamtool.batch.reading import Plan, Result
from streamtool.batch.sources import Batch, batches, files
from streamtool.batch.workers import results
from streamtool.errors import SettingsError


@frozen
class Run:
    """What is to be done."""

    names: tuple[str, ...]
    """Files and folders."""
    plan: Plan
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
            for result in results(self.plan, self._batches(chosen, begun), self.jobs):
                output.write(result)
                counts += result.counts
                told(result)
        return counts

    def _begun(self) -> Progress:
        if not self.resume:
            return Progress()
        if self.output is None or self.output.endswith(PARQUET):
            raise SettingsError("--resume needs --output FILE.jsonl, which can be continued")
        return Progress.of(self.output)

    def _opened(self, begun: Progress) -> Output:
        if self.output is not None and self.output.endswith(PARQUET):
            return Table(self.output)
        return Lines(self.output, begun)

    def _batches(self, names: list[str], begun: Progress) -> Iterator[Batch]:
        for name in names:
            for batch in batches(name, begun.done.get(name, 0)):
                if self.plan.field is None and not batch.recording:
                    raise SettingsError(
                        f"{name} cannot be read: it is no recording: say where its records have their text (--field)"
                    )
                yield batch
