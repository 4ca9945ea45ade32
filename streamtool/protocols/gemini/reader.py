"""Reads Gemini's reply, an event stream or a JSON array that is streamed, into reply events.

Theory of operation. With `alt=sse` the chunks are events; a server that ignores it sends one array whose elements are
the chunks, printed over many lines. The first byte tells: `[` is an array, which is parsed as its bytes come; the rest
(a stream, one document, a page) is told apart by `BodySniffer`. A chunk is the same object in all of them, and so is a
whole reply. Its keys are in camel case or in snake case, as the server was built.

What is worth knowing about Gemini:
- There is no end mark. The reply is whole if each candidate has given a reason by the end of the answer.
- A prompt that is blocked has no candidate at all, but a reason for that.
- Thoughts are parts of text like others, marked. Calls come whole in one part, often without an id. The part of a call
  may bear a signature; newer models refuse the next request if the call comes back without it. Of calls that are made
  at once only the first one has it.
- Counts stand on every chunk, and the last ones are right. They count thoughts beside the answer, not in it.
- An error in the middle of a stream may come as bare JSON over several lines, between the events, where the rules of
  event streams throw it away. What came since the last event is therefore kept, within bounds, to be looked at when the
  answer breaks off.
Nothing here raises on what an upstream sends.
"""

import re
from typing import Final

from attrs import Factory, define

