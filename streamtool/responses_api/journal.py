"""The journal of a background response: the inputs of its exchange, from which another process can continue it.

The exchange records its inputs (`exchange.inputs`). The store contains the request, without the client's keys; about
once a second, the new inputs are added, compressed. If the process dies, the next process that the client asks for the
response repeats the inputs. To its exchange, the upstream has died after the last input, so the next attempt continues
the reply as after any other failure of an upstream.

Only one process continues a response: the one that first claims the current lease, in a counter of the store. It needs
the keys in the client's request, because keys are not stored.
"""

import hashlib
import logging
import re
import struct
import time
import zlib
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any, Final

from attrs import frozen

from streamtool.core.errors import RequestError, StreamtoolError, UpstreamError
from streamtool.exchange.inputs import ExchangeInput, InputStep, LongData, RecordedExchange, UpstreamHead, repeat
from streamtool.exchange.interfaces import Services
from streamtool.protocols.interfaces import ClientProtocol
from streamtool.protocols.responses.background import events_key, journal_key, lease_key
from streamtool.protocols.responses.response import contains_tool_keys
from streamtool.protocols.shared import wire as codec
from streamtool.settings import Settings, StoreSettings
from streamtool.store.replies import ClientStoreView

_log = logging.getLogger("streamtool")

HOSTED: Final = -1
"""The generation of a response that is never continued, because this server executes its tools."""
_ATTEMPT, _HEAD, _DATA, _LONG, _END, _FAILURE = range(6)
"""The kinds of inputs."""
_FRAME: Final = struct.Struct(">BI")
"""Kind and size of an input."""
_LEVEL: Final = 1
"""Compression level. Events are so repetitive that higher levels save little."""
_SECRET: Final = re.compile(rb"auth|key|token|secret|cookie|credential|session|signature|jwt|password")
"""Matches the names of headers that are not stored: those of keys, and of what reverse proxies add."""
_DIED: Final = "the server that was generating this response has stopped"


@frozen
class Lease:
    """The time until which the process that creates a response is presumed alive."""

    until: float
    generation: int
    """Number of processes that have created the response before, or `HOSTED`."""

    def write(self) -> bytes:
        return b"%f %d" % (self.until, self.generation)


def read_lease(memory: ClientStoreView, id: str) -> Lease:
    """Return the lease of a response; one that has never been stored has expired. Raises StoreError."""
    return read_lease_value(memory.demand(lease_key(id)) or b"0 0")


def read_lease_value(value: bytes) -> Lease:
    """Return the lease from its value in the store."""
    until, generation = value.split()
    return Lease(float(until), int(generation))


@frozen
class JournaledRequest:
    """The request for a background response, and the values that its exchange would otherwise generate."""

    seed: str
    """A random value, from which all ids are derived."""
    now: int
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes

    @classmethod
    def of(cls, scope: Any, body: bytes, seed: str) -> "JournaledRequest":
        """Return the request with this ASGI scope and body."""
        headers = tuple((name, value) for name, value in scope["headers"] if not _SECRET.search(name))
        return cls(seed, int(time.time()), scope["path"], scope.get("query_string", b""), headers, body)

    @classmethod
    def may_store(cls, raw: Any) -> bool:
        """Return whether a request may be stored. It may not if its tools contain keys; another process then cannot
        continue its response.
        """
        if contains_tool_keys(raw.get("tools") or ()):
            _log.info("a background response cannot be continued by another process: its tools contain keys")
            return False
        return True

    def new_ids(self) -> Callable[[str], str]:
        """Return a function that returns a new id with a prefix, as in all other processes."""
        numbers = count()
        return lambda prefix: prefix + hashlib.sha256(f"{self.seed} {next(numbers)}".encode()).hexdigest()[:24]

    def exchange(
        self,
        settings: Settings,
        wire: ClientProtocol,
        scope: Any,
        *,
        clock: Callable[[], float],
        services: Services,
        client: str,
    ) -> "JournaledExchange":
        """Return an exchange for the request. Raises RequestError if it cannot be served."""
        return JournaledExchange(
            self, settings, wire, self.body, scope["headers"], clock=clock, services=services, identity=client
        )

    def scope(self, asking: Any) -> dict[str, Any]:
        """Return the ASGI scope of the request, with the keys of the request that now asks for the response."""
        keys = [(name, value) for name, value in asking["headers"] if _SECRET.search(name)]
        path = {"path": self.path, "raw_path": self.path.encode(), "query_string": self.query}
        return {**asking, "method": "POST", "headers": [*self.headers, *keys], **path}

    def write(self) -> bytes:
        """Return the request as a value for the store."""
        headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in self.headers]
        fields = [self.seed, self.now, self.path, self.query.decode("latin-1"), headers]
        return codec.encode(fields) + b"\n" + self.body

    @classmethod
    def read(cls, value: bytes) -> "JournaledRequest":
        """Return the request from its value in the store."""
        fields, _, body = value.partition(b"\n")
        seed, now, path, query, headers = codec.decode(fields)
        pairs = tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in headers)
        return cls(seed, now, path, query.encode("latin-1"), pairs, body)


