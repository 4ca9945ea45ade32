"""Writes reply events as a Messages stream.

What a client may rely on, whatever the upstream did (each is needed by the strictest of the clients in use):
`message_start` first and whole; blocks counted from 0, one closed before the next is opened, none of them empty text;
`tool_use` begins with the input `{}` and gets the arguments in pieces, at least `{}`; reasoning ends in one signature;
one `message_delta` after all blocks, with the stop reason and the token counts, `tool_use` exactly when there is a
call; `message_stop` last; a broken reply ends in an error instead.

Theory of operation. A delta is a constant prefix, one JSON string and a constant suffix; the prefix of a block is made
when it opens. A piece of text that carries the upstream's own event is forwarded as it came if it begins with that very
prefix: then it is of the same kind, for the same block. White space after a call waits until it is known whether text
follows. The end waits as well, for the token counts that come after it.
"""

from collections.abc import Iterable
from typing import Any, Final, assert_never

import msgspec

from streamtool.conversation import Conversation
from streamtool.errors import StreamtoolError, UpstreamError
from streamtool.protocols import wire
from streamtool.protocols.messages.complete import error_fields, stop_fields, usage_fields
from streamtool.protocols.messages.content import SIGNATURE
from streamtool.reply import (
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyEnd,
    ReplyEvent,
    ReplyFailure,
    ReplyFinish,
    ReplyReasoningDelta,
    ReplyStart,
    ReplyTextDelta,
    Usage,
    UsageReport,
)
from streamtool.sse import comment, encode

Json = Any  # a JSON value

KEEPALIVE: Final = comment("keep-alive")
"""What may be sent while the upstream is silent, before the reply has begun as well."""
STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
"""Headers of a stream. `connection` is the server's business, and forbidden in HTTP/2."""
COMPLETE_HEADERS: Final = ((b"content-type", b"application/json"),)
"""Headers of a whole reply and of an error; the length is added by whoever sends it."""

_HELD: Final = 4096  # characters of white space after a call that may wait
_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOP: Final = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_DELTA: Final = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":'
_SUFFIX: Final = b"}}\n\n"
_strict: Final = msgspec.json.Encoder().encode


def _string(text: str) -> bytes:
    try:
        return _strict(text)
    except UnicodeEncodeError:  # a lone surrogate
        return wire.encode(text)


def _event(fields: dict[str, Json]) -> bytes:
    return encode(fields["type"], wire.encode(fields))


