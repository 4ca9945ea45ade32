"""The exchanges that the inspector shows: the last ones, in memory, within bounds.

While nobody looks, an exchange costs two calls and two appends for each delta (docs/performance.md has the figures).
The clock is the system's own, since asking the event loop for its time would cost more. What happened is kept as it was
told; whoever looks has it made into the lines of a recording (`observe.lines`).
"""

from collections.abc import Callable, Iterator, Sequence
from sys import maxsize
from time import monotonic, time
from typing import Final

from attrs import evolve, frozen

import statemachine
from streamtool.conversation import Json
from streamtool.exchange import Exchange, Fed, ObservedParser, ParserOptions, Record, UpstreamRequest
from streamtool.inspector.summary import ended, opened
from streamtool.observe import lines
from streamtool.observe.lines import Line
from streamtool.policy import NullParser
from streamtool.protocols.wire import decode, encode
from streamtool.reply import ReplyEvent

MOST: Final = 1000
"""Exchanges that are kept, however small they are."""
COST: Final = 700
"""Bytes that a delta takes beside its text, about."""

Sent = tuple[float, Sequence[ReplyEvent], bytes, str]
"""When the client got which events in which bytes; or, if it got none, what it waits for."""


@frozen
class Attempt:
    """What the upstream was sent, and when."""

    seconds: float
    request: UpstreamRequest


@frozen
class MadeParser:
    """A parser that was made."""

    line: Line
    options: ParserOptions | None


@frozen
class Closed:
    """A parser that was closed."""

    seconds: float
    number: int
    reason: str | None
    events: Sequence[statemachine.Event]


Item = bytes | Line | Fed | Sent | Attempt | MadeParser | Closed
"""What is kept: bytes are a line that was encoded."""


class InspectedExchange:
    """One exchange: a listener that keeps what it is told."""

    __slots__ = (
        "_began", "_items", "_parsers", "_ring", "_take", "at", "client", "contents", "fed", "id", "record", "size",
    )  # fmt: skip

    def __init__(self, id: str, exchange: Exchange, client: str, ring: "Ring") -> None:
        self.id = id
        self.client = client
        self.at = time()
        """When it began, in seconds since 1970."""
        self._ring = ring
        self.contents = ring.contents
        self._began = monotonic()
        self._items: list[Item] = [encode(lines.exchange_line(exchange, exchange.conversation.raw))]
        self._parsers = lines.ParserLines()
        self._take: Callable[[Item], object] = self._items.append
        self.fed: Callable[[Fed], object] = self._items.append
        self.size = len(self._first)
        """Bytes that it takes, about."""
        ring.left -= self.size
        self.record: Record | None = None
        """None: it is open."""

    # --- what an exchange tells

    def attempt(self, request: UpstreamRequest, /) -> None:
        """An attempt begins."""
        size = COST + len(request.body)
        self.size += size
        self._ring.left -= size
        self._take(Attempt(self._now(), evolve(request, headers=(), conversation=None)))

    def answered(self, status: int, /) -> None:
        """The upstream has answered."""
        self._take(lines.answer_line(self._now(), status))

    def parser(self, choice: int, options: ParserOptions | None, parser: ObservedParser, /) -> int:  # noqa: ARG002  it is fed again
        """A parser was made."""
        line = self._parsers.line(self._now(), choice, options)
        self._take(MadeParser(line, options))
        return int(line["parser"])

    def closed(self, number: int, reason: str | None, events: Sequence[statemachine.Event], /) -> None:
        """A parser was closed."""
        self._take(Closed(self._now(), number, reason, events))

    def quoted(self, choice: int, why: str, /) -> None:
        """A call was a quotation."""
        self._take(lines.quotation_line(self._now(), choice, why))

    def sent(self, events: Sequence[ReplyEvent], data: bytes, waits_for: str, /) -> None:
        """The client got events, or has to wait."""
        size = COST + len(data)
        self.size += size
        ring = self._ring
        ring.left -= size
        self._take((monotonic(), events, data, waits_for))
        if ring.left < 0:
            ring.make_room()

    def end(self, record: Record) -> None:
        """It is over."""
        self.record = record
        self._items.append(lines.record_line(record))
        if self._ring is NOWHERE:  # what came after the cut was counted, and not kept
            self.size = len(self._first)

    # --- what is kept

    def cut(self) -> None:
        """There is no room for it: only its beginning is kept, and its end."""
        ring, self._ring = self._ring, NOWHERE
        self._items = [self._items[0], lines.cut_line(self._now())]
        self._take = self.fed = _ignore
        ring.left += self.size - len(self._first)
        self.size = len(self._first)

    def __len__(self) -> int:
        return len(self._items)

    def summary(self) -> Json:
        """What the list shows of it."""
        known = opened(decode(self._first), id=self.id, at=self.at, client=self.client)
        if self.record is not None:
            return ended(known, lines.record_line(self.record, contents=self.contents))
        attempts = [item.request.attempt for item in self._items if isinstance(item, Attempt)]
        return {**known, "attempts": max(attempts, default=0), "seconds": self._now()}

    @property
    def _first(self) -> bytes:
        first = self._items[0]
        assert isinstance(first, bytes)  # noqa: S101  it is made so
        return first

    def lines(self) -> Iterator[Line]:
        """All of it, as a recording has it."""
        return as_lines(list(self._items), self._began)

    def _now(self) -> float:
        return round(monotonic() - self._began, 6)


