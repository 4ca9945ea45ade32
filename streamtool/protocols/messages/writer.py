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

from typing import Any, Final

from attrs import define

from streamtool.conversation import Conversation
from streamtool.errors import StreamtoolError
from streamtool.protocols import wire
from streamtool.protocols.messages.complete import call_block, error_fields, stop_fields, toolsets_of, usage_fields
from streamtool.protocols.messages.content import SIGNATURE
from streamtool.protocols.stream import KEEPALIVE, Out, SpaceAfterCall, StreamWriter, named, no_reason, string
from streamtool.reply import (
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyFinish,
    ReplyReasoningDelta,
    ReplyStart,
    ReplyTextDelta,
    Usage,
)
from streamtool.sse import encode

Json = Any  # a JSON value

_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOP: Final = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_DELTA: Final = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":'
_SUFFIX: Final = b"}}\n\n"


def _event(fields: dict[str, Json]) -> bytes:
    return encode(fields["type"], wire.encode(fields))


@define(eq=False)
class _Block:
    """The block that is open. At most one of the prefixes of its deltas is set."""

    text: bytes | None = None
    thoughts: bytes | None = None
    arguments: bytes | None = None
    call: int = -1
    """The open call's number in the events."""
    filled: bool = False
    """The open call has arguments that are not white space."""


class ReplyWriter(StreamWriter):
    """Writes one streamed reply.

    `id` and `model` name it unless its `ReplyStart` does. The ids of its calls are the exchange's. `forwards` says that
    what the upstream sent is of this protocol too, so that its own events may be passed on.
    """

    __slots__ = (
        "_block", "_blocks", "_calls", "_cut", "_end_reason", "_forwards", "_name", "_space", "_started", "_toolsets",
        "_usage",
    )  # fmt: skip

    def __init__(
        self, conversation: Conversation, *, id: str, created: int, model: str, forwards: bool = False
    ) -> None:
        super().__init__()
        self._name = ReplyStart(id, created, model)
        self._toolsets = toolsets_of(conversation)
        self._forwards = forwards
        self._started = False
        self._end_reason: ReplyFinish | None = None
        self._usage: Usage | None = None
        self._block = _Block()
        self._blocks = 0  # that have begun
        self._calls = False
        self._cut = False  # a call is incomplete
        self._space = SpaceAfterCall()

    def keepalive(self) -> bytes:
        """What may be sent between two feeds while the upstream is silent."""
        return _PING if self._started and not self._ended else KEEPALIVE

    def _text(self, event: ReplyTextDelta, out: Out) -> None:
        prefix = self._block.text
        if prefix is None:
            self._say(event.text, out)
        elif self._forwards and event.raw is not None and event.raw.startswith(prefix):
            out.append(event.raw)
        elif event.text:
            out += (prefix, string(event.text), _SUFFIX)

    def _arguments(self, event: ReplyArgumentsDelta, out: Out) -> None:
        prefix, text = self._block.arguments, event.text
        if prefix is None or event.index != self._block.call or not text:
            return
        if not self._block.filled:
            self._block.filled = not text.isspace()
        out += (prefix, string(text), _SUFFIX)

    def _start(self, event: ReplyStart, out: Out) -> None:
        """The reply begins, unless it has: of another attempt the client sees the content only."""
        if self._started:
            return
        self._started = True
        name = named(event, self._name)
        message: dict[str, Json] = {
            "id": name.id,
            "type": "message",
            "role": "assistant",
            "model": name.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_fields(Usage(event.input)),
        }
        out.append(_event({"type": "message_start", "message": message}))

    # --- blocks

    def _say(self, text: str, out: Out) -> None:
        """Text where no block of text is open."""
        if not text or self._ended or self._end_reason is not None:
            return
        self._close(out)
        text = self._space.feed(text)
        if not text:
            return
        self._block.text = prefix = self._open({"type": "text", "text": ""}, b"text_delta", b"text", out)
        out += (prefix, string(text), _SUFFIX)

    def _reasoning(self, event: ReplyReasoningDelta, out: Out) -> None:
        """Reasoning; its signature closes the block. A signature alone signs reasoning that is not shown."""
        if self._end_reason is not None or not (event.text or event.signature):
            return
        if self._block.thoughts is None:
            block: dict[str, Json] = {"type": "thinking", "thinking": "", "signature": ""}
            self._block.thoughts = self._open(block, b"thinking_delta", b"thinking", out)
        if event.text:
            out += (self._block.thoughts, string(event.text), _SUFFIX)
        if event.signature:
            self._sign(event.signature, out)

    def _sign(self, signature: str, out: Out) -> None:
        out += (_DELTA % (self._blocks - 1, b"signature_delta", b"signature"), string(signature), _SUFFIX)
        self._block.thoughts = None
        self._stop_block(out)

    def _open_call(self, event: ReplyCallStart, out: Out) -> None:
        if self._end_reason is not None:
            return
        block = call_block(event.id, event.name, {}, self._toolsets)
        self._block.arguments = self._open(block, b"input_json_delta", b"partial_json", out)
        self._block.call = event.index
        self._block.filled = False
        self._calls = True
        self._space.begin()

    def _close_call(self, event: ReplyCallEnd, out: Out) -> None:
        if self._block.arguments is not None and event.index == self._block.call:
            self._end_call(out, complete=event.complete)

    def _end_call(self, out: Out, *, complete: bool) -> None:
        if not complete:
            self._cut = True
        elif not self._block.filled and self._block.arguments is not None:
            out += (self._block.arguments, b'"{}"', _SUFFIX)
        self._block.arguments = None
        self._stop_block(out)

    def _open(self, block: dict[str, Json], kind: bytes, key: bytes, out: Out) -> bytes:
        """Open a block, after the one that is open; the prefix of its deltas."""
        self._start(ReplyStart(), out)
        self._close(out)
        number = self._blocks
        self._blocks += 1
        out.append(_event({"type": "content_block_start", "index": number, "content_block": block}))
        return _DELTA % (number, kind, key)

    def _close(self, out: Out) -> None:
        """Close the open block, if there is one."""
        if self._block.text is not None:
            self._block.text = None
            self._stop_block(out)
        elif self._block.thoughts is not None:
            self._sign(SIGNATURE, out)
        elif self._block.arguments is not None:
            self._end_call(out, complete=False)

    def _stop_block(self, out: Out) -> None:
        number = self._blocks - 1
        out.append(b'event: content_block_stop\ndata: {"type":"content_block_stop","index":%d}\n\n' % number)

    # --- the end

    def _finish(self, event: ReplyFinish, out: Out) -> None:
        if self._end_reason is None:
            self._start(ReplyStart(), out)
            self._close(out)
            self._end_reason = event

    def _count(self, usage: Usage) -> None:
        self._usage = usage

    def _end(self, out: Out) -> None:
        finish = self._end_reason
        if finish is None:
            self._fail(no_reason(), out)
            return
        self._stop()
        delta = stop_fields(finish.reason, finish.stop_sequence, calls=self._calls, cut=self._cut)
        usage = {"output_tokens": 0} if self._usage is None else usage_fields(self._usage)
        out += (_event({"type": "message_delta", "delta": delta, "usage": usage}), _STOP)

    def _fail(self, error: StreamtoolError, out: Out) -> None:
        self._stop()
        out.append(_event(error_fields(error)))

    def _stop(self) -> None:
        """Nothing more leaves."""
        self._ended = True
        self._block = _Block()
