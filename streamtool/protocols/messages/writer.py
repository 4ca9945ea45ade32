"""Writer for a Messages stream.

Guarantees to the client, whatever the upstream sends (each is required by at least one client in use):
- `message_start` is sent first and contains all of its fields.
- Blocks are numbered from 0, each is closed before the next opens, and no text block is empty.
- A `tool_use` block begins with the input `{}`. The arguments follow as deltas; if a complete call has none, `{}` is
  sent.
- A block of reasoning ends with exactly one signature.
- The arguments of an incomplete call end in a way that nothing can repair (`UNREPAIRABLE`).
- After all blocks, one `message_delta` contains the usage and the stop reason. `message_stop` is sent last.
- If the reply fails, an error replaces all remaining events.

Theory of operation. A delta consists of a constant prefix, one JSON string and a constant suffix; the prefix for a
block's deltas is built when the block opens. A text delta that carries the upstream's original event is forwarded
verbatim if the event begins with exactly that prefix, because it is then a delta of the same type for the same block.
Whitespace after a call is buffered until text follows. The last events are delayed until the usage is known, which the
upstream reports after the finish.
"""

from typing import Final

from attrs import define

from streamtool.core.conversation import Conversation
from streamtool.core.errors import StreamtoolError
from streamtool.core.json_value import Json
from streamtool.core.reply import (
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyFinish,
    ReplyReasoningDelta,
    ReplyStart,
    ReplyTextDelta,
    Usage,
)
from streamtool.core.sse import encode
from streamtool.protocols.messages.complete import call_block, error_fields, stop_fields, toolsets_of, usage_fields
from streamtool.protocols.messages.content import SIGNATURE
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.stream import (
    KEEPALIVE,
    UNREPAIRABLE,
    Out,
    SpaceAfterCall,
    StreamWriter,
    json_string,
    merge_start,
    no_reason_error,
)

_PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOP: Final = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
_DELTA: Final = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":'
_SUFFIX: Final = b"}}\n\n"


def _event(fields: dict[str, Json]) -> bytes:
    return encode(fields["type"], wire.encode(fields))


@define(eq=False)
class _Block:
    """State of the open block. At most one of the delta prefixes (`text`, `thoughts`, `arguments`) is set."""

    text: bytes | None = None
    thoughts: bytes | None = None
    arguments: bytes | None = None
    call: int = -1
    """Index of the open call in the reply events."""
    filled: bool = False
    """Whether the open call has arguments other than whitespace."""