class JournaledExchange(RecordedExchange):
    """An exchange whose inputs are stored."""

    __slots__ = ("_pieces", "asked", "generation", "stale")

    def __init__(self, asked: JournaledRequest, *args: Any, **given: Any) -> None:
        super().__init__(*args, new_id=asked.new_ids(), now=asked.now, time=time.monotonic, **given)
        self.log.journaled = 0
        self.asked = asked
        self.generation = 0
        """Number of processes that have created the response before."""
        self.stale = 0
        """Number of pieces that the previous process has stored. The first piece of this process replaces them."""
        self._pieces = 0
        """Number of pieces that this process has stored."""

    def store(self, memory: ClientStoreView, id: str, piece: bytes) -> None:
        """Store the next piece of the journal."""
        memory.remember(journal_key(id, self._pieces), piece)
        self._pieces += 1
        for old in range(self._pieces, self.stale):
            memory.forget(journal_key(id, old))
        self.stale = 0

    def forget(self, memory: ClientStoreView, id: str) -> None:
        """Delete the journal."""
        for key in (journal_key(id), *(journal_key(id, piece) for piece in range(max(self._pieces, self.stale)))):
            memory.forget(key)


def pack(inputs: Iterable[ExchangeInput]) -> bytes:
    """Return inputs as one piece of a journal."""
    return zlib.compress(b"".join(map(_frame, inputs)), _LEVEL)


def _frame(one: ExchangeInput) -> bytes:
    match one:
        case bytes():
            kind, value = _DATA, one
        case LongData(data=data):
            kind, value = _LONG, data
        case UpstreamHead(status=status, headers=headers):
            named = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
            kind, value = _HEAD, codec.encode([status, named])
        case InputStep.REQUEST:
            kind, value = _ATTEMPT, b""
        case InputStep.CLOSE:
            kind, value = _END, b""
        case InputStep():  # the process that continues the response announces it itself
            return b""
        case StreamtoolError():
            kind, value = _FAILURE, _write_error(one)
    return _FRAME.pack(kind, len(value)) + value


def unpack(piece: bytes) -> list[ExchangeInput]:
    """Return the inputs in one piece of a journal."""
    data, at = zlib.decompress(piece), 0
    inputs: list[ExchangeInput] = []
    while at < len(data):
        kind, size = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        inputs.append(_input(kind, data[at : at + size]))
        at += size
    return inputs


def _input(kind: int, value: bytes) -> ExchangeInput:
    if kind == _DATA:
        return value
    if kind == _LONG:
        return LongData(value)
    if kind == _HEAD:
        status, headers = codec.decode(value)
        return UpstreamHead(status, tuple([(name.encode("latin-1"), text.encode("latin-1")) for name, text in headers]))
    if kind == _FAILURE:
        return _read_error(value)
    return InputStep.REQUEST if kind == _ATTEMPT else InputStep.CLOSE


def stored_pieces(memory: ClientStoreView, id: str) -> tuple[int, bool] | None:
    """Return the number of stored event pieces and whether they are complete, or None if none are stored. Raises
    StoreError.
    """
    found = memory.demand(events_key(id))
    if found is None:
        return None
    pieces, over = found.split()
    return int(pieces), over == b"1"


@frozen
class Continued:
    """The part of a response that another process has created."""

    begun: bytes
    """The events that announce the response."""
    published: bytes
    """The events after these that are in the store."""
    rest: bytes
    """The events that are not in the store yet."""
    pieces: int
    """Number of pieces in which events are stored."""
    complete: bool
    """Whether the rest ends the response."""


