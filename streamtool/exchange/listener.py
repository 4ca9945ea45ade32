"""Listeners that observe a running exchange, to record or debug it.

A driver sets `Exchange.listener`. If there is a listener, each parser is wrapped in an `ObservedParser`, which reports
the parser's input and output. I/O and timing are left to the listener; this module performs neither.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import statemachine
from streamtool.core.json_value import Json
from streamtool.core.reply import ReplyEvent
from streamtool.core.values import frozen
from streamtool.exchange.interfaces import UpstreamRequest
from streamtool.filters import NullParser


@frozen
class ParserOptions:
    """Options for creating a parser."""

    tools: Mapping[str, Mapping[str, Json]]
    formats: tuple[str, ...] | None
    prefix: str
    unknown: str
    malformed: str
    in_fences: str
    calls_in_reasoning: bool | tuple[str, ...]
    limits: statemachine.Limits
    names: str = "spelling"
    flattened: str = "nest"

    def parser(self, *, ledger: bool = False) -> statemachine.Parser:
        """Return a new parser."""
        return statemachine.Parser(
            self.tools,
            formats=self.formats,
            prefix=self.prefix,
            unknown=self.unknown,
            malformed=self.malformed,
            in_fences=self.in_fences,
            calls_in_reasoning=self.calls_in_reasoning,
            names=self.names,
            flattened=self.flattened,
            limits=self.limits,
            ledger=ledger,
        )


FedText = tuple[int, str]
"""The number of a parser, and the text that was fed to it."""


class ExchangeListener(Protocol):
    """A listener to an exchange. It must not change any object that it receives, and must never raise an exception.

    `fed` and `sent` are called for every delta, so they determine the cost of listening.
    """

    def attempt(self, request: UpstreamRequest, /) -> None:
        """Note the beginning of an attempt, and the request that it sends."""

    def answered(self, status: int, /) -> None:
        """Note the status of the upstream's response."""

    def parser(self, choice: int, options: ParserOptions | None, parser: "ObservedParser", /) -> int:
        """Note a new parser, and return the number that identifies it in reports. If `options` is None, the parser
        finds no calls.
        """

    @property
    def fed(self) -> Callable[[FedText], object]:
        """A function that is called after text has been fed to a parser. The parser provides the events that it
        emitted, and its state.
        """

    def closed(self, number: int, reason: str | None, events: Sequence[statemachine.Event], /) -> None:
        """Note that a parser was closed."""

    def quoted(self, choice: int, why: str, /) -> None:
        """Note that a call found by the parser is a quotation and therefore text, and why (`filters.quotations`)."""

    def sent(self, events: Sequence[ReplyEvent], data: bytes, waits_for: str, /) -> None:
        """Note the events that the client receives, and their bytes. If `events` is empty, `waits_for` is the reason
        why text is buffered.
        """


class ObservedParser:
    """A parser that reports to a listener."""

    __slots__ = ("_listener", "_number", "_parser", "events")

    flow = None  # the listener has to see all text

    def __init__(self, listener: ExchangeListener, choice: int, options: ParserOptions | None) -> None:
        self._parser = NullParser() if options is None else options.parser()
        self._listener = listener
        self.events: list[statemachine.Event] = []
        """Events emitted by the last `feed`."""
        self._number = listener.parser(choice, options, self)

    @property
    def held(self) -> int:
        """Number of characters that the parser buffers."""
        return self._parser.held

    @property
    def in_call(self) -> bool:
        """Whether the parser is inside a call or its markup."""
        return self._parser.in_call

    @property
    def in_reasoning(self) -> bool:
        """Whether the parser is inside reasoning."""
        return self._parser.in_reasoning

    def feed(self, text: str, /) -> list[statemachine.Event]:
        """Feed a piece of text and return the resulting events."""
        self.events = events = self._parser.feed(text)
        self._listener.fed((self._number, text))
        return events

    def close(self, reason: str | None = None, /) -> list[statemachine.Event]:
        """Note the end of the text and return the last events."""
        events = self._parser.close(reason)
        self._listener.closed(self._number, reason, events)
        return events

    @property
    def state(self) -> str:
        """The state of the parser, in one word."""
        return self._parser.state.value if isinstance(self._parser, statemachine.Parser) else "text"
