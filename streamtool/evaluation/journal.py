"""The file of an evaluation: its subject and every outcome so far, one JSON object per line.

The first line names the model, the server, the seed and the variants; each further line is an outcome. Lines are only
appended, so an interrupted evaluation loses at most the scenario that was being asked, and continues with the same
order and the same results.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import asdict, frozen

from streamtool.core.errors import SettingsError
from streamtool.core.json_value import Json, json_line
from streamtool.evaluation.judge import Verdict
from streamtool.evaluation.measure import TOKENS, ScenarioOutcome
from streamtool.evaluation.variants import EvaluatedVariant


@frozen
class Subject:
    """The model, the server and the comparison of an evaluation."""

    model: str
    """The name that the server gives the model."""
    server: str
    """The server's software and version, or its address if it does not report them."""
    url: str
    protocol: str
    date: str
    """Day on which the evaluation began, as YYYY-MM-DD."""
    version: str
    """Version of streamtool."""
    seed: int
    suite: str
    variants: tuple[EvaluatedVariant, ...]
    scenarios: tuple[str, ...]
    """Names of the scenarios, in the order in which they are asked."""
    choice: str = "auto"
    """The tool choice of scenarios that expect a call and have none."""
    max_tokens: int = TOKENS
    """Maximum length of a reply, in tokens."""
    command: str = ""
    """The command that repeats the evaluation, with URL for the server's address."""


class Journal:
    """The outcomes of one evaluation, in memory and, if there is a path, in a file."""

    def __init__(self, subject: Subject, path: Path | None = None) -> None:
        self.subject = subject
        self.outcomes: dict[str, list[ScenarioOutcome]] = {variant.name: [] for variant in subject.variants}
        self._path = path

    @property
    def requests(self) -> int:
        """Number of requests so far."""
        return sum(outcome.requests for outcomes in self.outcomes.values() for outcome in outcomes)

    def create(self) -> None:
        """Write the first line. Raises SettingsError if the file exists or cannot be written."""
        self._write({"subject": asdict(self.subject)}, mode="x")

    def add(self, variant: str, outcome: ScenarioOutcome) -> None:
        """Add an outcome. Raises SettingsError if it cannot be written."""
        self.outcomes[variant].append(outcome)
        self._write({"variant": variant, **asdict(outcome)}, mode="a")

    def _write(self, line: Json, mode: str) -> None:
        if self._path is None:
            return
        try:
            with self._path.open(mode, encoding="utf-8") as file:
                file.write(json_line(line) + "\n")
        except FileExistsError:
            raise SettingsError(f"{self._path} exists; continue it with --resume, or choose another name") from None
        except OSError as error:
            raise SettingsError(f"{self._path} cannot be written: {error.strerror}") from None


def read_journal(path: Path) -> Journal:
    """Return the evaluation in a file, to continue it. An unfinished last line is removed from the file.

    Raises SettingsError if the file is not the journal of an evaluation.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from None
    whole = text[: text.rfind("\n") + 1]
    try:
        rows = [json.loads(line) for line in whole.splitlines()]
        journal = Journal(_subject(rows[0]["subject"]), path)
        for variant, outcome in _outcomes(rows[1:]):
            journal.outcomes[variant].append(outcome)
    except (ValueError, KeyError, IndexError, TypeError):
        raise SettingsError(f"{path} is not the file of an evaluation") from None
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return journal


def _subject(row: dict[str, Json]) -> Subject:
    variants = tuple(EvaluatedVariant(**variant) for variant in row.pop("variants"))
    return Subject(**{**row, "scenarios": tuple(row["scenarios"])}, variants=variants)


def _outcomes(rows: Sequence[dict[str, Json]]) -> Iterator[tuple[str, ScenarioOutcome]]:
    for row in rows:
        variant, verdict = row.pop("variant"), Verdict(**row.pop("verdict"))
        yield variant, ScenarioOutcome(**{**row, "transcript": tuple(row["transcript"])}, verdict=verdict)
