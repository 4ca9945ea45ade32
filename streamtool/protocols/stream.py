"""What every reader of an upstream's reply and every writer of a client's stream does, whatever the protocol.

`StreamReader` takes the upstream's bytes apart: `BodySniffer` says what they are, each event is decoded once, what is
damaged is read as far as it goes, and each way in which an answer can end too early becomes one `ReplyFailure`. What an
object of the protocol means is the business of its package, which fills in `_read`, `_document` and `_end`.

`StreamWriter` hands each reply event to one method of its protocol. Pieces of text and of arguments go first, because
there are thousands of them; everything else takes the longer way through `_other`.

Nothing in here raises on what an upstream sends.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, assert_never

import msgspec
from attrs import evolve

from streamtool import sse
from streamtool.errors import StreamtoolError, UpstreamError
from streamtool.protocols import wire
from streamtool.protocols.body_sniffer import BodySniffer, broken_off, unreadable
from streamtool.reply import (
    Reason,
    ReplyArgumentsDelta,
    ReplyCall,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyEnd,
    ReplyEvent,
    ReplyFailure,
    ReplyFinish,
    ReplyPart,
    ReplyReasoningDelta,
    ReplyStart,
    ReplyText,
    ReplyTextDelta,
    Usage,
    UsageReport,
)

Json = Any  # a decoded JSON value
Fields = dict[str, Json]
Events = list[ReplyEvent]
Out = list[bytes]

DONE: Final = b"[DONE]"
"""The data of a stream's last event in OpenAI's protocols, and in many that imitate others."""
KEEPALIVE: Final = sse.comment("keep-alive")
"""What may be sent while the upstream is silent, before the reply has begun as well."""
BREAK: Final = b"\n\n"
"""What ends an event, also one that was cut."""
STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
"""Headers of a stream. `connection` is the server's business, and forbidden in HTTP/2."""
COMPLETE_HEADERS: Final = ((b"content-type", b"application/json"),)
"""Headers of a complete reply and of an error; the length is added by whoever sends it."""

_SPACE_HELD: Final = 4096  # characters of white space after a call that may wait
_decode: Final = wire.decode
_strict: Final = msgspec.json.Encoder().encode


