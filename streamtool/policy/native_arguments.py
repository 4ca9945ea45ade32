"""Mends the arguments of a call that the upstream made by itself, as they come.

The upstream was asked for text, but some make calls of their own all the same, and not every one writes JSON as it
should. What the client receives has to be the beginning of a JSON object at every moment, so these arguments go the way
of all others: a parser reads them as the body of a written call.
"""

from typing import Final

import statemachine

_OPENER: Final = '<tool_call>{"name": "call", "arguments": '
_CLOSER: Final = "}</tool_call>"


class NativeArguments:
    """The arguments of one call."""

    __slots__ = ("_blank", "_parser", "complete", "malformed", "repairs")

    def __init__(self) -> None:
        self._parser = statemachine.Parser({"call": {}}, formats=("tool_call",))
        self._parser.feed(_OPENER)
        self._blank = True
        self.complete = False
        """What came is one whole object."""
        self.malformed = 0
        """Characters that were no part of it."""
        self.repairs: tuple[str, ...] = ()

    def feed(self, text: str) -> str:
        """What the client may see of the arguments with this piece of them."""
        if self._blank and not text.strip():
            return ""
        self._blank = False
        events = self._parser.feed(text)
        strange = statemachine.Discarded | statemachine.TextDelta
        self.malformed += sum(len(event.text) for event in events if isinstance(event, strange))
        return self._shown(events)

    def close(self, *, complete: bool) -> str:
        """What is left; `complete` says that the upstream ended the call itself. No arguments at all are none."""
        if self._blank:
            self.complete = complete
            return ""
        shown = self._shown(self._parser.feed(_CLOSER)) if complete else ""
        shown += self._shown(self._parser.close(None if complete else "length"))
        self.complete = self.complete and complete
        return shown

    def _shown(self, events: list[statemachine.Event]) -> str:
        shown = []
        for event in events:
            if isinstance(event, statemachine.ArgumentsDelta):
                shown.append(event.text)
            elif isinstance(event, statemachine.CallEnd):
                self.complete, self.repairs = event.complete, event.repairs
        return "".join(shown)
