"""Writes reply events as a stream of Gemini's `generateContent` replies.

What a client may rely on, whatever the upstream did: every chunk has candidates with content, role and index, and bears
model and id; a part is text, a thought or one whole call; the last chunk alone has the finish reasons, one for each
candidate, and the token counts; a broken reply ends in an error instead. A call whose arguments were cut is not shown;
the reason says `MALFORMED_FUNCTION_CALL`, or why the reply was cut.

Theory of operation. A chunk of text is a constant prefix, one JSON string and a constant suffix. A call is kept until
it is whole, since its arguments are an object; text flows in the meantime. White space after a call waits until it is
known whether text follows. The end waits as well, for the token counts that come after it. An array has the same chunks
between brackets and commas in the place of events.
"""

from collections.abc import Iterable
from typing import ClassVar, Final

from attrs import Factory, define

from streamtool.conversation import Conversation
from streamtool.errors import StreamtoolError
from streamtool.protocols import wire
from streamtool.protocols.gemini.complete import EMPTY, call_part, error_fields, finish_reason, usage_fields
from streamtool.protocols.stream import Out, SpaceAfterCall, StreamWriter, named, no_reason, string
from streamtool.reply import (
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyEvent,
    ReplyFinish,
    ReplyReasoningDelta,
    ReplyStart,
    ReplyTextDelta,
    Usage,
)

KEEPALIVE: Final = b"\n"
"""What may be sent while the upstream is silent: a blank line. Google's client for Python takes comments for JSON."""


@define(eq=False)
class _Candidate:
    """Where one candidate stands."""

    index: int
    plain: bool = False
    """Text may leave at once: it has begun, and the last thing that it said is no call."""
    call: ReplyCallStart | None = None
    """The open call."""
    arguments: bytearray = Factory(bytearray)
    """Of it; in one buffer, since a list of pieces takes ten times the memory."""
    cut: bool = False
    """A call is incomplete."""
    finish: ReplyFinish | None = None
    space: SpaceAfterCall = Factory(SpaceAfterCall)
    suffix: bytes = b""
    """Behind its parts, in each chunk."""

    def drop_call(self) -> None:
        """The open call, if there is one, was cut."""
        if self.call is not None:
            self.cut, self.call = True, None
            self.arguments = bytearray()


