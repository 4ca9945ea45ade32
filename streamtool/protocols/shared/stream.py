"""Base classes of all upstream reply readers and client stream writers.

`StreamReader` splits the upstream's bytes. `BodySniffer` detects the format of the body, each event is decoded once,
damaged events are read as far as possible, and a premature end of any kind becomes one `ReplyFailure`. Each protocol
package interprets the decoded objects in `_read`, `_document` and `_end`.

`StreamWriter` passes each reply event to the method for that type of event, which each protocol implements. Text and
argument deltas are dispatched first, because there are thousands of them; all other events are passed on by
`_dispatch`, which is slower.

No input from an upstream makes this module raise an exception.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import ClassVar, Final, assert_never

import msgspec
from attrs import evolve

from streamtool.core import sse
from streamtool.core.errors import StreamtoolError, UpstreamError
from streamtool.core.excerpt import Excerpt, excerpt_without_source
from streamtool.core.json_value import Json, JsonObject
from streamtool.core.reply import (
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
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.body_sniffer import BodySniffer, truncated_error, unreadable_error

Events = list[ReplyEvent]
Out = list[bytes]

DONE: Final = b"[DONE]"
"""Data of the last event of a stream in OpenAI's protocols, and in many implementations of other protocols."""
KEEPALIVE: Final = sse.comment("keep-alive")
"""Bytes that may be sent while the upstream is silent, even before the reply has begun."""
UNREPAIRABLE: Final = b'"\\"]]]]\\"]]]]:"'
"""JSON string that ends the arguments of an incomplete call, so that no client executes a part of the call.

Clients of LangChain, Cline, Qwen Code and others close open strings and objects themselves, and execute the result. The
brackets match nothing that is open, unless four arrays are open; the text has them inside and outside a string, because
the arguments may end in either.
"""
BREAK: Final = b"\n\n"
"""Terminator of an event, also sent after a truncated event."""
STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
"""Response headers of a stream. They exclude `connection`, which the server adds itself and HTTP/2 prohibits."""
COMPLETE_HEADERS: Final = ((b"content-type", b"application/json"),)
"""Headers of a complete reply or of an error; the sender adds the length."""

_SPACE_HELD: Final = 4096  # maximum number of whitespace characters to buffer after a call
_YEAR_10000: Final = 253_402_300_800
_decode: Final = wire.decode
ascii_string: Final = msgspec.json.Encoder().encode
"""Returns ASCII text as a quoted JSON string; `json_string` accepts any text, and costs a call more."""


