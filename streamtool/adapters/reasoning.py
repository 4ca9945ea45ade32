"""Separates reasoning from the remainder of a reply, for engines that run first a reasoning parser and then a tool
parser.

Both use the same `Parser` class. The reasoning parser is created without tools: it recognizes all formats and their
reasoning sections, but treats every call as a call to a tool that is not offered. The text of a call is therefore
emitted verbatim, and the tool parser reads it.
"""

import re
from collections.abc import Iterable

from attrs import frozen

from statemachine import Event, Parser, ReasoningDelta, TextDelta
from statemachine.formats import FORMATS, REASONING
from streamtool.models.generation_prompt import OPENERS

NO_TOOL = {"": None}
"""A set of tools whose only name is empty, so that no call can use it."""
CLOSERS = tuple(
    {
        section.close.strip()
        for section in (*REASONING, *(section for form in FORMATS.values() for section in form.sections))
        if not section.text and "{" not in section.close
    }
)
"""Markers that close reasoning."""
_PLAIN = re.compile(rf"[^{re.escape(''.join({closer[0] for closer in CLOSERS} | {'<'}))}]+")
"""Matches text that cannot close reasoning."""


@frozen
class SplitText:
    """A span of a reply, split into reasoning and other text."""

    reasoning: str = ""
    rest: str = ""
    """Text outside reasoning, including calls, verbatim."""

    def __add__(self, other: "SplitText") -> "SplitText":
        return SplitText(self.reasoning + other.reasoning, self.rest + other.rest)


class ReasoningReader:
    """Separates a reply's reasoning from its other text. `prefix` is the reasoning opener at the end of the prompt, if
    there is one.
    """

    __slots__ = ("_held_text", "_parser", "ended")

    def __init__(self, prefix: str = "") -> None:
        self._parser = Parser(NO_TOOL, prefix=prefix)
        self._held_text = ""
        self.ended = False
        """Whether text outside reasoning has begun. From then on, text is no longer examined, because the tool parser
        recognizes reasoning as well.
        """

    def feed(self, text: str) -> SplitText:
        """Split this piece of the reply into reasoning and other text."""
        found: list[Event] = []
        at = 0
        while not self.ended and at < len(text):
            end = self._end_of_step(text, at)
            found += self._step(text[at:end])
            at = end
        return split_events(found) + SplitText(rest=text[at:])

    def close(self) -> SplitText:
        """Return the text that was still buffered, split into reasoning and other text."""
        return split_events(self._parser.close())

    def read(self, text: str) -> SplitText:
        """Split a complete reply."""
        return self.feed(text) + self.close()

    def _end_of_step(self, text: str, at: int) -> int:
        """Return the end of the text to feed next, chosen so that no text after the reasoning is fed. Where reasoning
        may end, only one character is fed.
        """
        waits = self._parser.held or not self._parser.in_reasoning
        plain = None if waits else _PLAIN.match(text, at)
        return at + 1 if plain is None else plain.end()

    def _step(self, text: str) -> list[Event]:
        events = self._parser.feed(text)
        held = self._parser.held
        self._held_text = (self._held_text + text)[-held:] if held else ""
        self.ended = any(isinstance(event, TextDelta) for event in events) or self._holds_no_reasoning()
        return events + self._parser.close() if self.ended else events

    def _holds_no_reasoning(self) -> bool:
        """Return whether the parser is buffering text that is outside reasoning and cannot open it."""
        held = "" if self._parser.in_reasoning else self._held_text.strip()
        return bool(held) and not any(opener.startswith(held) or held.startswith(opener) for opener in OPENERS)


def split_events(events: Iterable[Event]) -> SplitText:
    """Collect the reasoning and the other text from events."""
    events = list(events)
    return SplitText(
        "".join(event.text for event in events if isinstance(event, ReasoningDelta)),
        "".join(event.text for event in events if isinstance(event, TextDelta)),
    )
