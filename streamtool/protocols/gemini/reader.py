"""Reader for Gemini's reply: an event stream, or a streamed JSON array.

Theory of operation. With `alt=sse`, each chunk is an event; a server that ignores this parameter sends one array whose
elements are the chunks, each spread over many lines. The first byte identifies the format: `[` starts an array, which
is parsed as its bytes arrive; anything else (a stream, a document, a web page) is left to `BodySniffer`. Chunks and
whole replies are objects of the same form in every format. Their keys are in camel case or snake case, depending on the
server.

Facts about Gemini:
- It sends no end marker. The reply is complete if every candidate has a finish reason when the response ends.
- If the prompt is blocked, the reply contains no candidates, only the block reason.
- Thoughts are text parts that are marked as thoughts. A call is sent complete in one part, often without an id. This
  part may have a signature, and newer models reject the next request if the call is sent back without its signature.
  Among parallel calls, only the first has a signature.
- Every chunk reports usage, and the last report is the correct one. Thoughts are counted separately from the answer.
- An error in the middle of a stream may be bare JSON on several lines between the events, which an event stream parser
  discards. The bytes since the last event are therefore buffered, up to a limit, and searched if the stream is
  truncated.

No input from an upstream makes this module raise an exception.
"""

import re
from typing import Final

from attrs import Factory, define

from streamtool.core import sse
from streamtool.core.errors import UpstreamError
from streamtool.core.json_value import Json, JsonObject
from streamtool.core.reply import (
    Reason,
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyFinish,
    ReplyReasoningDelta,
    ReplyStart,
    ReplyTextDelta,
    Usage,
)
from streamtool.protocols.gemini.array import ArrayReader
from streamtool.protocols.shared import body_sniffer, wire
from streamtool.protocols.shared.body_sniffer import (
    LeadingBytesFilter,
    token_count,
    too_large_error,
    truncated_error,
    unreadable_error,
)
from streamtool.protocols.shared.stream import (
    Events,
    StreamReader,
    choices_missing_error,
    flush_joiners,
    nonempty_string,
    stronger_reason,
)

_REASONS: Final = {
    "MAX_TOKENS": Reason.LENGTH,
    **dict.fromkeys(
        ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY"),
        Reason.FILTER,
    ),
}
"""All other reasons (`STOP`, `OTHER`, `MALFORMED_FUNCTION_CALL`, …) count as a plain stop."""
_BLANK: Final = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)").search  # an empty line ends an event
_AFTER: Final = 64 * 1024  # maximum number of bytes to buffer since the last event


def read_error(status: int, body: bytes) -> UpstreamError:
    """Return the error in an upstream's response. Gemini reports an unknown API key with status 400; as with status
    401, the rejected key is ours and not the client's.
    """
    return body_sniffer.read_error(401 if b"API_KEY_INVALID" in body else status, body)


@define
class _IncomingCandidate:
    """State of one candidate while the reply is being received."""

    index: int
    calls: int = 0
    reason: Reason | None = None
    text: wire.Joiner = Factory(wire.Joiner)
    reasoning: wire.Joiner = Factory(wire.Joiner)


