"""The reasoning of a reply, for engines that read it apart from the calls: a reasoning parser, then a tool parser.

The same parser reads both, so here it is told of no tool. It knows all formats and their reasoning, and each call is
one of a tool that is not offered: its text comes out as it was written, and the tool parser reads it.
"""

import re
from collections.abc import Iterable

from attrs import frozen

from statemachine import Event, Parser, ReasoningDelta, TextDelta
from statemachine.formats import FORMATS, REASONING
from streamtool.generation_prompt import OPENERS

NO_TOOL = {"": None}
"""Tools of which no call has the name."""
CLOSERS = tuple(
    {
        section.close.strip()
        for section in (*REASONING, *(section for form in FORMATS.values() for section in form.sections))
        if not section.text and "{" not in section.close
    }
)
"""The closers of reasoning."""
_PLAIN = re.compile(rf"[^{re.escape(''.join({closer[0] for closer in CLOSERS} | {'<'}))}]+")
"""What cannot end reasoning."""


@frozen
class Parted:
    """A stretch of a reply."""

    reasoning: str = ""
    rest: str = ""
    """Text and calls, as the model wrote them."""

    def __add__(self, other: "Parted") -> "Parted":
        return Parted(self.reasoning + other.reasoning, self.rest + other.rest)


class ReasoningReader:
    """Parts a reply into its reasoning and the rest. `prefix` is an opener of reasoning that stands in the prompt."""

    __slots__ = ("_parser", "_tail", "over")

    def __init__(self, prefix: str = "") -> None:
        self._parser = Parser(NO_TOOL, prefix=prefix)
        self._tail = ""
        self.over = False
        """The rest has begun, and nothing more is looked at: the parser of calls knows reasoning too."""

    def feed(self, text: str) -> Parted:
        """What this piece of the reply brings."""
        found: list[Event] = []
        at = 0
        while not self.over and at < len(text):
            end = self._end_of_step(text, at)
            found += self._step(text[at:end])
            at = end
        return parted(found) + Parted(rest=text[at:])

    def close(self) -> Parted:
        """What was held back."""
        return parted(self._parser.close())

    def read(self, text: str) -> Parted:
        """A whole reply."""
        return self.feed(text) + self.close()

    def _end_of_step(self, text: str, at: int) -> int:
        """How far to read at once, so that nothing of the rest is read: one character where reasoning may end."""
        waits = self._parser.held or not self._parser.in_reasoning
        plain = None if waits else _PLAIN.match(text, at)
        return at + 1 if plain is None else plain.end()

    def _step(self, text: str) -> list[Event]:
        events = self._parser.feed(text)
        held = self._parser.held
        self._tail = (self._tail + text)[-held:] if held else ""
        self.over = any(isinstance(event, TextDelta) for event in events) or self._holds_no_reasoning()
        return events + self._parser.close() if self.over else events

    def _holds_no_reasoning(self) -> bool:
        """What is held back, outside of reasoning, is not the beginning of any."""
        held = "" if self._parser.in_reasoning else self._tail.strip()
        return bool(held) and not any(opener.startswith(held) or held.startswith(opener) for opener in OPENERS)


def parted(events: Iterable[Event]) -> Parted:
    """What events say."""
    events = list(events)
    return Parted(
        "".join(event.text for event in events if isinstance(event, ReasoningDelta)),
        "".join(event.text for event in events if isinstance(event, TextDelta)),
    )