@frozen
class Claim:
    """The exclusive right to continue a response, and its journal."""

    asked: JournaledRequest
    inputs: list[ExchangeInput]
    generation: int
    pieces: int
    """Number of pieces that the journal consists of."""


def claim(memory: ClientStoreView, id: str, settings: StoreSettings) -> Claim | None:
    """Claim a response whose process has stopped. Return None if it cannot be continued, or another process has claimed
    it. Raises StoreError.
    """
    lease, asked = read_lease(memory, id), memory.demand(journal_key(id))
    if asked is None or lease.generation == HOSTED or lease.until > time.time():
        return None
    if memory.store.count(f"{memory.client} claim {id} {lease.generation}", 1, settings.seconds) != 1:
        return None
    generation = lease.generation + 1
    memory.remember(lease_key(id), Lease(time.time() + settings.lease, generation).write())
    inputs: list[ExchangeInput] = []
    pieces = 0
    while (piece := memory.demand(journal_key(id, pieces))) is not None:
        inputs += unpack(piece)
        pieces += 1
    return Claim(JournaledRequest.read(asked), inputs, generation, pieces)


def give_up(memory: ClientStoreView, id: str, found: Claim) -> None:
    """Record that a response cannot be continued, and delete its journal."""
    memory.remember(lease_key(id), Lease(0, found.generation).write())
    forget_journal(memory, id)


def forget_journal(memory: ClientStoreView, id: str) -> None:
    """Delete the journal of a response whose process has stopped."""
    memory.forget(journal_key(id))
    for piece in count():
        if memory.demand(journal_key(id, piece)) is None:
            return
        memory.forget(journal_key(id, piece))


def inputs_to_repeat(
    new_exchange: Callable[[], JournaledExchange], inputs: list[ExchangeInput], *, visible: bool
) -> list[ExchangeInput]:
    """Return the inputs that an exchange repeats before it continues the response: all of them and the death of the
    upstream, or those before the last attempt if it has written nothing. If the reply cannot be continued and none of
    it is `visible`, no inputs remain, and the response begins again.
    """
    exchange, last, before, shown = new_exchange(), 0, 0, False
    exchange.announce()
    for number, one in enumerate(inputs):
        if one is InputStep.REQUEST:
            last, before, shown = number, exchange.written, False
        shown = bool(repeat(exchange, [one])) or shown
    if exchange.done or exchange.retry or not inputs:
        return inputs
    if exchange.written == before and not shown:
        return inputs[:last]
    died = UpstreamError(_DIED)
    exchange.fail(died)
    if exchange.done and not visible:
        return []
    return [*inputs, died]


def repeat_response(
    new_exchange: Callable[[], JournaledExchange], found: Claim, memory: ClientStoreView, id: str
) -> tuple[JournaledExchange, Continued]:
    """Return an exchange that continues a response, and the events of the response so far. Raises StreamtoolError if
    the exchange differs from that of the process that has stopped, or cannot be repeated.
    """
    pieces, _ = stored_pieces(memory, id) or (0, False)
    published = b"".join(memory.demand(events_key(id, piece)) or b"" for piece in range(pieces))
    inputs = inputs_to_repeat(new_exchange, found.inputs, visible=pieces > 0)
    exchange = new_exchange()
    begun = exchange.announce()
    events = begun + repeat(exchange, inputs)
    if not events.startswith(published):
        raise StreamtoolError("the response cannot be repeated: the settings or the upstream differ")
    if exchange.done:
        exchange.remember()
    exchange.generation, exchange.stale = found.generation, found.pieces
    size = max(len(published), len(begun))
    return exchange, Continued(begun, events[len(begun) : size], events[size:], pieces, exchange.done)


def _write_error(error: StreamtoolError) -> bytes:
    kind = 2 if isinstance(error, UpstreamError) else 1 if isinstance(error, RequestError) else 0
    return codec.encode([kind, error.status, error.message, error.param, error.code, error.quotes])


def _read_error(value: bytes) -> StreamtoolError:
    kind, status, message, param, code, quotes = codec.decode(value)
    error = (StreamtoolError, RequestError, UpstreamError)[kind](message, param=param, code=code)
    error.status, error.quotes = status, quotes
    return error