class ReplyWriter(StreamWriter):
    """Writes one streamed reply as events.

    `id` and `model` name it unless its `ReplyStart` does. The ids of its calls are the exchange's.
    """

    __slots__ = ("_candidates", "_name", "_started", "_tail", "_usage", "_wanted")
    BEFORE: ClassVar[bytes] = b"data: "
    """Before a chunk."""
    BEHIND: ClassVar[bytes] = b"\n\n"

    def __init__(
        self,
        conversation: Conversation,
        *,
        id: str,
        created: int,
        model: str,
        forwards: bool = False,  # noqa: ARG002  a chunk of the upstream's may say more than text
    ) -> None:
        super().__init__()
        self._name = ReplyStart(id, created, model)
        self._wanted = conversation.options.n
        self._candidates: dict[int, _Candidate] = {}
        self._started = False
        self._tail = b""  # of a chunk, behind its candidates
        self._usage = Usage()

    def keepalive(self) -> bytes:
        """What may be sent between two feeds while the upstream is silent."""
        return KEEPALIVE

    def _text(self, event: ReplyTextDelta, out: Out) -> None:
        candidate = self._candidates.get(event.choice)
        text = event.text
        if candidate is None or not candidate.plain:
            candidate = self._candidate(event.choice)
            if not text or self._ended or candidate.finish is not None:
                return
            candidate.drop_call()
            text = candidate.space.feed(text)
            candidate.plain = bool(text)
        if text:
            out += (self._text_prefix, string(text), candidate.suffix)

    def _arguments(self, event: ReplyArgumentsDelta, out: Out) -> None:  # noqa: ARG002  a call leaves when it is whole
        candidate = self._candidates[event.choice]
        if candidate.call is not None and event.index == candidate.call.index:
            candidate.arguments += event.text.encode("utf-8", "surrogatepass")

    def _reasoning(self, event: ReplyReasoningDelta, out: Out) -> None:
        candidate = self._candidate(event.choice)
        if event.text and candidate.finish is None:
            self._part(b'"thought":true,"text":' + string(event.text), candidate, out)

    # --- the beginning

    _text_prefix: ClassVar[bytes] = BEFORE + b'{"candidates":[{"content":{"parts":[{"text":'

    def _part(self, fields: bytes, candidate: _Candidate, out: Out) -> None:
        """A chunk of one part, of which these are the fields."""
        out += (self._text_prefix.removesuffix(b'"text":'), fields, candidate.suffix)

    def _start(self, event: ReplyStart, out: Out) -> None:  # noqa: ARG002  there is no chunk for it
        if not self._started:
            self._started = True
            name = named(event, self._name)
            fields = wire.encode({"modelVersion": name.model, "responseId": name.id})
            self._tail = b"]," + fields[1:] + self.BEHIND

    def _candidate(self, index: int) -> _Candidate:
        candidate = self._candidates.get(index)
        if candidate is None:
            self._start(ReplyStart(), [])
            suffix = b'}],"role":"model"},"index":%d}' % index + self._tail
            candidate = self._candidates[index] = _Candidate(index, suffix=suffix)
        return candidate

    # --- calls

    def _open_call(self, event: ReplyCallStart, out: Out) -> None:  # noqa: ARG002  as above
        candidate = self._candidate(event.choice)
        if candidate.finish is None:
            candidate.drop_call()
            candidate.call = event
            candidate.plain = False
            candidate.space.begin()

    def _close_call(self, event: ReplyCallEnd, out: Out) -> None:
        candidate = self._candidate(event.choice)
        call = candidate.call
        if call is None or event.index != call.index:
            return
        if not event.complete:
            candidate.drop_call()
            return
        part = call_part(call.id, call.name, candidate.arguments.decode("utf-8", "surrogatepass"), call.signature)
        candidate.call = None
        candidate.arguments = bytearray()
        self._part(wire.encode(part)[1:-1], candidate, out)

    # --- the end

    def _finish(self, event: ReplyFinish, out: Out) -> None:  # noqa: ARG002  the last chunk waits for the counts
        candidate = self._candidate(event.choice)
        if candidate.finish is None:
            candidate.drop_call()
            candidate.plain = False
            candidate.finish = event

    def _count(self, usage: Usage) -> None:
        self._usage = usage

    def _end(self, out: Out) -> None:
        last = []
        for index, candidate in sorted(self._candidates.items()):
            if candidate.finish is None:
                break
            reason = finish_reason(candidate.finish.reason, cut=candidate.cut)
            last.append({"content": {"parts": [EMPTY], "role": "model"}, "finishReason": reason, "index": index})
        if not last or len(last) < max(self._wanted, len(self._candidates)):
            self._fail(no_reason(), out)
            return
        self._stop()
        usage = b'],"usageMetadata":' + wire.encode(usage_fields(self._usage)) + b","
        chunk = b'{"candidates":' + wire.encode(last)[:-1] + usage
        out += (self.BEFORE, chunk, self._tail.removeprefix(b"],"))

    def _fail(self, error: StreamtoolError, out: Out) -> None:
        self._stop()
        out += (self.BEFORE, wire.encode(error_fields(error)), self.BEHIND)

    def _stop(self) -> None:
        """Nothing more leaves."""
        self._ended = True
        for candidate in self._candidates.values():
            candidate.plain, candidate.call = False, None


class ArrayWriter(ReplyWriter):
    """Writes one streamed reply as the elements of an array."""

    __slots__ = ("_begun",)
    BEFORE = b",\n"
    BEHIND = b""
    _text_prefix = BEFORE + ReplyWriter._text_prefix.removeprefix(ReplyWriter.BEFORE)  # noqa: SLF001  it is its own

    def __init__(
        self, conversation: Conversation, *, id: str, created: int, model: str, forwards: bool = False
    ) -> None:
        super().__init__(conversation, id=id, created=created, model=model, forwards=forwards)
        self._begun = False

    def feed(self, events: Iterable[ReplyEvent]) -> bytes:
        """As the base class; the first element has no comma before it, and the last one closes the array."""
        over = self._ended
        data = super().feed(events)
        if data and not self._begun:
            self._begun = True
            data = b"[" + data.removeprefix(self.BEFORE)
        return data + b"\n]" if self._ended and not over else data