class StreamReader:
    """Reads one reply; the base of each protocol's `ReplyReader`.

    `ended` says that nothing more will come out.
    """

    __slots__ = ("_answer", "_counts", "ended")

    def __init__(self) -> None:
        self.ended = False
        self._counts: Fields | None = None  # of tokens, as the upstream writes them; many do on every chunk
        self._answer = BodySniffer(final=(DONE,))

    # --- what a protocol fills in

    def _read(self, fields: Fields, event: sse.Event | None, events: Events) -> None:
        """One object of the answer, and the event that it came in, if it came in one."""
        raise NotImplementedError

    def _document(self, value: Json, events: Events) -> None:
        """The whole answer, where it is one JSON document instead of a stream."""
        raise NotImplementedError

    def _end(self, events: Events, *, marked: bool) -> None:
        """The answer is over; `marked` says that the upstream said so itself."""
        raise NotImplementedError

    def _usage(self, counts: Fields) -> Usage:
        """What the upstream's counts of tokens mean."""
        raise NotImplementedError

    # --- what all share

    @property
    def usage(self) -> Usage | None:
        """The last report so far, also when the reply never ends."""
        return None if self._counts is None else self._usage(self._counts)

    def feed(self, data: bytes) -> Events:
        """What `data` says."""
        events: Events = []
        if self.ended:
            return events
        answer = self._answer
        for event in answer.feed(data):
            self._event(event, events)
        if answer.error is not None:
            self._fail(answer.error, events)
        return events

    def close(self) -> Events:
        """What the end of the answer says; a reply that broke off ends in a `ReplyFailure`."""
        events: Events = []
        if not self.ended:
            self._last(events)
        if not self.ended:
            self._end(events, marked=False)
        return events

    def _last(self, events: Events) -> None:
        """What still stands in the answer at its end: an event that was not closed, or a document."""
        answer = self._answer
        for event in answer.close():
            self._event(event, events)
        if answer.error is not None:
            self._fail(answer.error, events)
        body = answer.body
        if body is None or self.ended:
            return
        try:
            value = wire.decode_tolerant(body)
        except ValueError:
            self._fail(broken_off(), events)
            return
        self._document(first(value), events)

    def _event(self, event: sse.Event, events: Events) -> None:
        if self.ended:
            return
        try:
            value = _decode(event.data)
        except wire.UNREADABLE:
            self._odd(event, events)
            return
        if type(value) is dict and event.name != "error":
            self._read(value, event, events)
        else:
            self._unusual(value, event, events)

    def _unusual(self, value: Json, event: sse.Event, events: Events) -> None:
        """The data of an error, of a list around an object, of damaged JSON: never forwarded as it came."""
        value = first(value)
        if not isinstance(value, dict):
            return  # which says nothing
        if event.name == "error" and not value.get("error"):
            self._fail(wire.upstream_error(value), events)
        else:
            self._read(value, evolve(event, raw=None), events)

    def _odd(self, event: sse.Event, events: Events) -> None:
        """An event that is not strict JSON: the end mark, damaged JSON, or something that nobody defined."""
        data = event.data.strip()
        if data.startswith(DONE):
            self._end(events, marked=True)
            return
        try:
            value = wire.decode_tolerant(data)
        except ValueError:
            if data[:1] == b"{":
                self._fail(unreadable(), events)
            elif event.name == "error":
                self._fail(wire.upstream_error(data.decode("utf-8", "replace")), events)
        else:
            self._unusual(value, event, events)

    def _done(self, events: Events) -> None:
        """The reply is whole, and its events were said."""
        usage = self.usage
        if usage is not None:
            events.append(UsageReport(usage))
        events.append(ReplyEnd())
        self.ended = True

    def _fail(self, error: UpstreamError, events: Events) -> None:
        """The reply breaks here, unless it has ended."""
        if not self.ended:
            events.append(ReplyFailure(error))
            self.ended = True


def first(value: Json) -> Json:
    """The first element of a list that is not empty, since some servers wrap their answer; else the value."""
    return value[0] if isinstance(value, list) and value else value


def word(value: Json) -> str | None:
    """A string with something in it, without lone surrogates; else None."""
    return wire.repaired(value) if isinstance(value, str) and value else None


def flush(choice: int, reasoning: wire.Joiner, text: wire.Joiner, events: Events) -> None:
    """Half a character at the end of a piece stays alone: nothing follows that could complete it."""
    if rest := reasoning.close():
        events.append(ReplyReasoningDelta(choice, rest))
    if rest := text.close():
        events.append(ReplyTextDelta(choice, rest))


def string(text: str) -> bytes:
    """The text as a JSON string, with its quotes; a lone surrogate becomes U+FFFD."""
    try:
        return _strict(text)
    except UnicodeEncodeError:
        return wire.encode(text)


def later(found: Reason, before: Reason | None) -> Reason:
    """Of two finish reasons of one choice, the one that says more: a plain stop never hides another."""
    return before or found if found is Reason.STOP else found


def choices_missing(got: int, asked: int) -> UpstreamError:
    """Fewer choices came than were asked for."""
    sentence = f"The upstream gave {got} of {asked} choices; ask for one at a time."
    return UpstreamError(sentence, param="n", code="choices_missing")


def no_reason() -> UpstreamError:
    """A reply came to its end without a finish reason."""
    return UpstreamError("The reply ended without saying why.", code="upstream_closed")


def named(start: ReplyStart, made: ReplyStart) -> ReplyStart:
    """How a reply is called: as the upstream says, else as the exchange has made."""
    created = made.created if start.created is None else start.created
    return ReplyStart(start.id or made.id, created, start.model or made.model)