class TrailingBytes:
    """Buffer for the bytes of an event stream since its last event, up to a limit. These bytes may contain a bare
    error.
    """

    __slots__ = ("_ends_event", "_kept", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._kept = 0  # number of bytes in `_pieces`
        self._ends_event = False  # whether the first piece contains the end of an event

    def feed(self, data: bytes, *, ends: bool) -> None:
        """Add a piece of the stream; `ends` means that an event ends in this piece."""
        if ends or self._kept > _AFTER:
            self._pieces.clear()
            self._kept = 0
            self._ends_event = ends
        self._pieces.append(data)
        self._kept += len(data)

    def error(self) -> UpstreamError | None:
        """Return the bare error after the last event, if there is one."""
        since = self._pieces
        if self._ends_event and since[0][:1] not in (b"\r", b"\n"):
            begun = max(0, since[0].rfind(b"\ndata:"), since[0].rfind(b"\rdata:"))
            over = _BLANK(since[0], begun)
            since = [since[0][over.end() if over else 0 :], *since[1:]]
        _, begins, rest = b"\n".join((b"", *b"".join(since).splitlines())).partition(b"\n{")
        try:
            value = wire.decode_tolerant(begins + rest)
        except ValueError:
            return None
        return wire.upstream_error(value) if isinstance(value, dict) and value.get("error") else None


class ReplyReader(StreamReader):
    """Reader for one reply with `n` candidates."""

    __slots__ = ("_array", "_beginning", "_blocked", "_candidates", "_n", "_remainder", "_started")

    def __init__(self, *, n: int = 1) -> None:
        super().__init__()
        self._n = n
        self._beginning: LeadingBytesFilter | None = LeadingBytesFilter()  # None once the format is known
        self._array: ArrayReader | None = None  # set if the response is an array
        self._remainder = TrailingBytes()
        self._candidates: dict[int, _IncomingCandidate] = {}
        self._blocked = False
        self._started = False

    def feed(self, data: bytes) -> Events:
        """Return the reply events that `data` completes."""
        events: Events = []
        if self._beginning is not None:
            data = self._begin(self._beginning, data)
        if self.ended or not data:
            return events
        if self._array is not None:
            self._elements(self._array, data, events)
            return events
        answer = self._answer
        found = answer.feed(data)
        for event in found:
            self._event(event, events)
        # A bare error between the events is not an event. It matters only if the stream is truncated, so `_end`
        # searches for it.
        if answer.stream is not None:
            self._remainder.feed(data, ends=bool(found))
        if answer.error is not None:
            self._fail(answer.error, events)
        return events

    def _begin(self, beginning: LeadingBytesFilter, data: bytes) -> bytes:
        data = beginning.feed(data)
        if data:
            self._beginning = None
            self._array = ArrayReader() if data[:1] == b"[" else None
        return data

    def _read_rest(self, events: Events) -> None:
        if self._array is None:
            super()._read_rest(events)
        else:
            self._elements(self._array, b"", events, last=True)

    def _elements(self, array: ArrayReader, data: bytes, events: Events, *, last: bool = False) -> None:
        for chunk in array.feed(data, last=last):
            if isinstance(chunk, dict) and not self.ended:
                self._read(chunk, None, events)
        if array.broken or array.held > sse.MAX_BUFFERED:
            self._fail(unreadable_error() if array.broken else too_large_error(), events)

    def _document(self, value: Json, events: Events) -> None:
        if isinstance(value, dict):
            self._read(value, None, events)
        if self.ended:
            return
        if self._candidates or self._blocked:
            self._end(events, marked=True)
        else:
            self._fail(wire.upstream_error(value), events)

    # --- a chunk, or a whole reply

    def _read(self, fields: JsonObject, event: sse.ServerSentEvent | None, events: Events) -> None:  # noqa: ARG002
        if fields.get("error"):
            self._fail(wire.upstream_error(fields), events)
            return
        # Every chunk contains token counts, but only the last ones are final, so later counts replace earlier ones.
        counts = _field(fields, "usageMetadata", "usage_metadata")
        if isinstance(counts, dict):
            self._counts = counts
        candidates = fields.get("candidates")
        if isinstance(candidates, list) and candidates:
            self._start(fields, events)
            for position, entry in enumerate(candidates):
                if isinstance(entry, dict):
                    self._candidate(entry, position, events)
            return
        feedback = _field(fields, "promptFeedback", "prompt_feedback")
        # A blocked prompt is a reply without candidates. `_end` finishes it with a filter reason.
        if isinstance(feedback, dict) and _field(feedback, "blockReason", "block_reason"):
            self._start(fields, events)
            self._blocked = True

    def _start(self, fields: JsonObject, events: Events) -> None:
        if not self._started:
            self._started = True
            identity = nonempty_string(_field(fields, "responseId", "response_id"))
            events.append(ReplyStart(identity, None, nonempty_string(_field(fields, "modelVersion", "model_version"))))

    def _candidate(self, fields: JsonObject, position: int, events: Events) -> None:
        index = fields.get("index")
        if self._n == 1 or not isinstance(index, int) or isinstance(index, bool) or index < 0:
            index = position
        if index >= self._n:
            return  # not requested
        candidate = self._candidates.get(index)
        if candidate is None:
            candidate = self._candidates[index] = _IncomingCandidate(index)
        content = fields.get("content")
        parts = content.get("parts") if isinstance(content, dict) else None
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict):
                _part(part, candidate, events)
        # The reason may arrive together with the last text, and more text may follow, so `_end` emits the finish.
        reason = _field(fields, "finishReason", "finish_reason")
        if isinstance(reason, str) and reason:
            candidate.reason = stronger_reason(_REASONS.get(reason, Reason.STOP), candidate.reason)

    # --- the end

    def _end(self, events: Events, *, marked: bool) -> None:
        candidates = [self._candidates[index] for index in sorted(self._candidates)]
        if self._blocked and not candidates:
            candidates = [_IncomingCandidate(index, reason=Reason.FILTER) for index in range(self._n)]
        # Gemini sends no end marker: the reply is complete if every candidate has a finish reason.
        if not candidates or not (marked or all(candidate.reason for candidate in candidates)):
            self._fail(self._remainder.error() or self._broken_off(), events)
            return
        if len(candidates) < self._n:
            self._fail(choices_missing_error(len(candidates), self._n), events)
            return
        for candidate in candidates:
            flush_joiners(candidate.index, candidate.reasoning, candidate.text, events)
            events.append(ReplyFinish(candidate.index, candidate.reason or Reason.STOP))
        self._done(events)

    def _usage(self, counts: JsonObject) -> Usage:
        return _usage(counts)

    def _broken_off(self) -> UpstreamError:
        silent = not self._started and self._array is None and self._beginning is None
        return self._answer.truncated_error() if silent else truncated_error()


