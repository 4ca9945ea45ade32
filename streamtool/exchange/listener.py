"""Who is told what happens in an exchange while it happens, to record it or to debug it.

A shell sets `Exchange.listener`; without one nothing is wrapped and nothing is told. With one, each parser stands in an
`ObservedParser`, which tells what went in and what came out. The listener does the I/O and has the clock; here is
neither.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from attrs import frozen

import statemachine
from streamtool.conversation import Json
from streamtool.exchange.interfaces import UpstreamRequest
from streamtool.policy import NullParser
from streamtool.reply import ReplyEvent


@frozen
class ParserOptions:
    """What a parser is made with."""

    tools: Mapping[str, Mapping[str, Json]]
    formats: tuple[str, ...] | None
    prefix: str
    unknown: str
    malformed: str
    in_fences: str
    calls_in_reasoning: bool
    limits: statemachine.Limits

    def parser(self, *, ledger: bool = False) -> statemachine.Parser:
        """A new parser."""
        return statemachine.Parser(
            self.tools,
            formats=self.formats,
            prefix=self.prefix,
            unknown=self.unknown,
            malformed=self.malformed,
            in_fences=self.in_fences,
            calls_in_reasoning=self.calls_in_reasoning,
            limits=self.limits,
            ledger=ledger,
        )


Fed = tuple[int, str]
"""The number of a parser, and what it was fed."""


class ExchangeListener(Protocol):
    """Who is told. Nothing that it is given may be changed; it never raises.

    `fed` and `sent` are called with each delta, so what a listener does there is what it costs.
    """

    def attempt(self, request: UpstreamRequest, /) -> None:
        """An attempt begins: this is sent."""

    def answered(self, status: int, /) -> None:
        """The upstream has answered with this status."""

    def parser(self, choice: int, options: ParserOptions | None, parser: "ObservedParser", /) -> int:
        """A parser was made (None: one that finds nothing). Returns the number under which it will be told of."""

    @property
    def fed(self) -> Callable[[Fed], object]:
        """Called when a parser was fed; what it emitted, and what it holds now, it says itself."""

    def closed(self, number: int, reason: str | None, events: Sequence[statemachine.Event], /) -> None:
        """A parser was closed."""

    def quoted(self, choice: int, why: str, /) -> None:
        """A call that the parser has found is a quotation, and text, because it stands there (`policy.quotations`)."""

    def sent(self, events: Sequence[ReplyEvent], data: bytes, waits_for: str, /) -> None:
        """The client gets these events, in these bytes. If there are none: what it waits for, beyond the parser."""


class ObservedParser:
    """A parser of which a listener is told."""

    __slots__ = ("_listener", "_number", "_parser", "events")

    def __init__(self, listener: ExchangeListener, choice: int, options: ParserOptions | None) -> None:
        self._parser = NullParser() if options is None else options.parser()
        self._listener = listener
        self.events: list[statemachine.Event] = []
        """What it emitted last."""
        self._number = listener.parser(choice, options, self)

    @property
    def held(self) -> int:
        """Characters that the parser holds."""
        return self._parser.held

    @property
    def in_reasoning(self) -> bool:
        """The text around is reasoning."""
        return self._parser.in_reasoning

    def feed(self, text: str, /) -> list[statemachine.Event]:
        """What the parser makes of it."""
        self.events = events = self._parser.feed(text)
        self._listener.fed((self._number, text))
        return events

    def close(self, reason: str | None = None, /) -> list[statemachine.Event]:
        """What is left."""
        events = self._parser.close(reason)
        self._listener.closed(self._number, reason, events)
        return events

    @property
    def state(self) -> str:
        """The parser's state, in one word."""
        return self._parser.state.value if isinstance(self._parser, statemachine.Parser) else "text"