class ReplyWriter:
    """Writes one streamed reply.

    `id` and `model` name it unless its `ReplyStart` does. The ids of its calls are the exchange's. `forwards` says that
    what the upstream sent is of this protocol too, so that its own events may be passed on.
    """

    __slots__ = (
        "_after", "_arguments", "_block", "_blocks", "_call", "_calls", "_cut", "_ended", "_filled", "_finish",
        "_forwards", "_id", "_model", "_space", "_started", "_text", "_thoughts", "_usage",
    )  # fmt: skip
    response: Final = None
    """The whole reply as one object, in protocols that have one in their stream."""

    def __init__(
        self,
        conversation: Conversation,  # noqa: ARG002  other protocols look at it
        *,
        id: str,
        created: int,  # noqa: ARG002  this protocol does not tell the time
        model: str,
        forwards: bool = False,
    ) -> None:
        self._id, self._model = id, model
        self._forwards = forwards
        self._started = False
        self._ended = False
        self._finish: ReplyFinish | None = None
        self._usage: Usage | None = None
        self._blocks = 0  # that have begun
        # prefixes of a delta of the open block; at most one is set
        self._text: bytes | None = None
        self._thoughts: bytes | None = None
        self._arguments: bytes | None = None
        self._call = -1  # the open call's number in the events
        self._calls = False
        self._filled = False  # the open call has arguments that are not white space
        self._cut = False  # a call is incomplete
        self._after = False  # nothing but white space has followed the last call
        self._space = ""  # that white space

    def feed(self, events: Iterable[ReplyEvent]) -> bytes:
        """What the client receives for `events`, in one piece; b"" when there is nothing to say yet."""
        out: list[bytes] = []
        for event in events:
            kind = type(event)
            if kind is ReplyTextDelta:
                prefix = self._text
                if prefix is None:
                    self._say(event.text, out)  # type: ignore[union-attr]  # narrowed by `kind`, which is faster
                elif self._forwards and event.raw is not None and event.raw.startswith(prefix):  # type: ignore[union-attr]  # as above
                    out.append(event.raw)  # type: ignore[union-attr]  # as above
                elif event.text:  # type: ignore[union-attr]  # as above
                    out += (prefix, _string(event.text), _SUFFIX)  # type: ignore[union-attr]  # as above
            elif kind is ReplyArgumentsDelta:
                self._more(event, out)  # type: ignore[arg-type]  # as above
            elif not self._ended:
                self._other(event, out)
        return b"".join(out)

    def keepalive(self) -> bytes:
        """What may be sent between two feeds while the upstream is silent."""
        return _PING if self._started and not self._ended else KEEPALIVE

    def _more(self, event: ReplyArgumentsDelta, out: list[bytes]) -> None:
        prefix, text = self._arguments, event.text
        if prefix is None or event.index != self._call or not text:
            return
        if not self._filled:
            self._filled = not text.isspace()
        out += (prefix, _string(text), _SUFFIX)

    def _other(self, event: ReplyEvent, out: list[bytes]) -> None:
        match event:
            case ReplyStart():
                self._start(event, out)
            case ReplyReasoningDelta():
                self._think(event, out)
            case ReplyCallStart():
                self._open_call(event, out)
            case ReplyCallEnd():
                if self._arguments is not None and event.index == self._call:
                    self._close_call(out, complete=event.complete)
            case ReplyFinish():
                if self._finish is None:
                    self._start(ReplyStart(), out)
                    self._close(out)
                    self._finish = event
            case UsageReport():
                self._usage = event.usage
            case ReplyFailure():
                self._fail(event.error, out)
            case ReplyEnd():
                self._end(out)
            case ReplyTextDelta() | ReplyArgumentsDelta():
                pass  # `feed` has taken them
            case _:
                assert_never(event)

    def _start(self, event: ReplyStart, out: list[bytes]) -> None:
        """The reply begins, unless it has: of another attempt the client sees the content only."""
        if self._started:
            return
        self._started = True
        message: dict[str, Json] = {
            "id": event.id or self._id,
            "type": "message",
            "role": "assistant",
            "model": event.model or self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_fields(Usage()),
        }
        out.append(_event({"type": "message_start", "message": message}))

    # --- blocks

    def _say(self, text: str, out: list[bytes]) -> None:
        """Text where no block of text is open."""
        if not text or self._ended or self._finish is not None:
            return
        self._close(out)
        if self._after and text.isspace() and len(self._space) < _HELD:
            self._space += text
            return
        self._text = prefix = self._open({"type": "text", "text": ""}, b"text_delta", b"text", out)
        out += (prefix, _string(self._space + text), _SUFFIX)
        self._after, self._space = False, ""

    def _think(self, event: ReplyReasoningDelta, out: list[bytes]) -> None:
        """Reasoning; its signature closes the block. A signature alone signs reasoning that is not shown."""
        if self._finish is not None or not (event.text or event.signature):
            return
        if self._thoughts is None:
            block: dict[str, Json] = {"type": "thinking", "thinking": "", "signature": ""}
            self._thoughts = self._open(block, b"thinking_delta", b"thinking", out)
        if event.text:
            out += (self._thoughts, _string(event.text), _SUFFIX)
        if event.signature:
            self._sign(event.signature, out)

    def _sign(self, signature: str, out: list[bytes]) -> None:
        out += (_DELTA % (self._blocks - 1, b"signature_delta", b"signature"), _string(signature), _SUFFIX)
        self._thoughts = None
        self._stop_block(out)

    def _open_call(self, event: ReplyCallStart, out: list[bytes]) -> None:
        if self._finish is not None:
            return
        block: dict[str, Json] = {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
        self._arguments = self._open(block, b"input_json_delta", b"partial_json", out)
        self._call = event.index
        self._calls = self._after = True
        self._filled = False
        self._space = ""

    def _close_call(self, out: list[bytes], *, complete: bool) -> None:
        if not complete:
            self._cut = True
        elif not self._filled and self._arguments is not None:
            out += (self._arguments, b'"{}"', _SUFFIX)
        self._arguments = None
        self._stop_block(out)

    def _open(self, block: dict[str, Json], kind: bytes, key: bytes, out: list[bytes]) -> bytes:
        """Open a block, after the one that is open; the prefix of its deltas."""
        self._start(ReplyStart(), out)
        self._close(out)
        number = self._blocks
        self._blocks += 1
        out.append(_event({"type": "content_block_start", "index": number, "content_block": block}))
        return _DELTA % (number, kind, key)

    def _close(self, out: list[bytes]) -> None:
        """Close the open block, if there is one."""
        if self._text is not None:
            self._text = None
            self._stop_block(out)
        elif self._thoughts is not None:
            self._sign(SIGNATURE, out)
        elif self._arguments is not None:
            self._close_call(out, complete=False)

    def _stop_block(self, out: list[bytes]) -> None:
        number = self._blocks - 1
        out.append(b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}\n\n' % number)

    # --- the end

    def _end(self, out: list[bytes]) -> None:
        finish = self._finish
        if finish is None:
            self._fail(UpstreamError("The reply ended without saying why.", code="upstream_closed"), out)
            return
        self._stop()
        delta = stop_fields(finish.reason, finish.stop_sequence, calls=self._calls, cut=self._cut)
        usage = {"output_tokens": 0} if self._usage is None else usage_fields(self._usage)
        out += (_event({"type": "message_delta", "delta": delta, "usage": usage}), _STOP)

    def _fail(self, error: StreamtoolError, out: list[bytes]) -> None:
        self._stop()
        out.append(_event(error_fields(error)))

    def _stop(self) -> None:
        """Nothing more leaves."""
        self._ended = True
        self._text = self._thoughts = self._arguments = None
