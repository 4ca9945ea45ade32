"""A listener that turns everything that it observes into lines (`observe.lines`)."""

from collections.abc import Callable, Sequence

import statemachine
from streamtool.core.reply import ReplyEvent
from streamtool.exchange.interfaces import UpstreamRequest
from streamtool.exchange.listener import FedText, ObservedParser, ParserOptions
from streamtool.observe import lines


class LineListener:
    """A listener that passes lines to `write`. `now` returns the seconds since the request."""

    __slots__ = ("_made", "_now", "_parsers", "_waits_for", "_write_line")

    def __init__(self, write: Callable[[lines.Line], object], now: Callable[[], float]) -> None:
        self._write_line = write
        self._now = now
        self._parsers: list[ObservedParser] = []
        self._made = lines.ParserLines()
        self._waits_for = ""

    def release(self) -> None:
        """Forget all parsers."""
        self._parsers.clear()

    def attempt(self, request: UpstreamRequest, /) -> None:
        """Write the beginning of an attempt."""
        self._write_line(lines.attempt_line(self._now(), request))

    def answered(self, status: int, /) -> None:
        """Write the status of the upstream's response."""
        self._write_line(lines.answer_line(self._now(), status))

    def parser(self, choice: int, options: ParserOptions | None, parser: ObservedParser, /) -> int:
        """Write a new parser and return its number."""
        self._parsers.append(parser)
        self._write_line(self._made.line(self._now(), choice, options))
        return len(self._parsers) - 1

    def fed(self, fed: FedText, /) -> None:
        """Write text that was fed to a parser."""
        parser = self._parsers[fed[0]]
        self._write_line(lines.text_line(self._now(), fed, parser.events, state=parser.state, held=parser.held))

    def closed(self, number: int, reason: str | None, events: Sequence[statemachine.Event], /) -> None:
        """Write that a parser was closed."""
        self._write_line(lines.close_line(self._now(), number, reason, self._parsers[number].state, events))

    def quoted(self, choice: int, why: str, /) -> None:
        """Write a quotation."""
        self._write_line(lines.quotation_line(self._now(), choice, why))

    def sent(self, events: Sequence[ReplyEvent], data: bytes, waits_for: str, /) -> None:
        """Write the events that the client receives, or the reason why text is buffered."""
        if waits_for != self._waits_for:
            self._waits_for = waits_for
            self._write_line(lines.waits_line(self._now(), waits_for))
        if events:
            self._write_line(lines.sent_line(self._now(), events, data))
