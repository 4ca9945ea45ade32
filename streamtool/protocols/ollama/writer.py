"""Writes reply events as Ollama's stream: one JSON object per line.

What a client may rely on, whatever the upstream did: every line is one object with model, time and `done`; a line has
text, reasoning or one whole call; the last line alone is `done`, with the reason and the counts; a broken reply ends in
a line with an error instead. A call whose arguments were cut is not shown, and the reason says `length`.

Theory of operation. A line of text is a constant prefix, one JSON string and a constant suffix. The protocol has no
place for a piece of arguments, so a call is kept until it is whole; text flows in the meantime. White space after a
call waits until it is known whether text follows. The end waits as well, for the token counts that come after it.
"""

from typing import ClassVar, Final

from attrs import frozen

from streamtool.conversation import Conversation
from streamtool.errors import StreamtoolError
from streamtool.protocols import wire
from streamtool.protocols.ollama.complete import call_entry, end_fields, head_fields, write_error
from streamtool.protocols.stream import Out, SpaceAfterCall, StreamWriter, named, no_reason, string
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

KEEPALIVE: Final = b" "
"""What may be sent while the upstream is silent: white space before the next object."""


@frozen
class _Line:
    """What a line is made of, behind its head."""

    text: bytes
    """Before a piece of text."""
    thinking: bytes
    suffix: bytes
    """Behind either."""
    last: bytes
    """In the last line, before why it is the last."""


class ReplyWriter(StreamWriter):
    """Writes one streamed reply of `/api/chat`.

    `created` and `model` name it unless its `ReplyStart` does. The ids of its calls are the exchange's.
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
        conversation: Conversation,  # noqa: ARG002  nothing in it changes how a reply is written
        *,
        id: str,
        created: int,
        model: str,
        forwards: bool = False,  # noqa: ARG002  a line bears the time at which it was written
    ) -> None:
        super().__init__()
        self._name = ReplyStart(id, created, model)
        self._head = b""  # of a line, once the reply has begun
        self._text_prefix: bytes | None = None  # of a line of text, while text may leave at once
        self._call: ReplyCallStart | None = None
        self._written = bytearray()  # of the open call's arguments; a list of pieces takes ten times the memory
        self._calls = 0
        self._cut = False  # a call is incomplete
        self._space = SpaceAfterCall()
        self._end_reason: ReplyFinish | None = None
        self._usage = Usage()

    def keepalive(self) -> bytes:
        """What may be sent between two feeds while the upstream is silent."""
        return KEEPALIVE

    def _text(self, event: ReplyTextDelta, out: Out) -> None:
        text = event.text
        if self._text_prefix is None:
            text = self._after_call(text)
        if text:
            out += (self._text_prefix or b"", string(text), self.LINE.suffix)

    def _after_call(self, text: str) -> str:
        """The text that may leave where none could leave at once: at the beginning, and after a call."""
        if not text or self._ended or self._end_reason is not None:
            return ""
        self._begin(ReplyStart())
        self._drop_call()
        text = self._space.feed(text)
        if text:
            self._text_prefix = self._head + self.LINE.text
        return text

    def _arguments(self, event: ReplyArgumentsDelta, out: Out) -> None:  # noqa: ARG002  a call leaves when it is whole
        if self._call is not None and event.index == self._call.index:
            self._written += event.text.encode("utf-8", "surrogatepass")

    def _start(self, event: ReplyStart, out: Out) -> None:  # noqa: ARG002  there is no line for it
        self._begin(event)

    def _begin(self, event: ReplyStart) -> None:
        if not self._head:
            name = named(event, self._name)
            self._head = wire.encode(head_fields(name.model or "", name.created or 0))[:-1] + b","

    def _reasoning(self, event: ReplyReasoningDelta, out: Out) -> None:
        if event.text and self._end_reason is None:
            self._begin(ReplyStart())
            out += (self._head, self.LINE.thinking, string(event.text), self.LINE.suffix)

    # --- calls

    def _open_call(self, event: ReplyCallStart, out: Out) -> None:  # noqa: ARG002  as above
        if self._end_reason is None:
            self._begin(ReplyStart())
            self._drop_call()
            self._call = event
            self._text_prefix = None
            self._space.begin()

    def _close_call(self, event: ReplyCallEnd, out: Out) -> None:
        call = self._call
        if call is None or event.index != call.index:
            return
        if not event.complete:
            self._drop_call()
            return
        entry = call_entry(self._calls, call.id, call.name, self._written.decode("utf-8", "surrogatepass"))
        self._calls += 1
        self._call = None
        self._written = bytearray()
        message = {"role": "assistant", "content": "", "tool_calls": [entry]}
        out += (self._head, b'"message":', wire.encode(message), b',"done":false}\n')

    def _drop_call(self) -> None:
        """The open call, if there is one, was cut."""
        if self._call is not None:
            self._cut = True
            self._call = None
            self._written = bytearray()

    # --- the end

    def _finish(self, event: ReplyFinish, out: Out) -> None:  # noqa: ARG002  the last line waits for the counts
        if self._end_reason is None:
            self._begin(ReplyStart())
            self._drop_call()
            self._end_reason = event
            self._text_prefix = None

    def _count(self, usage: Usage) -> None:
        self._usage = usage

    def _end(self, out: Out) -> None:
        if self._end_reason is None:
            self._fail(no_reason(), out)
            return
        self._stop()
        end = end_fields(self._end_reason.reason, self._usage, cut=self._cut)
        out += (self._head, self.LINE.last, wire.encode(end)[1:], b"\n")

    def _fail(self, error: StreamtoolError, out: Out) -> None:
        self._stop()
        out += (write_error(error), b"\n")

    def _stop(self) -> None:
        """Nothing more leaves."""
        self._ended = True
        self._text_prefix = self._call = None


class GenerateWriter(ReplyWriter):
    """Writes one streamed reply of `/api/generate`, which has no calls."""

    __slots__ = ()
    LINE = _Line(b'"response":', b'"response":"","thinking":', b',"done":false}\n', b'"response":"",')