def _part(part: JsonObject, candidate: _IncomingCandidate, events: Events) -> None:
    """Read one part of a candidate: text, a thought or a call."""
    text = part.get("text")
    if isinstance(text, str) and text:
        if part.get("thought") is True:
            text = candidate.reasoning.feed(text)
            if text:
                events.append(ReplyReasoningDelta(candidate.index, text))
        else:
            text = candidate.text.feed(text)
            if text:
                events.append(ReplyTextDelta(candidate.index, text))
    call = _field(part, "functionCall", "function_call")
    name = call.get("name") if isinstance(call, dict) else None
    if not isinstance(name, str) or not name:
        return
    index = candidate.calls
    candidate.calls += 1
    events += (
        ReplyCallStart(
            candidate.index,
            index,
            nonempty_string(call.get("id")),
            wire.repaired(name),
            nonempty_string(_field(part, "thoughtSignature", "thought_signature")),
        ),
        ReplyArgumentsDelta(candidate.index, index, wire.encode(call.get("args") or {}).decode()),
        ReplyCallEnd(candidate.index, index),
    )


def _field(fields: JsonObject, camel: str, snake: str) -> Json:
    """Return the value under the camel-case key, or under the snake-case key if the camel-case one is absent."""
    return fields[camel] if camel in fields else fields.get(snake)


def _usage(counts: JsonObject) -> Usage:
    def count(camel: str, snake: str) -> int:
        return token_count(counts, camel) or token_count(counts, snake)

    thoughts = count("thoughtsTokenCount", "thoughts_token_count")
    return Usage(
        input=count("promptTokenCount", "prompt_token_count")
        + count("toolUsePromptTokenCount", "tool_use_prompt_token_count"),
        output=count("candidatesTokenCount", "candidates_token_count") + thoughts,
        cached=count("cachedContentTokenCount", "cached_content_token_count"),
        reasoning=thoughts,
    )