class StreamReader:
    """Reader for one reply; base class of each protocol's `ReplyReader`.

    `ended` means that no further events will be returned.
    """

    __slots__ = ("_answer", "_counts", "ended", "tool_names")

    def __init__(self) -> None:
        self.ended = False
        self.tool_names: Collection[str] = ()
        """Names of the tools that may be called, which show whether a name may be incomplete. Set it before `feed`."""
        self._counts: JsonObject | None = None  # the upstream's token counts, often sent with every chunk
        self._answer = BodySniffer(final=(DONE,))

    # --- hooks for the protocol

    def _read(self, fields: JsonObject, event: sse.ServerSentEvent | None, events: Events) -> None:
        """Read one object in the response body; `event` is the event that contained it, if there is one."""
        raise NotImplementedError

    def _document(self, value: Json, events: Events) -> None:
        """Read a response body that is one JSON document instead of a stream."""
        raise NotImplementedError

    def _end(self, events: Events, *, marked: bool) -> None:
        """Handle the end of the response body; `marked` means that the upstream marked the end explicitly."""
        raise NotImplementedError

    def _usage(self, counts: JsonObject) -> Usage:
        """Convert the upstream's token counts."""
        raise NotImplementedError

    # --- shared

    @property
    def usage(self) -> Usage | None:
        """Usage as last reported by the upstream, available even if the reply never ends."""
        return None if self._counts is None else self._usage(self._counts)

    def feed(self, data: bytes) -> Events:
        """Return the reply events that `data` completes."""
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
        """Return the events at the end of the reply; a truncated reply ends with a `ReplyFailure`."""
        events: Events = []
        if not self.ended:
            self._read_rest(events)
        if not self.ended:
            self._end(events, marked=False)
        return events

    def _read_rest(self, events: Events) -> None:
        """Read the remaining bytes at the end of the response body: an unterminated event, or a document."""
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
            self._fail(truncated_error(), events)
            return
        self._document(unwrap_list(value), events)

    def _event(self, event: sse.ServerSentEvent, events: Events) -> None:
        if self.ended:
            return
        if event.data == DONE:  # the usual end, which the decoder would reject with an exception
            self._end(events, marked=True)
            return
        try:
            value = _decode(event.data)
        except wire.UNREADABLE:
            self._read_non_json(event, events)
            return
        if type(value) is dict and event.name != "error":
            self._read(value, event, events)
        else:
            self._read_decoded(value, event, events)

    def _read_decoded(self, value: Json, event: sse.ServerSentEvent, events: Events) -> None:
        """Read a decoded event that must not be forwarded verbatim: an error, an object in a list, or damaged JSON."""
        value = unwrap_list(value)
        if not isinstance(value, dict):
            return  # meaningless
        if event.name == "error" and not value.get("error"):
            self._fail(wire.upstream_error(value), events)
        else:
            self._read(value, evolve(event, raw=None), events)

    def _read_non_json(self, event: sse.ServerSentEvent, events: Events) -> None:
        """Read an event that is not strict JSON: the end marker, damaged JSON, or anything else."""
        data = event.data.strip()
        if data.startswith(DONE):
            self._end(events, marked=True)
            return
        try:
            value = wire.decode_tolerant(data)
        except ValueError:
            if data[:1] == b"{":
                self._fail(unreadable_error(), events)
            elif event.name == "error":
                self._fail(wire.upstream_error(data.decode("utf-8", "replace")), events)
        else:
            self._read_decoded(value, event, events)

    def _done(self, events: Events) -> None:
        """Complete the reply after all its other events have been emitted."""
        # Usage precedes the end, because several protocols write it into the last object of their stream.
        usage = self.usage
        if usage is not None:
            events.append(UsageReport(usage))
        events.append(ReplyEnd())
        self.ended = True

    def _fail(self, error: UpstreamError, events: Events) -> None:
        """Fail the reply, unless it has already ended."""
        if not self.ended:
            events.append(ReplyFailure(error))
            self.ended = True


def unwrap_list(value: Json) -> Json:
    """Return the first element of a non-empty list, because some servers wrap a single object in a list. Return any
    other value unchanged.
    """
    return value[0] if isinstance(value, list) and value else value


def nonempty_string(value: Json) -> str | None:
    """Return a non-empty string with its lone surrogates replaced, or None for anything else."""
    return wire.repaired(value) if isinstance(value, str) and value else None


def creation_time(value: Json) -> int | None:
    """Return a Unix timestamp in seconds that every protocol can express, or None for anything else."""
    return value if type(value) is int and 0 < value < _YEAR_10000 else None


def flush_joiners(choice: int, reasoning: wire.Joiner, text: wire.Joiner, events: Events) -> None:
    """Emit an incomplete trailing character as U+FFFD, because no further text can complete it."""
    if rest := reasoning.close():
        events.append(ReplyReasoningDelta(choice, rest))
    if rest := text.close():
        events.append(ReplyTextDelta(choice, rest))


def json_string(text: str) -> bytes:
    """Return the text as a quoted JSON string on one line, in which each lone surrogate becomes U+FFFD."""
    return ascii_string(text) if text.isascii() else wire.encode(text)


def stronger_reason(found: Reason, before: Reason | None) -> Reason:
    """Return the more specific of a choice's two finish reasons: a plain stop never replaces another reason."""
    return before or found if found is Reason.STOP else found


def choices_missing_error(got: int, asked: int) -> UpstreamError:
    """Return the error for an upstream that returned fewer choices than requested."""
    sentence = f"The upstream returned {got} of {asked} choices: set `n` to 1."
    return UpstreamError(sentence, param="n", code="choices_missing")