from streamtool import sse
from streamtool.errors import UpstreamError
from streamtool.protocols import body_sniffer, wire
from streamtool.protocols.body_sniffer import Beginning, broken_off, tokens, too_large, unreadable
from streamtool.protocols.gemini.array import ArrayReader
from streamtool.protocols.stream import Events, Fields, Json, StreamReader, choices_missing, flush, later, word
from streamtool.reply import (
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

_REASONS: Final = {
    "MAX_TOKENS": Reason.LENGTH,
    **dict.fromkeys(
        ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY"),
        Reason.FILTER,
    ),
}
"""Everything else (`STOP`, `OTHER`, `MALFORMED_FUNCTION_CALL`, …) is a stop."""
_BLANK: Final = re.compile(rb"(?>\r\n|\r|\n)(?>\r\n|\r|\n)").search  # a line without anything ends an event
_AFTER: Final = 64 * 1024  # bytes since the last event that are kept


def read_error(status: int, body: bytes) -> UpstreamError:
    """The error that the upstream answered with; a key that it does not know (400) is ours, like a 401."""
    return body_sniffer.read_error(401 if b"API_KEY_INVALID" in body else status, body)


@define
class _Candidate:
    """One of the replies, as far as it came."""

    index: int
    calls: int = 0
    reason: Reason | None = None
    text: wire.Joiner = Factory(wire.Joiner)
    reasoning: wire.Joiner = Factory(wire.Joiner)


class Remainder:
    """What came of an event stream with its last event and since, within bounds: a bare error may stand there."""

    __slots__ = ("_behind", "_kept", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._kept = 0  # bytes in `_pieces`
        self._behind = False  # the first piece holds the end of an event

    def feed(self, data: bytes, *, ends: bool) -> None:
        """A piece of the stream; `ends`: an event ends in it."""
        if ends or self._kept > _AFTER:
            self._pieces.clear()
            self._kept = 0
            self._behind = ends
        self._pieces.append(data)
        self._kept += len(data)

    def error(self) -> UpstreamError | None:
        """The error that stands between the events, if one does."""
        since = self._pieces
        if self._behind and since[0][:1] not in (b"\r", b"\n"):
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
    """Reads one reply with `n` candidates."""

    __slots__ = ("_array", "_beginning", "_blocked", "_candidates", "_n", "_remainder", "_started")

    def __init__(self, *, n: int = 1) -> None:
        super().__init__()
        self._n = n
        self._beginning: Beginning | None = Beginning()  # until the kind of the answer is known
        self._array: ArrayReader | None = None  # the answer, if it is an array
        self._remainder = Remainder()
        self._candidates: dict[int, _Candidate] = {}
        self._blocked = False
        self._started = False

    def feed(self, data: bytes) -> Events:
        """What `data` says."""
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
        if answer.stream is not None:
            self._remainder.feed(data, ends=bool(found))
        if answer.error is not None:
            self._fail(answer.error, events)
        return events

    def _begin(self, beginning: Beginning, data: bytes) -> bytes:
        data = beginning.feed(data)
        if data:
            self._beginning = None
            self._array = ArrayReader() if data[:1] == b"[" else None
        return data

    def _last(self, events: Events) -> None:
        if self._array is None:
            super()._last(events)
        else:
            self._elements(self._array, b"", events, last=True)

    def _elements(self, array: ArrayReader, data: bytes, events: Events, *, last: bool = False) -> None:
        for chunk in array.feed(data, last=last):
            if isinstance(chunk, dict) and not self.ended:
                self._read(chunk, None, events)
        if array.broken or array.held > sse.HELD:
            self._fail(unreadable() if array.broken else too_large(), events)

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

    def _read(self, fields: Fields, event: sse.Event | None, events: Events) -> None:  # noqa: ARG002
        if fields.get("error"):
            self._fail(wire.upstream_error(fields), events)
            return
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
        if isinstance(feedback, dict) and _field(feedback, "blockReason", "block_reason"):
            self._start(fields, events)
            self._blocked = True

    def _start(self, fields: Fields, events: Events) -> None:
        if not self._started:
            self._started = True
            identity = word(_field(fields, "responseId", "response_id"))
            events.append(ReplyStart(identity, None, word(_field(fields, "modelVersion", "model_version"))))

    def _candidate(self, fields: Fields, position: int, events: Events) -> None:
        index = fields.get("index")
        if self._n == 1 or not isinstance(index, int) or isinstance(index, bool) or index < 0:
            index = position
        if index >= self._n:
            return  # nobody asked for it
        candidate = self._candidates.get(index)
        if candidate is None:
            candidate = self._candidates[index] = _Candidate(index)
        content = fields.get("content")
        parts = content.get("parts") if isinstance(content, dict) else None
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict):
                _part(part, candidate, events)
        reason = _field(fields, "finishReason", "finish_reason")
        if isinstance(reason, str) and reason:
            candidate.reason = later(_REASONS.get(reason, Reason.STOP), candidate.reason)

    # --- the end

    def _end(self, events: Events, *, marked: bool) -> None:
        candidates = [self._candidates[index] for index in sorted(self._candidates)]
        if self._blocked and not candidates:
            candidates = [_Candidate(index, reason=Reason.FILTER) for index in range(self._n)]
        if not candidates or not (marked or all(candidate.reason for candidate in candidates)):
            self._fail(self._remainder.error() or self._broken_off(), events)
            return
        if len(candidates) < self._n:
            self._fail(choices_missing(len(candidates), self._n), events)
            return
        for candidate in candidates:
            flush(candidate.index, candidate.reasoning, candidate.text, events)
            events.append(ReplyFinish(candidate.index, candidate.reason or Reason.STOP))
        self._done(events)

    def _usage(self, counts: Fields) -> Usage:
        return _usage(counts)

    def _broken_off(self) -> UpstreamError:
        silent = not self._started and self._array is None and self._beginning is None
        return self._answer.broken_off() if silent else broken_off()


def _part(part: Fields, candidate: _Candidate, events: Events) -> None:
    """One part of a candidate: text, a thought, or a call."""
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
            word(call.get("id")),
            wire.repaired(name),
            word(_field(part, "thoughtSignature", "thought_signature")),
        ),
        ReplyArgumentsDelta(candidate.index, index, wire.encode(call.get("args") or {}).decode()),
        ReplyCallEnd(candidate.index, index),
    )


def _field(fields: Fields, camel: str, snake: str) -> Json:
    """What stands under either spelling of a key."""
    return fields[camel] if camel in fields else fields.get(snake)


def _usage(counts: Fields) -> Usage:
    def count(camel: str, snake: str) -> int:
        return tokens(counts, camel) or tokens(counts, snake)

    thoughts = count("thoughtsTokenCount", "thoughts_token_count")
    return Usage(
        input=count("promptTokenCount", "prompt_token_count")
        + count("toolUsePromptTokenCount", "tool_use_prompt_token_count"),
        output=count("candidatesTokenCount", "candidates_token_count") + thoughts,
        cached=count("cachedContentTokenCount", "cached_content_token_count"),
        reasoning=thoughts,
    )
