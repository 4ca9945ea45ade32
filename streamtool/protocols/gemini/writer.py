"""Writer for a stream of Gemini's `generateContent` replies.

Guarantees to the client, whatever the upstream sends:
- Every chunk contains the model, the id, and candidates that each have content, a role and an index.
- A part is text, a thought or one complete call. A call with truncated arguments is dropped; the finish reason is then
  `MALFORMED_FUNCTION_CALL`, or the reason for the truncation if the client has limited the tokens.
- Only the last chunk contains usage and finish reasons, with one reason for each candidate.
- If the reply fails, an error replaces the last chunk.

Theory of operation. A text chunk consists of a constant prefix, one JSON string and a constant suffix. A call is
buffered until it is complete, because its arguments are sent as an object. Whitespace after a call is buffered until
text follows. The last chunk is delayed until the usage is known, which the upstream reports after the finish. An array
contains the same chunks, separated by commas and enclosed in brackets instead of being sent as events.
"""

from collections.abc import Iterable
from typing import ClassVar, Final

from attrs import Factory, define

from streamtool.core.conversation import Conversation
from streamtool.core.errors import StreamtoolError
from streamtool.core.excerpt import Excerpt
from streamtool.core.reply import (
    NO_USAGE,
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
from streamtool.protocols.gemini.complete import EMPTY, call_part, error_fields, finish_reason, usage_fields
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.stream import (
    Out,
    SpaceAfterCall,
    StreamWriter,
    json_string,
    merge_start,
    no_reason_error,
)

KEEPALIVE: Final = b"\n"
"""Bytes that may be sent while the upstream is silent: a blank line rather than a comment, because Google's Python
client tries to parse comments as JSON.
"""


@define(eq=False)
class _OutgoingCandidate:
    """State of one candidate."""

    index: int
    plain: bool = False
    """Whether text may be written immediately: the candidate has begun, and its last content was not a call."""
    call: ReplyCallStart | None = None
    """Call that is being buffered, if any."""
    arguments: Excerpt = Factory(Excerpt)
    """Arguments of the buffered call."""
    cut: bool = False
    """Whether a call is incomplete."""
    finish: ReplyFinish | None = None
    space: SpaceAfterCall = Factory(SpaceAfterCall)
    suffix: bytes = b""
    """Bytes that follow the candidate's parts in each chunk."""

    def drop_call(self) -> None:
        """Drop the open call, if there is one, and record that a call was truncated."""
        if self.call is not None:
            self.cut, self.call = True, None
            self.arguments = Excerpt()


class ReplyWriter(StreamWriter):
    """Writer for one streamed reply, as events.

    `id` and `model` are used unless the `ReplyStart` contains its own values. Call ids come from the exchange.
    """

    __slots__ = ("_candidates", "_limited", "_name", "_started", "_tail", "_usage", "_wanted")
    BEFORE: ClassVar[bytes] = b"data: "
    """Bytes before a chunk."""
    AFTER: ClassVar[bytes] = b"\n\n"
    BEFORE_ERROR: ClassVar[bytes] = b""
    """Bytes before an error, which is sent bare, as Google does: older JavaScript SDKs ignore an error in an event. It
    has no blank line after it, because newer ones ignore a complete event without data.
    """

    def __init__(
        self,
        conversation: Conversation,
        *,
        id: str,
        created: int,
        model: str,
        forwards: bool = False,  # noqa: ARG002  an upstream chunk may contain more than text
    ) -> None:
        super().__init__()
        self._name = ReplyStart(id, created, model)
        self._wanted = conversation.options.n
        self._limited = conversation.options.max_tokens is not None
        self._candidates: dict[int, _OutgoingCandidate] = {}
        self._started = False
        self._tail = b""  # bytes after the candidates of a chunk
        self._usage = NO_USAGE

    def keepalive(self) -> bytes:
        """Return bytes that may be sent between two calls to `feed` while the upstream is silent."""
        return KEEPALIVE

    def text(self, event: ReplyTextDelta) -> bytes:
        candidate = self._candidates.get(event.choice)
        text = event.text
        if candidate is None or not candidate.plain:
            candidate = self._candidate(event.choice)
            if not text or self._ended or candidate.finish is not None:
                return b""
            # Text truncates a call that is still open, because a call is written as one part and cannot be continued
            # later.
            candidate.drop_call()
            text = candidate.space.feed(text)
            candidate.plain = bool(text)
        return b"".join((self._text_prefix, json_string(text), candidate.suffix)) if text else b""

    def arguments(self, event: ReplyArgumentsDelta) -> bytes:
        candidate = self._candidates[event.choice]
        if candidate.call is not None and event.index == candidate.call.index:
            candidate.arguments.add(event.text)
        return b""  # a call is written when it is complete

    def _reasoning(self, event: ReplyReasoningDelta, out: Out) -> None:
        candidate = self._candidate(event.choice)
        if event.text and candidate.finish is None:
            self._part(b'"thought":true,"text":' + json_string(event.text), candidate, out)

    # --- the beginning

    _text_prefix: ClassVar[bytes] = BEFORE + b'{"candidates":[{"content":{"parts":[{"text":'

    def _part(self, fields: bytes, candidate: _OutgoingCandidate, out: Out) -> None:
        """Write a chunk with one part; `fields` are the part's JSON fields, without braces."""
        out += (self._text_prefix.removesuffix(b'"text":'), fields, candidate.suffix)

    def _start(self, event: ReplyStart, out: Out) -> None:  # noqa: ARG002  nothing is sent yet
        if not self._started:
            self._started = True
            name = merge_start(event, self._name)
            fields = wire.encode({"modelVersion": name.model, "responseId": name.id})
            self._tail = b"]," + fields[1:] + self.AFTER

    def _candidate(self, index: int) -> _OutgoingCandidate:
        candidate = self._candidates.get(index)
        if candidate is None:
            self._start(ReplyStart(), [])
            suffix = b'}],"role":"model"},"index":%d}' % index + self._tail
            candidate = self._candidates[index] = _OutgoingCandidate(index, suffix=suffix)
        return candidate

    # --- calls

    def _open_call(self, event: ReplyCallStart, out: Out) -> None:  # noqa: ARG002  as above
        candidate = self._candidate(event.choice)
        # Calls never overlap: a new call causes an unfinished one to be dropped.
        if candidate.finish is None:
            candidate.drop_call()
            candidate.call = event
            candidate.arguments = self.excerpt(event.choice)
            candidate.plain = False
            candidate.space.call_written()

    def _close_call(self, event: ReplyCallEnd, out: Out) -> None:
        candidate = self._candidate(event.choice)
        call = candidate.call
        if call is None or event.index != call.index:
            return
        if not event.complete:
            candidate.drop_call()
            return
        part = call_part(call.id, call.name, str(candidate.arguments), call.signature)
        candidate.call = None
        candidate.arguments = Excerpt()
        self._part(wire.encode(part)[1:-1], candidate, out)

    # --- the end

    def _finish(self, event: ReplyFinish, out: Out) -> None:  # noqa: ARG002  the last chunk needs the usage
        candidate = self._candidate(event.choice)
        if candidate.finish is None:
            candidate.drop_call()
            candidate.plain = False
            candidate.finish = event

    def _count(self, usage: Usage) -> None:
        self._usage = usage

    def _end(self, out: Out) -> None:
        # The last chunk contains all finish reasons and the usage, so it is written here and not in `_finish`.
        last = []
        for index, candidate in sorted(self._candidates.items()):
            if candidate.finish is None:
                break
            reason = finish_reason(candidate.finish.reason, cut=candidate.cut, limited=self._limited)
            # The last chunk contains an empty text part, because the SDKs' chat sessions drop a reply without parts.
            last.append({"content": {"parts": [EMPTY], "role": "model"}, "finishReason": reason, "index": index})
        if not last or len(last) < max(self._wanted, len(self._candidates)):
            self._fail(no_reason_error(), out)
            return
        self._stop()
        usage = b'],"usageMetadata":' + wire.encode(usage_fields(self._usage)) + b","
        chunk = b'{"candidates":' + wire.encode(last)[:-1] + usage
        out += (self.BEFORE, chunk, self._tail.removeprefix(b"],"))

    def _fail(self, error: StreamtoolError, out: Out) -> None:
        self._stop()
        out += (self.BEFORE_ERROR, wire.encode(error_fields(error)), b"\n")

    def _stop(self) -> None:
        """Stop writing, and discard all later events."""
        self._ended = True
        for candidate in self._candidates.values():
            candidate.plain, candidate.call = False, None


class ArrayWriter(ReplyWriter):
    """Writer for one streamed reply, as the elements of an array."""

    __slots__ = ("_begun",)
    WRITES_ALONE = False
    BEFORE = BEFORE_ERROR = b",\n"
    AFTER = b""
    _text_prefix = BEFORE + ReplyWriter._text_prefix.removeprefix(ReplyWriter.BEFORE)  # noqa: SLF001  its own class

    def __init__(
        self, conversation: Conversation, *, id: str, created: int, model: str, forwards: bool = False
    ) -> None:
        super().__init__(conversation, id=id, created=created, model=model, forwards=forwards)
        self._begun = False

    def feed(self, events: Iterable[ReplyEvent]) -> bytes:
        """Return the bytes for `events`; see the base class. The array's opening and closing brackets are included."""
        over = self._ended
        data = super().feed(events)
        # Every chunk, including an error, begins with a comma, so the opening bracket replaces the first chunk's comma.
        if data and not self._begun:
            self._begun = True
            data = b"[" + data.removeprefix(self.BEFORE)
        return data + b"\n]" if self._ended and not over else data