class SpaceAfterCall:
    """White space that follows a call waits until it is known whether text follows; it is lost if none does."""

    __slots__ = ("_space", "waits")

    def __init__(self) -> None:
        self.waits = False
        """Nothing but white space has followed the last call."""
        self._space = ""

    def begin(self) -> None:
        """A call is written."""
        self.waits = True
        self._space = ""

    def feed(self, text: str) -> str:
        """The text that may be written now, what waited included."""
        if not self.waits:
            return text
        if text.isspace() and len(self._space) < _SPACE_HELD:
            self._space += text
            return ""
        self.waits, space = False, self._space
        self._space = ""
        return space + text


def spoken(parts: Iterable[ReplyPart]) -> Iterator[ReplyPart]:
    """The parts of a whole reply as a stream has them: without white space that stands alone behind a call."""
    space = SpaceAfterCall()
    for part in parts:
        if isinstance(part, ReplyCall):
            space.begin()
        elif isinstance(part, ReplyText):
            part = ReplyText(space.feed(part.text))  # noqa: PLW2901  what is left of it
            if not part.text:
                continue
        yield part


class StreamWriter:
    """Writes one streamed reply; the base of each protocol's `ReplyWriter`."""

    __slots__ = ("_ended",)
    response: bytes | None = None
    """The whole reply as one object, in protocols that have one in their stream."""

    def __init__(self) -> None:
        self._ended = False

    def feed(self, events: Iterable[ReplyEvent]) -> bytes:
        """What the client receives for `events`, in one piece; b"" when there is nothing to say yet."""
        out: Out = []
        for event in events:
            kind = type(event)
            if kind is ReplyTextDelta:
                self._text(event, out)  # type: ignore[arg-type]  # narrowed by `kind`, which is faster than isinstance
            elif kind is ReplyArgumentsDelta:
                self._arguments(event, out)  # type: ignore[arg-type]  # as above
            elif not self._ended:
                self._other(event, out)
        return b"".join(out)

    def keepalive(self) -> bytes:
        """What may be sent between two feeds while the upstream is silent."""
        return KEEPALIVE

    def _other(self, event: ReplyEvent, out: Out) -> None:
        match event:
            case ReplyStart():
                self._start(event, out)
            case ReplyReasoningDelta():
                self._reasoning(event, out)
            case ReplyCallStart():
                self._open_call(event, out)
            case ReplyCallEnd():
                self._close_call(event, out)
            case ReplyFinish():
                self._finish(event, out)
            case UsageReport():
                self._count(event.usage)
            case ReplyFailure():
                self._fail(event.error, out)
            case ReplyEnd():
                self._end(out)
            case ReplyTextDelta() | ReplyArgumentsDelta():
                pass  # `feed` has taken them
            case _:
                assert_never(event)

    # --- what a protocol fills in

    def _text(self, event: ReplyTextDelta, out: Out) -> None:
        raise NotImplementedError

    def _arguments(self, event: ReplyArgumentsDelta, out: Out) -> None:
        raise NotImplementedError

    def _start(self, event: ReplyStart, out: Out) -> None:
        """The reply begins. Of another attempt the client sees the content only."""
        raise NotImplementedError

    def _reasoning(self, event: ReplyReasoningDelta, out: Out) -> None:
        raise NotImplementedError

    def _open_call(self, event: ReplyCallStart, out: Out) -> None:
        raise NotImplementedError

    def _close_call(self, event: ReplyCallEnd, out: Out) -> None:
        raise NotImplementedError

    def _finish(self, event: ReplyFinish, out: Out) -> None:
        raise NotImplementedError

    def _count(self, usage: Usage) -> None:
        raise NotImplementedError

    def _fail(self, error: StreamtoolError, out: Out) -> None:
        raise NotImplementedError

    def _end(self, out: Out) -> None:
        raise NotImplementedError
