"""The conformance cases of `tests/formats/*.md` for the tests of the parser.

`conformance/cases.py`, which reads them, describes how a case is written.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import field, frozen
from support.statemachine_fold import Discard, FoldedCall, Item, Reasoning, Text

from conformance import cases as written
from statemachine import Limits

FOLDER = Path(__file__).parent.parent / "formats"
TOOLS: dict[str, Any] = dict(written.TOOLS)
"""The default tools of a case."""


@frozen
class Case:
    """A conformance case."""

    format: str
    title: str
    line: int
    text: str
    expected: list[Item]
    tools: Any = field(factory=lambda: TOOLS)
    reason: str | None = None
    options: dict[str, Any] = field(factory=dict)

    @property
    def id(self) -> str:
        """Return format, line and title, for the test's name."""
        return f"{self.format}:{self.line} {self.title}"


def item(event: dict[str, Any]) -> Item:
    """Return an expected event as an item of the fold."""
    match event:
        case {"type": "text", "text": text}:
            return Text(text)
        case {"type": "reasoning", "text": text}:
            return Reasoning(text)
        case {"type": "discard", "text": text, "reason": reason}:
            return Discard(text, reason)
        case _:
            given = {key: value for key, value in event.items() if key not in ("type", "repairs")}
            return FoldedCall(**given, repairs=tuple(event["repairs"]))


def case_of(found: written.Case) -> Case:
    """Return a case with everything that the parser needs."""
    options = dict(found.options)
    if "limits" in options:
        options["limits"] = Limits(**options["limits"])
    expected = [item(event) for event in found.events]
    return Case(found.format, found.title, found.line, found.text, expected, found.tools, found.reason, options)


def cases_of(path: Path) -> Iterator[Case]:
    """Return the cases of one file."""
    return map(case_of, written.read_cases(path.stem, path.read_text("utf-8")))


def all_cases() -> list[Case]:
    """Return every case of every file."""
    return [case_of(case) for case in written.all_cases(FOLDER)]