def malformed_call_error() -> UpstreamError:
    """Return the error for a reply whose call cannot be read, and cannot be delivered as it is."""
    return UpstreamError("the model wrote a call that cannot be read", code="malformed_call")


def no_reason_error() -> UpstreamError:
    """Return the error for a reply that ended without a finish reason."""
    return UpstreamError("The reply ended without a finish reason.", code="upstream_closed")


def merge_start(start: ReplyStart, made: ReplyStart) -> ReplyStart:
    """Return the reply's id, time and model. Values that the upstream did not send are our own."""
    created = made.created if start.created is None else start.created
    return ReplyStart(start.id or made.id, created, start.model or made.model)


class SpaceAfterCall:
    """Buffer for whitespace after a call. The whitespace is dropped unless text follows."""

    __slots__ = ("_space", "waits")

    def __init__(self) -> None:
        self.waits = False
        """Whether only whitespace has followed the last call."""
        self._space = ""

    def call_written(self) -> None:
        """Start buffering whitespace after a call."""
        self.waits = True
        self._space = ""

    def feed(self, text: str) -> str:
        """Return the text that may be written now, including buffered whitespace."""
        if not self.waits:
            return text
        if text.isspace() and len(self._space) < _SPACE_HELD:
            self._space += text
            return ""
        self.waits, space = False, self._space
        self._space = ""
        return space + text


def drop_blank_text(parts: Iterable[ReplyPart]) -> Iterator[ReplyPart]:
    """Yield the parts that a stream would contain: all except whitespace-only text after a call."""
    space = SpaceAfterCall()
    for part in parts:
        if isinstance(part, ReplyCall):
            space.call_written()
        elif isinstance(part, ReplyText):
            part = ReplyText(space.feed(part.text))  # noqa: PLW2901  text that is not only whitespace
            if not part.text:
                continue
        yield part


class StreamWriter:
    """Writer for one streamed reply; base class of each protocol's `ReplyWriter`."""

    __slots__ = ("_ended", "_forwards", "excerpt")
    WRITES_ALONE: ClassVar[bool] = True
    """Whether `text` and `arguments` may be called instead of `feed`, for one event. False if `feed` adds to them."""
    response: bytes | None = None
    """Complete reply as one object, in protocols whose stream contains such an object."""

    def __init__(self) -> None:
        self._ended = False
        self._forwards = False
        """Whether events of an upstream that speaks this protocol may be forwarded."""
        self.excerpt: Callable[[int], Excerpt] = excerpt_without_source
        """Returns a new excerpt of the text that the model has written in a choice. Set it before `feed`."""

    def feed(self, events: Iterable[ReplyEvent]) -> bytes:
        """Return the bytes to send to the client for `events`, possibly b""."""
        out: Out = []
        for event in events:
            kind = type(event)
            if kind is ReplyTextDelta:
                out.append(self.text(event))  # type: ignore[arg-type]  # narrowed by `kind`, which is faster than isinstance
            elif kind is ReplyArgumentsDelta:
                out.append(self.arguments(event))  # type: ignore[arg-type]  # as above
            elif not self._ended:
                self._dispatch(event, out)
        return b"".join(out)

    def stop_forwarding(self) -> None:
        """Stop forwarding the upstream's events: those of another attempt do not continue this reply."""
        self._forwards = False

    def keepalive(self) -> bytes:
        """Return bytes that may be sent between two calls to `feed` while the upstream is silent."""
        return KEEPALIVE

    def _dispatch(self, event: ReplyEvent, out: Out) -> None:
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
                pass  # already handled by `feed`
            case _:
                assert_never(event)

    # --- hooks for the protocol

    # Text and arguments are also passed in after the end, so that no check is required in the most common case: these
    # two methods ignore late events themselves.

    def text(self, event: ReplyTextDelta) -> bytes:
        """Return the bytes for a piece of text."""
        raise NotImplementedError

    def arguments(self, event: ReplyArgumentsDelta) -> bytes:
        """Return the bytes for a piece of a call's arguments."""
        raise NotImplementedError

    def _start(self, event: ReplyStart, out: Out) -> None:
        """Begin the reply. If the request is sent to the upstream again, the reply continues with the new attempt's
        content.
        """
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
