"""The conformance cases of `tests/formats/*.md`, as the tests of the parser want them.

How a case is written is said in `conformance/cases.py`, which reads it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attrs import field, frozen
from statemachine_fold import Discard, FoldedCall, Item, Reasoning, Text

from conformance import cases as written
from statemachine import Limits

FOLDER = Path(__file__).parent / "formats"
TOOLS: dict[str, Any] = dict(written.TOOLS)
"""The tools that a case offers when it does not say otherwise."""


@frozen
class Case:
    """One case."""

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
        """Format, line and title, for the test's name."""
        return f"{self.format}:{self.line} {self.title}"


def item(event: dict[str, Any]) -> Item:
    """An expected event as the fold has it."""
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
    """A case with everything that the parser takes."""
    options = dict(found.options)
    if "limits" in options:
        options["limits"] = Limits(**options["limits"])
    expected = [item(event) for event in found.events]
    return Case(found.format, found.title, found.line, found.text, expected, found.tools, found.reason, options)


def cases_of(path: Path) -> Iterator[Case]:
    """The cases of one file."""
    return map(case_of, written.read_cases(path.stem, path.read_text("utf-8")))


def all_cases() -> list[Case]:
    """Every case of every file."""
    return [case_of(case) for case in written.all_cases(FOLDER)]
