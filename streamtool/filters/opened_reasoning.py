"""A parser for a reply that begins inside reasoning, because the prompt has opened it.

The text before the closer is reasoning and is emitted immediately. A chat template or a setting leads to the assumption
that the reply begins inside reasoning; it is wrong for a particular reply if the request or the server has switched
reasoning off. Three rules correct it:

- A reply that begins with the opener is read without the assumption.
- An upstream that sends reasoning separately has removed it from the text (`disable`).
- A reply that the model ended without a closer, and that was nothing but reasoning, is parsed again as if reasoning had
  never been opened. Its answer and its calls then reach the client late, but they are not lost.
"""

from collections.abc import Callable

import statemachine
from statemachine.stream.flow import Flow
from streamtool.core.conversation import Forcing
from streamtool.filters.null_parser import TextParser
from streamtool.filters.prefilled import Prefilled

REASONING = statemachine.ReasoningDelta


class OpenedReasoning:
    """A parser for one reply that follows this opener. `new_parser` returns a parser for a reply with a given
    prefix.
    """

    __slots__ = ("_new_parser", "_open", "_parser", "_silent", "_written")

    def __init__(self, opener: str, new_parser: Callable[[str], TextParser]) -> None:
        self._new_parser = new_parser
        self._parser: TextParser = Prefilled(Forcing("prefill", opener, triggers=(opener,)), new_parser)
        self._open = True
        """Whether the reply has been nothing but reasoning so far."""
        self._silent = True
        """Whether the parser has not emitted anything yet."""
        self._written = bytearray()  # pieces of text would take ten times the memory
        """The text that was read while the reply was nothing but reasoning."""

    def disable(self) -> list[statemachine.Event]:
        """Drop the assumption, because the upstream separates reasoning itself. Return the events for the buffered
        text.
        """
        if not self._open:
            return []
        before, self._parser = self._parser, self._new_parser("")
        waits = self._parser.feed(self._text) if self._silent else before.close("broken")
        self._end()
        # The text continues elsewhere, so it is not cut off: an apparent part of a closer is reasoning.
        return [
            REASONING(event.text) if isinstance(event, statemachine.Discarded) and event.reason == "cut_off" else event
            for event in waits
        ]

    @property
    def in_call(self) -> bool:
        """Whether the parser is inside a call or its markup."""
        return self._parser.in_call

    @property
    def flow(self) -> Flow | None:
        """The parser's `flow`, once the reasoning has ended."""
        return None if self._open else self._parser.flow

    def feed(self, text: str, /) -> list[statemachine.Event]:
        """Feed a piece of the reply and return the resulting events."""
        events = self._parser.feed(text)
        if self._open:
            self._written += text.encode("utf-8", "surrogatepass")
            self._track(events)
        return events

    def close(self, reason: str | None = None, /) -> list[statemachine.Event]:
        """Note the end of the reply and return the last events.

        If the model ended a reply that was nothing but reasoning, the events include those from parsing it again as
        text.
        """
        events = self._parser.close(reason)
        self._track(events)
        if not self._open or reason not in (None, "stop"):
            return events
        text, parser = self._text, self._new_parser("")
        self._end()
        again = [*parser.feed(text), *parser.close(reason)]
        return [*events, *(event for event in again if type(event) is not REASONING)]

    @property
    def _text(self) -> str:
        return self._written.decode("utf-8", "surrogatepass")

    def _track(self, events: list[statemachine.Event]) -> None:
        self._silent = self._silent and not events
        if self._open and any(type(event) is not REASONING for event in events):
            self._end()

    def _end(self) -> None:
        self._open = False
        self._written.clear()