class ReplyWriter(StreamWriter):
    """Writer for one streamed reply.

    `id` and `model` are used unless the `ReplyStart` contains its own values. Call ids come from the exchange.
    `forwards` means that the upstream speaks this protocol too, so its events may be forwarded.
    """

    __slots__ = (
        "_block",
        "_blocks",
        "_calls",
        "_end_reason",
        "_name",
        "_space",
        "_started",
        "_toolsets",
        "_usage",
    )

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
        self._blocks = 0  # number of blocks that have begun
        self._calls = False
        self._space = SpaceAfterCall()

    def keepalive(self) -> bytes:
        """Return bytes that may be sent between two calls to `feed` while the upstream is silent."""
        # `message_start` must be the first event, so a comment is sent before it, and a `ping` only after it.
        return _PING if self._started and not self._ended else KEEPALIVE

    def text(self, event: ReplyTextDelta) -> bytes:
        prefix = self._block.text
        if prefix is None:
            return self._first_text(event.text)
        if self._forwards and event.raw is not None and event.raw.startswith(prefix):
            return event.raw
        return b"".join((prefix, json_string(event.text), _SUFFIX)) if event.text else b""

    def arguments(self, event: ReplyArgumentsDelta) -> bytes:
        block, text = self._block, event.text
        prefix = block.arguments
        if prefix is None or event.index != block.call or not text:
            return b""
        if not block.filled:
            block.filled = not text.isspace()
        return b"".join((prefix, json_string(text), _SUFFIX))

    def _start(self, event: ReplyStart, out: Out) -> None:
        """Begin the reply, unless it has already begun. If the request is sent to the upstream again, the reply
        continues with the new attempt's content.
        """
        if self._started:
            return
        self._started = True
        name = merge_start(event, self._name)
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

    def _first_text(self, text: str) -> bytes:
        """Return the bytes that open a text block and write text to it."""
        if not text or self._ended or self._end_reason is not None:
            return b""
        out: Out = []
        # Blocks never overlap: an open thinking block or call is closed first. Text blocks must not be empty, so
        # whitespace after a call does not open a block unless other text follows.
        self._close(out)
        text = self._space.feed(text)
        if text:
            self._block.text = prefix = self._open({"type": "text", "text": ""}, b"text_delta", b"text", out)
            out += (prefix, json_string(text), _SUFFIX)
        return b"".join(out)

    def _reasoning(self, event: ReplyReasoningDelta, out: Out) -> None:
        """Write reasoning; its signature closes the block. A signature without text belongs to reasoning that the
        upstream hides.
        """
        if self._end_reason is not None or not (event.text or event.signature):
            return
        if self._block.thoughts is None:
            block: dict[str, Json] = {"type": "thinking", "thinking": "", "signature": ""}
            self._block.thoughts = self._open(block, b"thinking_delta", b"thinking", out)
        if event.text:
            out += (self._block.thoughts, json_string(event.text), _SUFFIX)
        if event.signature:
            self._sign(event.signature, out)

    def _sign(self, signature: str, out: Out) -> None:
        # The signature is the last delta of its block. The block is closed here, so that a second signature opens a new
        # block.
        out += (_DELTA % (self._blocks - 1, b"signature_delta", b"signature"), json_string(signature), _SUFFIX)
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
        self._space.call_written()

    def _close_call(self, event: ReplyCallEnd, out: Out) -> None:
        if self._block.arguments is not None and event.index == self._block.call:
            self._end_call(out, complete=event.complete)

    def _end_call(self, out: Out, *, complete: bool) -> None:
        if not complete:
            if self._block.arguments is not None:
                out += (self._block.arguments, UNREPAIRABLE, _SUFFIX)
        elif not self._block.filled and self._block.arguments is not None:
            # The joined deltas must form a JSON object, so `{}` is sent as the only delta of a call without arguments.
            out += (self._block.arguments, b'"{}"', _SUFFIX)
        self._block.arguments = None
        self._stop_block(out)

    def _open(self, block: dict[str, Json], kind: bytes, key: bytes, out: Out) -> bytes:
        """Close the previous block and open a new one; return the prefix of its deltas."""
        self._start(ReplyStart(), out)
        self._close(out)
        number = self._blocks
        self._blocks += 1
        out.append(_event({"type": "content_block_start", "index": number, "content_block": block}))
        return _DELTA % (number, kind, key)

    def _close(self, out: Out) -> None:
        """Close the open block, if any."""
        if self._block.text is not None:
            self._block.text = None
            self._stop_block(out)
        elif self._block.thoughts is not None:
            # Clients expect a signature at the end of reasoning. When clients send this signature back, `content`
            # removes the block.
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
            # The block is closed immediately, but `message_delta` is delayed until `_end`, because it contains the
            # usage, which the upstream reports after the finish.
            self._close(out)
            self._end_reason = event

    def _count(self, usage: Usage) -> None:
        self._usage = usage

    def _end(self, out: Out) -> None:
        finish = self._end_reason
        if finish is None:
            self._fail(no_reason_error(), out)
            return
        self._stop()
        delta = stop_fields(finish.reason, finish.stop_sequence, calls=self._calls)
        usage = {"output_tokens": 0} if self._usage is None else usage_fields(self._usage)
        out += (_event({"type": "message_delta", "delta": delta, "usage": usage}), _STOP)

    def _fail(self, error: StreamtoolError, out: Out) -> None:
        self._stop()
        out.append(_event(error_fields(error)))

    def _stop(self) -> None:
        """Stop writing, and discard all later events."""
        self._ended = True
        self._block = _Block()
