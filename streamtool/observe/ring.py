"""An in-memory store of recent exchanges for the inspector, with a maximum size.

Only the inputs of an exchange are stored (`exchange.inputs`). When the exchange is viewed, it is repeated with a
listener, which returns the lines that a recording would contain (`observe.lines`). A viewed exchange that is still open
continues to be repeated, so each view processes only the new inputs. If the repetition does not have the exchange's
result, the last line reports it. Figures are in docs/performance.md.
"""

from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from threading import Lock, RLock
from time import monotonic, time
from typing import Any, Final

from streamtool.core.json_value import Json
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.inputs import InputLog, RecordedExchange, RepeatedExchange, repeat
from streamtool.exchange.record import Record
from streamtool.observe import lines
from streamtool.observe.line_listener import LineListener
from streamtool.observe.lines import Line
from streamtool.observe.summary import ended_entry, open_entry, short_call

MAX_EXCHANGES: Final = 1000
"""Maximum number of exchanges, regardless of their size."""
MAX_REPETITIONS: Final = 2
"""Maximum number of repetitions of open exchanges that continue."""
REPETITION_SIZE: Final = 8
"""Approximate size of a repetition, as a multiple of the size of the inputs."""


ExchangeResult = tuple[Any, ...]
"""The facts about an exchange that ended that its repetition must have in common with it."""

_RESULT: Final = attrgetter(
    *("attempts", "details", "unmet", "calls", "formats", "repairs", "discarded", "refused", "quoted", "repeated"),
    *("incomplete", "reason", "usage", "held", "found", "forced", "resumed", "status", "done"),
)


def result_of(exchange: Exchange, record: Record) -> ExchangeResult:
    """Return the result of an exchange with this record."""
    return exchange.written, exchange.first_call, *_RESULT(record)


