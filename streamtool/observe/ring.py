"""An in-memory store of recent exchanges for the inspector, with a maximum size.

An exchange that is not being viewed costs two calls and two appends per delta (figures are in docs/performance.md). The
clock is `monotonic`, because the event loop's clock is slower. Notifications are stored as received, and are converted
to the lines of a recording (`observe.lines`) only when the exchange is viewed.
"""

from collections.abc import Callable, Iterator, Sequence
from sys import maxsize
from time import monotonic, time
from typing import Final

from attrs import evolve, frozen

import statemachine
from streamtool.core.json_value import Json
from streamtool.core.reply import ReplyArgumentsDelta, ReplyCallStart, ReplyEvent
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.interfaces import UpstreamRequest
from streamtool.exchange.listener import FedText, ObservedParser, ParserOptions
from streamtool.exchange.record import Record
from streamtool.filters import NullParser
from streamtool.observe import lines
from streamtool.observe.lines import Line
from streamtool.observe.summary import FirstCall, ended_entry, open_entry
from streamtool.protocols.shared.wire import decode, encode

MAX_EXCHANGES: Final = 1000
"""Maximum number of exchanges, regardless of their size."""
DELTA_OVERHEAD: Final = 700
"""Approximate number of bytes of memory that a delta requires in addition to its text."""

Sent = tuple[float, Sequence[ReplyEvent], bytes, str]
"""The time, the events and the bytes sent to the client and, if nothing was sent, the reason why text is still
buffered.
"""


@frozen
class Attempt:
    """A request to the upstream, and the time when it was sent."""

    seconds: float
    request: UpstreamRequest


@frozen
class MadeParser:
    """A new parser."""

    line: Line
    options: ParserOptions | None


@frozen
class Closed:
    """A parser that was closed."""

    seconds: float
    number: int
    reason: str | None
    events: Sequence[statemachine.Event]


Item = bytes | Line | FedText | Sent | Attempt | MadeParser | Closed
"""A stored item. Bytes are an encoded line."""


class InspectedExchange:
    """A listener that stores one exchange's notifications."""

    __slots__ = (
        "_began",
        "_items",
        "_parsers",
        "_ring",
        "_take",
        "at",
        "client",
        "contents",
        "fed",
        "id",
        "record",
        "size",
    )

    def __init__(self, id: str, exchange: Exchange, client: str, ring: "Ring") -> None:
        self.id = id
        self.client = client
        self.at = time()
        """Start of the exchange, in seconds since 1970."""
        self._ring = ring
        self.contents = ring.contents
        self._began = monotonic()
        self._items: list[Item] = [encode(lines.exchange_line(exchange, exchange.conversation.raw))]
        self._parsers = lines.ParserLines()
        self._take: Callable[[Item], object] = self._items.append
        self.fed: Callable[[FedText], object] = self._items.append
        self.size = len(self._first)
        """Approximate size in bytes."""
        ring.left -= self.size
        self.record: Record | None = None
        """The record of the exchange; None while it is open."""

    # --- notifications from the exchange

    def attempt(self, request: UpstreamRequest, /) -> None:
        """Store the start of an attempt."""
        size = DELTA_OVERHEAD + len(request.body)
        self.size += size
        self._ring.left -= size
        self._take(Attempt(self._now(), evolve(request, headers=(), conversation=None)))

    def answered(self, status: int, /) -> None:
        """Store the status of the upstream's response."""
        self._take(lines.answer_line(self._now(), status))

    def parser(self, choice: int, options: ParserOptions | None, parser: ObservedParser, /) -> int:  # noqa: ARG002  not stored
        """Store a new parser and return its number."""
        line = self._parsers.line(self._now(), choice, options)
        self._take(MadeParser(line, options))
        return int(line["parser"])

    def closed(self, number: int, reason: str | None, events: Sequence[statemachine.Event], /) -> None:
        """Record that a parser was closed."""
        self._take(Closed(self._now(), number, reason, events))

    def quoted(self, choice: int, why: str, /) -> None:
        """Record that a call is a quotation."""
        self._take(lines.quotation_line(self._now(), choice, why))

    def sent(self, events: Sequence[ReplyEvent], data: bytes, waits_for: str, /) -> None:
        """Store the events sent to the client, or the reason why text is still buffered."""
        size = DELTA_OVERHEAD + len(data)
        self.size += size
        ring = self._ring
        ring.left -= size
        self._take((monotonic(), events, data, waits_for))
        if ring.left < 0:
            ring.make_room()

    def end(self, record: Record) -> None:
        """Store the record of the completed exchange."""
        self.record = record
        self._items.append(lines.record_line(record))
        if self._ring is DISCARDING_RING:  # later items were counted but not stored
            self.size = len(self._first)

    # --- contents

    def cut(self) -> None:
        """Free memory by discarding all items except the first one. Later items are discarded as well, apart from the
        record, which is added when the exchange ends.
        """
        ring, self._ring = self._ring, DISCARDING_RING
        self._items = [self._items[0], lines.cut_line(self._now())]
        self._take = self.fed = _ignore
        ring.left += self.size - len(self._first)
        self.size = len(self._first)

    def __len__(self) -> int:
        return len(self._items)

    def summary(self) -> Json:
        """Return the exchange's list entry."""
        known = open_entry(decode(self._first), id=self.id, at=self.at, client=self.client)
        if self.record is not None:
            known["called"] = self._called()
            return ended_entry(known, lines.record_line(self.record, contents=self.contents))
        attempts = [item.request.attempt for item in self._items if isinstance(item, Attempt)]
        return {**known, "attempts": max(attempts, default=0), "seconds": self._now()}

    def _called(self) -> str:
        """Return the first call that the client received, in one short line, or ""."""
        found = FirstCall()
        for item in self._items:
            match item:
                case (float(), told, _, _):
                    for event in told:
                        if isinstance(event, ReplyCallStart | ReplyArgumentsDelta):
                            found.feed(lines.reply_event_as_json(event))
                case _:
                    pass
        return found.text()

    @property
    def _first(self) -> bytes:
        first = self._items[0]
        assert isinstance(first, bytes)  # noqa: S101  set in __init__
        return first

    def lines(self) -> Iterator[Line]:
        """Return the lines that a recording of the exchange would contain."""
        return as_lines(list(self._items), self._began)

    def _now(self) -> float:
        return round(monotonic() - self._began, 6)