def _ignore(_: Item) -> None:
    """Nobody keeps it."""


class Ring:
    """The last exchanges of one process, in `size` bytes, about. `contents`: summaries may quote what they hold."""

    def __init__(self, size: int, *, contents: bool) -> None:
        self.size = size
        self.contents = contents
        self.left = size
        """Bytes until room has to be made."""
        self._begun = 0
        self.exchanges: dict[str, InspectedExchange] = {}
        """By their ids, the oldest first."""

    def begin(self, exchange: Exchange, client: str) -> InspectedExchange:
        """An exchange begins."""
        self._begun += 1
        found = InspectedExchange(str(self._begun), exchange, client, self)
        self.exchanges[found.id] = found
        if len(self.exchanges) > MOST:
            oldest = self.exchanges.pop(next(iter(self.exchanges)))
            oldest.cut()
            self.left += oldest.size
        return found

    def make_room(self) -> None:
        """Let go of the oldest that are over, then of the largest that are open, until what is kept has room."""
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
        """Go on with what another one has kept, whose place this one takes."""
        self.exchanges = {**before.exchanges, **self.exchanges}
        self.left -= before.size - before.left
        self._begun = max(self._begun, before._begun)  # noqa: SLF001  the two belong together

    # --- for who looks

    def versions(self) -> dict[str, int]:
        """The exchanges by their ids, the oldest first; another number says that there is more of one."""
        return {id: len(exchange) for id, exchange in self.exchanges.items()}

    def summary(self, id: str) -> Json:
        """What the list shows of it. Raises KeyError."""
        return self.exchanges[id].summary()

    def lines(self, id: str) -> Iterator[Line]:
        """All of it. Raises KeyError."""
        return self.exchanges[id].lines()


NOWHERE: Final = Ring(maxsize, contents=False)
"""Where an exchange that was cut tells what is not kept any more."""


# --- items as lines --------------------------------------------------------------------------------------------------


def as_lines(items: Sequence[Item], began: float) -> Iterator[Line]:
    """The lines that a recording would have. Parsers are fed again, since nobody has noted their states."""
    parsers: list[statemachine.Parser | NullParser] = []
    waits, seconds = "", 0.0
    times = _times(items, began)
    for item, seconds in zip(items, times, strict=True):
        match item:
            case bytes():
                line = decode(item)
                yield {**line, "request": lines.without_secrets(line["request"])}
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
    """When each happened: what was fed has the time at which it was told what the client got of it."""
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
