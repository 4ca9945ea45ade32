"""Writer for Ollama's stream: one JSON object per line.

Guarantees to the client, whatever the upstream sends:
- Every line is one object that contains the model, the time and `done`.
- A line contains text, reasoning or one complete call. A call with truncated arguments is dropped, and the finish
  reason is then `length`.
- Only the last line has `done: true`; it contains the finish reason and the usage.
- If the reply fails, a line with an error replaces the last line.

Theory of operation. A line of text consists of a constant prefix, one JSON string and a constant suffix. The protocol
cannot express partial arguments, so a call is buffered until it is complete. Whitespace after a call is buffered until
text follows. The last line is delayed until the usage is known, which the upstream reports after the finish.
"""

from typing import ClassVar, Final

from attrs import frozen

from streamtool.core.conversation import Conversation
from streamtool.core.errors import StreamtoolError
from streamtool.core.excerpt import Excerpt
from streamtool.core.reply import (
    NO_USAGE,
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyFinish,
    ReplyReasoningDelta,
    ReplyStart,
    ReplyTextDelta,
    Usage,
)
from streamtool.protocols.ollama.complete import call_entry, end_fields, head_fields, write_error
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.stream import (
    Out,
    SpaceAfterCall,
    StreamWriter,
    json_string,
    merge_start,
    no_reason_error,
)

KEEPALIVE: Final = b" "
"""Bytes that may be sent while the upstream is silent: whitespace before the next object."""


@frozen
class _Line:
    """Constant parts of a line, after its head."""

    text: bytes
    """Bytes before the text."""
    thinking: bytes
    suffix: bytes
    """Bytes after text or reasoning."""
    last: bytes
    """Bytes before the finish reason, in the last line."""


class ReplyWriter(StreamWriter):
    """Writer for one streamed reply from `/api/chat`.

    `created` and `model` are used unless the `ReplyStart` contains its own values. Call ids come from the exchange.
    """

    __slots__ = (
        "_call",
        "_calls",
        "_cut",
        "_end_reason",
        "_head",
        "_name",
        "_space",
        "_text_prefix",
        "_usage",
        "_written",
    )
    LINE: ClassVar[_Line] = _Line(
        b'"message":{"role":"assistant","content":',
        b'"message":{"role":"assistant","content":"","thinking":',
        b'},"done":false}\n',
        b'"message":{"role":"assistant","content":""},',
    )

    def __init__(
        self,
        conversation: Conversation,  # noqa: ARG002  does not affect how a reply is written
        *,
        id: str,
        created: int,
        model: str,
        forwards: bool = False,  # noqa: ARG002  a line contains the time at which it was written
    ) -> None:
        super().__init__()
        self._name = ReplyStart(id, created, model)
        self._head = b""  # beginning of every line, once the reply has begun
        self._text_prefix: bytes | None = None  # prefix of a line of text, as long as text may be written immediately
        self._call: ReplyCallStart | None = None
        self._written = Excerpt()  # arguments of the open call
        self._calls = 0
        self._cut = False  # whether a call is incomplete
        self._space = SpaceAfterCall()
        self._end_reason: ReplyFinish | None = None
        self._usage = NO_USAGE

    def keepalive(self) -> bytes:
        """Return bytes that may be sent between two calls to `feed` while the upstream is silent."""
        return KEEPALIVE

    def text(self, event: ReplyTextDelta) -> bytes:
        text = event.text
        if self._text_prefix is None:
            text = self._after_call(text)
        return b"".join((self._text_prefix or b"", json_string(text), self.LINE.suffix)) if text else b""

    def _after_call(self, text: str) -> str:
        """Return the text that may be written now, at the beginning of the reply or after a call."""
        if not text or self._ended or self._end_reason is not None:
            return ""
        self._begin(ReplyStart())
        self._drop_call()
        text = self._space.feed(text)
        if text:
            self._text_prefix = self._head + self.LINE.text
        return text

    def arguments(self, event: ReplyArgumentsDelta) -> bytes:
        if self._call is not None and event.index == self._call.index:
            self._written.add(event.text)
        return b""  # a call is written when it is complete

    def _start(self, event: ReplyStart, out: Out) -> None:  # noqa: ARG002  nothing is sent yet
        self._begin(event)

    def _begin(self, event: ReplyStart) -> None:
        if not self._head:
            name = merge_start(event, self._name)
            self._head = wire.encode(head_fields(name.model or "", name.created or 0))[:-1] + b","

    def _reasoning(self, event: ReplyReasoningDelta, out: Out) -> None:
        if event.text and self._end_reason is None:
            self._begin(ReplyStart())
            out += (self._head, self.LINE.thinking, json_string(event.text), self.LINE.suffix)

    # --- calls

    def _open_call(self, event: ReplyCallStart, out: Out) -> None:  # noqa: ARG002  as above
        if self._end_reason is None:
            self._begin(ReplyStart())
            self._drop_call()
            self._call = event
            self._written = self.excerpt(event.choice)
            self._text_prefix = None
            self._space.call_written()

    def _close_call(self, event: ReplyCallEnd, out: Out) -> None:
        call = self._call
        if call is None or event.index != call.index:
            return
        if not event.complete:
            self._drop_call()
            return
        entry = call_entry(self._calls, call.id, call.name, str(self._written))
        self._calls += 1
        self._call = None
        self._written = Excerpt()
        message = {"role": "assistant", "content": "", "tool_calls": [entry]}
        out += (self._head, b'"message":', wire.encode(message), b',"done":false}\n')

    def _drop_call(self) -> None:
        """Drop the open call, if there is one, and record that a call was truncated."""
        if self._call is not None:
            self._cut = True
            self._call = None
            self._written = Excerpt()

    # --- the end

    def _finish(self, event: ReplyFinish, out: Out) -> None:  # noqa: ARG002  the last line needs the usage
        if self._end_reason is None:
            self._begin(ReplyStart())
            self._drop_call()
            self._end_reason = event
            self._text_prefix = None

    def _count(self, usage: Usage) -> None:
        self._usage = usage

    def _end(self, out: Out) -> None:
        if self._end_reason is None:
            self._fail(no_reason_error(), out)
            return
        self._stop()
        end = end_fields(self._end_reason.reason, self._usage, cut=self._cut)
        out += (self._head, self.LINE.last, wire.encode(end)[1:], b"\n")

    def _fail(self, error: StreamtoolError, out: Out) -> None:
        self._stop()
        out += (write_error(error), b"\n")

    def _stop(self) -> None:
        """Stop writing, and discard all later events."""
        self._ended = True
        self._text_prefix = self._call = None


class GenerateWriter(ReplyWriter):
    """Writer for one streamed reply from `/api/generate`, which has no calls."""

    __slots__ = ()
    LINE = _Line(b'"response":', b'"response":"","thinking":', b',"done":false}\n', b'"response":"",')