class Repetition:
    """The repetition of an exchange, and its lines so far. Call `release` at the end: the collector of a server does
    not search for cycles among objects that have been used for long.
    """

    __slots__ = ("_began", "_done", "_exchange", "_listener", "_log", "_seconds", "_why", "lines")

    def __init__(self, log: InputLog, began: float) -> None:
        self.lines: list[Line] = []
        self._seconds = [0.0]
        """The time since the request, in a list that the exchange and the listener read."""
        self._listener = LineListener(self.lines.append, partial(self._seconds.__getitem__, 0))
        self._log = log
        self._began = began
        self._done = 0
        """Number of inputs that have been repeated."""
        self._why = ""
        self._exchange: RepeatedExchange | None = None

    def catch_up(self) -> None:
        """Repeat the inputs that have been added."""
        log = self._log
        count = len(log)
        try:
            if self._exchange is None:
                clock = partial(self._seconds.__getitem__, 0)
                self._exchange = RepeatedExchange(log, clock=clock, listener=self._listener)
            for one, at in log.since(self._done, count) if not self._why else ():
                self._seconds[0] = round(max(at - self._began, 0.0), 6)
                repeat(self._exchange, (one,))
        except Exception as error:  # noqa: BLE001  the rest cannot be shown, whatever the reason is
            self._why = type(error).__name__
        self._done = count

    def differences(self, result: ExchangeResult) -> list[Line]:
        """Return a line if the repetition of an exchange that has ended with this result has another one."""
        why, exchange = self._why, self._exchange
        if not why and exchange is not None and result_of(exchange, exchange.record()) != result:
            why = "another result"
        return [lines.differs_line(self._seconds[0], why)] if why else []

    def release(self) -> None:
        """Break all cycles."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.release()
        self._listener.release()


class InspectedExchange:
    """One exchange in the ring."""

    __slots__ = (
        "__weakref__",
        "_began",
        "_called",
        "_cut",
        "_first",
        "_log",
        "_result",
        "_ring",
        "at",
        "client",
        "contents",
        "id",
        "record",
        "size",
    )

    def __init__(self, id: str, exchange: RecordedExchange, client: str, ring: "Ring") -> None:
        self.id = id
        self.client = client
        self.at = time()
        """Start of the exchange, in seconds since 1970."""
        self._ring: Ring | None = ring
        self.contents = ring.contents
        self._began = monotonic()
        self._first = lines.exchange_line(exchange, None)
        self._log = exchange.log
        self._log.watch(self.settle)
        self._cut: Line | None = None
        self._called = ""
        """The first call that the client received, in one short line, or ""."""
        self.size = 0
        """Approximate size in bytes, as deducted from the ring's."""
        self._result: ExchangeResult = ()
        self.record: Record | None = None
        """The record of the exchange; None while it is open."""

    def settle(self) -> None:
        """Deduct the growth of the log from the room that is left."""
        ring = self._ring
        if ring is not None:
            ring.settle(self)

    def end(self, exchange: Exchange, record: Record) -> None:
        """Store the record of the completed exchange and its result."""
        if exchange.first_call is not None:
            self._called = short_call("(".join(exchange.first_call))
        self._result = result_of(exchange, record)
        self.settle()  # while it is open: if it is too large on its own, it is cut, and its record is kept
        self.record = record
        if self._ring is not None:
            self._ring.drop_repetition(self)
            self.settle()

    def move_to(self, ring: "Ring") -> None:
        """Move the exchange to another ring."""
        if self._ring is not None:
            self._ring.drop_repetition(self)
            self._ring = ring

    # --- contents

    def cut(self) -> None:
        """Free memory by discarding all inputs, and those that follow. The record is still added when the exchange
        ends.
        """
        ring, self._ring = self._ring, None
        self._cut = lines.cut_line(round(monotonic() - self._began, 6))
        self._log.stop()
        if ring is not None:
            ring.drop_repetition(self)
            ring.resize(self, self._log.origin.size)

    @property
    def inputs_size(self) -> int:
        """Approximate size of the inputs, in bytes."""
        return self._log.size

    def differences(self, repetition: Repetition) -> list[Line]:
        """Return a line if the complete repetition differs from the exchange, once that has ended."""
        return [] if self.record is None else repetition.differences(self._result)

    @property
    def is_final(self) -> bool:
        """Whether no more inputs will be added."""
        return self.record is not None or self._cut is not None

    def __len__(self) -> int:
        return 1 + len(self._log) + (self._cut is not None) + (self.record is not None)

    def summary(self) -> Json:
        """Return the exchange's list entry."""
        known = open_entry(self._first, id=self.id, at=self.at, client=self.client)
        if self.record is not None:
            known["called"] = self._called
            return ended_entry(known, lines.record_line(self.record, contents=self.contents))
        return {
            **known,
            "attempts": self._log.attempts,
            "seconds": round(monotonic() - self._began, 6),
        }

    def lines(self, repeated: "Callable[[InspectedExchange], tuple[list[Line], list[Line]]]") -> Iterator[Line]:
        """Yield the lines that a recording of the exchange would contain. `repeated` repeats the exchange, and returns
        its lines and those about differences.
        """
        asked = self._log.origin.received().conversation
        yield {**self._first, "request": lines.strip_secrets(asked.raw)}
        record = self.record
        if self._cut is None:
            found, differences = repeated(self)
            yield from found
            if record is not None and self._cut is None:  # a cut during the repetition removes inputs
                yield from differences
        if self._cut is not None:
            yield self._cut
        if record is not None:
            yield lines.record_line(record)

    def repetition(self) -> Repetition:
        """Return a new repetition."""
        return Repetition(self._log, self._began)


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
        self._views = Lock()
        """Held during a repetition, which takes a while: views are created in threads."""
        self._sizes = RLock()
        """Held while sizes are changed."""
        self._repetitions: dict[InspectedExchange, Repetition] = {}
        """The repetitions of open exchanges, which continue; the last one that was viewed is the last."""

    def begin(self, exchange: RecordedExchange, client: str) -> InspectedExchange:
        """Add a new exchange."""
        with self._sizes:
            self._begun += 1
            found = InspectedExchange(str(self._begun), exchange, client, self)
            self.exchanges[found.id] = found
            self.settle(found)
            if len(self.exchanges) > MAX_EXCHANGES:
                oldest = self.exchanges[next(iter(self.exchanges))]
                oldest.cut()
                self._delete(oldest)
            return found

    def settle(self, exchange: InspectedExchange) -> None:
        """Deduct the growth of an exchange from the room that is left, and free memory if necessary."""
        with self._sizes:
            repetition = REPETITION_SIZE if exchange in self._repetitions else 0
            self.resize(exchange, exchange.inputs_size * (1 + repetition))
            if self.left < 0:
                self.make_room()

    def resize(self, exchange: InspectedExchange, size: int) -> None:
        """Set the size of an exchange."""
        with self._sizes:
            if self.exchanges.get(exchange.id) is exchange:
                self.left -= size - exchange.size
                exchange.size = size

    def make_room(self) -> None:
        """Free memory by dropping repetitions, deleting the oldest completed exchanges and, if necessary, cutting the
        largest open ones.
        """
        with self._sizes:
            for exchange in list(self._repetitions):
                self.drop_repetition(exchange)
                self.resize(exchange, exchange.inputs_size)
            for exchange in list(self.exchanges.values()):
                if self.left >= 0:
                    return
                if exchange.record is not None:
                    self._delete(exchange)
            for exchange in sorted(self.exchanges.values(), key=lambda one: one.size, reverse=True):
                if self.left >= 0:
                    return
                exchange.cut()

    def _delete(self, exchange: InspectedExchange) -> None:
        if self.exchanges.pop(exchange.id, None) is not None:
            self.left += exchange.size

    def drop_repetition(self, exchange: InspectedExchange) -> None:
        """Drop the repetition of an exchange, if there is one."""
        found = self._repetitions.pop(exchange, None)
        if found is not None:
            found.release()

    def add_exchanges_of(self, before: "Ring") -> None:
        """Take over the exchanges of the ring that this one replaces."""
        with before._sizes, self._sizes:  # noqa: SLF001  same class
            for exchange in before.exchanges.values():
                exchange.move_to(self)
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
        return self.exchanges[id].lines(self._repeat)

    def _repeat(self, exchange: InspectedExchange) -> tuple[list[Line], list[Line]]:
        """Return the lines of an exchange, from all inputs so far, and those about differences."""
        with self._views:
            found = self._repetitions.pop(exchange, None) or exchange.repetition()
            ended = exchange.record is not None
            found.catch_up()
            result = found.lines[:], exchange.differences(found) if ended else []
            if ended:
                found.release()
                return result
            self._repetitions[exchange] = found
            while len(self._repetitions) > MAX_REPETITIONS:
                oldest = next(iter(self._repetitions))
                self.drop_repetition(oldest)
                oldest.settle()
        if exchange.is_final:  # meanwhile
            self.drop_repetition(exchange)
        exchange.settle()
        return result