def _ignore(_: Item) -> None:
    """Discard an item."""


class Ring:
    """The recent exchanges of one process, in about `size` bytes. If `contents` is true, summaries may quote
    messages.
    """

    def __init__(self, size: int, *, contents: bool) -> None:
        self.size = size
        self.contents = contents
        self.left = size
        """Number of bytes left before memory has to be freed."""
        self._begun = 0
        self.exchanges: dict[str, InspectedExchange] = {}
        """Exchanges by id, oldest first."""

    def begin(self, exchange: Exchange, client: str) -> InspectedExchange:
        """Add a new exchange."""
        self._begun += 1
        found = InspectedExchange(str(self._begun), exchange, client, self)
        self.exchanges[found.id] = found
        if len(self.exchanges) > MAX_EXCHANGES:
            oldest = self.exchanges.pop(next(iter(self.exchanges)))
            oldest.cut()
            self.left += oldest.size
        return found

    def make_room(self) -> None:
        """Free memory by deleting the oldest completed exchanges and, if necessary, cutting the largest open ones."""
        for id, exchange in list(self.exchanges.items()):
            if self.left >= 0:
                return
            if exchange.record is not None:
                del self.exchanges[id]
                self.left += exchange.size
        for exchange in sorted(self.exchanges.values(), key=lambda one: one.size, reverse=True):
            if self.left >= 0:
                return
            exchange.cut()

    def take_over(self, before: "Ring") -> None:
        """Take over the exchanges from the ring that this one replaces."""
        self.exchanges = {**before.exchanges, **self.exchanges}
        self.left -= before.size - before.left
        self._begun = max(self._begun, before._begun)  # noqa: SLF001  same class

    # --- queries

    def versions(self) -> dict[str, int]:
        """Return the number of items of each exchange by id, oldest first. If the number has changed, so has the
        exchange.
        """
        return {id: len(exchange) for id, exchange in self.exchanges.items()}

    def summary(self, id: str) -> Json:
        """Return an exchange's list entry. Raises KeyError."""
        return self.exchanges[id].summary()

    def lines(self, id: str) -> Iterator[Line]:
        """Return an exchange's lines. Raises KeyError."""
        return self.exchanges[id].lines()


DISCARDING_RING: Final = Ring(maxsize, contents=False)
"""A sink that replaces the ring once an exchange has been cut."""


# --- items as lines --------------------------------------------------------------------------------------------------


def as_lines(items: Sequence[Item], began: float) -> Iterator[Line]:
    """Yield the lines that a recording would contain. Parsers are run again, because their states are not stored."""
    parsers: list[statemachine.Parser | NullParser] = []
    waits, seconds = "", 0.0
    times = _times(items, began)
    for item, seconds in zip(items, times, strict=True):
        match item:
            case bytes():
                line = decode(item)
                yield {**line, "request": lines.strip_secrets(line["request"])}
            case Attempt():
                yield lines.attempt_line(item.seconds, item.request)
            case MadeParser():
                parsers.append(NullParser() if item.options is None else item.options.parser())
                yield item.line
            case Closed():
                parsers[item.number].close(item.reason)
                yield lines.close_line(item.seconds, item.number, item.reason, "closed", item.events)
            case (int() as number, str() as text) as fed:
                parser = parsers[number]
                events = parser.feed(text)
                yield lines.text_line(seconds, fed, events, state=_state(parser), held=parser.held)
            case (float(), told, data, waits_for):
                if waits_for != waits:
                    waits = waits_for
                    yield lines.waits_line(seconds, waits)
                if told:
                    yield lines.sent_line(seconds, told, data)
            case dict():
                yield item
            case _:
                raise AssertionError(item)


def _state(parser: statemachine.Parser | NullParser) -> str:
    return parser.state.value if isinstance(parser, statemachine.Parser) else "text"


def _times(items: Sequence[Item], began: float) -> list[float]:
    """Return the time of each item. The time of fed text is that of the next event that was sent to the client."""
    found: list[float] = []
    now = 0.0
    for item in reversed(items):
        match item:
            case (float() as at, _, _, _):
                now = round(at - began, 6)
            case Attempt() | Closed():
                now = item.seconds
            case dict():
                now = item.get("seconds", now)
            case _:
                pass
        found.append(now)
    return found[::-1]
