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
from typing import Any, Final

from attrs import Factory, define

from streamtool import sse
from streamtool.errors import UpstreamError
from streamtool.protocols import body_sniffer as answers
from streamtool.protocols import wire
from streamtool.protocols.body_sniffer import BodySniffer, broken_off, tokens, too_large, unreadable
from streamtool.reply import (
    Reason,
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

Json = Any  # a decoded JSON value
Events = list[ReplyEvent]

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

_decode: Final = wire.decode
_BETWEEN: Final = re.compile(rb'["{}\[\],]').search
_WITHIN: Final = re.compile(rb'["{}\[\]]').search
_STRING: Final = re.compile(rb'[^"\\]*+').match
_QUOTE: Final = ord('"')


def read_error(status: int, body: bytes) -> UpstreamError:
    """The error that the upstream answered with; a key that it does not know (400) is ours, like a 401."""
    return answers.read_error(401 if b"API_KEY_INVALID" in body else status, body)


class _Elements:
    """The elements of a JSON array that comes in pieces.

    Only strings and brackets are looked at until an element is whole; so no byte is looked at twice, and nothing is
    built of what is nested without end. `broken` says that what came is no JSON; the elements before were returned.
    """

    __slots__ = ("_depth", "_escaped", "_pieces", "_string", "broken", "held")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of the element that is open, and what stands before it
        self._depth = 0  # brackets that are open, that of the array included; -1: the array is over
        self._string = False  # a string is open
        self._escaped = False  # its next character is escaped
        self.broken = False
        self.held = 0

    def feed(self, data: bytes, *, last: bool = False) -> list[Json]:
        """The elements that end in `data`; `last` says that nothing follows."""
        found: list[Json] = []
        at = begin = 0
        while at < len(data) and not self.broken and self._depth >= 0:
            if self._string:
                at = self._in_string(data, at)
                continue
            mark = (_BETWEEN if self._depth == 1 else _WITHIN)(data, at)
            if mark is None:
                break
            at, char = mark.end(), mark[0]
            if char == b'"':
                self._string = True
            elif char in b"{[":
                self._depth += 1
                begin = at if self._depth == 1 else begin
            else:
                self._depth -= char != b","
                if self._depth <= 1:
                    # what closes an element belongs to it, what stands behind one does not
                    self._element(data[begin : at - (self._depth == 0 or char == b",")], found)
                    begin = at
                    self._depth = self._depth or -1
        if self._depth < 0:  # nothing stands behind the array
            self.broken = self.broken or bool(data[begin:].strip())
            return found
        self._pieces.append(data[begin:])
        self.held += len(data) - begin
        if last and self._depth == 1:
            self._element(b"", found)
        return found

    def _in_string(self, data: bytes, at: int) -> int:
        """The place behind the string, or the end of `data`."""
        if not self._escaped:
            at = _STRING(data, at).end()  # type: ignore[union-attr]  # it matches nothing as well
            if at == len(data):
                return at
            self._string = data[at] != _QUOTE
            self._escaped = self._string
        else:
            self._escaped = False
        return at + 1

    def _element(self, rest: bytes, found: list[Json]) -> None:
        """Whatever stands between two commas; nothing is nothing."""
        data = b"".join((*self._pieces, rest)).strip()
        self._pieces.clear()
        self.held = 0
        if data:
            try:
                found.append(wire.decode_tolerant(data))
            except ValueError:
                self.broken = True


@define
class _Candidate:
    """One of the replies, as far as it came."""

    index: int
    calls: int = 0
    reason: Reason | None = None
    text: wire.Joiner = Factory(wire.Joiner)
    reasoning: wire.Joiner = Factory(wire.Joiner)


class ReplyReader:
    """Reads one reply with `n` candidates.

    `usage` is the last report so far, also when the reply never ends; `ended` says that nothing more will come out.
    """

    __slots__ = (
        "_after", "_answer", "_behind", "_blocked", "_candidates", "_counts", "_elements", "_head", "_kept", "_n",
        "_started", "ended",
    )  # fmt: skip

    def __init__(self, *, n: int = 1) -> None:
        self.ended = False
        self._n = n
        self._head = b""  # the beginning while it may still become a byte order mark
        self._elements: _Elements | None = None  # the answer, if it is an array
        self._answer: BodySniffer | None = None  # the answer, if it is anything else
        self._after: list[bytes] = []  # what came with the last event of a stream, and since
        self._kept = 0  # bytes in `_after`
        self._behind = False  # the first piece of `_after` holds the end of an event
        self._counts: dict[str, Json] | None = None
        self._candidates: dict[int, _Candidate] = {}
        self._blocked = False
        self._started = False

    @property
    def usage(self) -> Usage | None:
        """The last report."""
        return None if self._counts is None else _usage(self._counts)

    def feed(self, data: bytes) -> list[ReplyEvent]:
        """What `data` says."""
        events: Events = []
        if self.ended:
            return events
        if self._answer is not None:
            self._stream(self._answer, data, events)
        elif self._elements is not None:
            self._array(self._elements, data, events)
        else:
            self._begin(data, events)
        return events

    def close(self) -> list[ReplyEvent]:
        """What the end of the answer says; a reply that broke off ends in a `ReplyFailure`."""
        events: Events = []
        if self.ended:
            return events
        answer = self._answer
        if answer is not None:
            for event in answer.close():
                self._event(event, events)
            body = answer.body
            if answer.error is not None and not self.ended:
                self._fail(answer.error, events)
            elif body is not None and not self.ended:
                self._whole(body, events)
        elif self._elements is not None:
            self._array(self._elements, b"", events, last=True)
        if not self.ended:
            self._end(events, marked=False)
        return events

    def _begin(self, data: bytes, events: Events) -> None:
        """Tell what the answer is, at its first byte that is not white space."""
        head = self._head + data
        start = head.removeprefix(sse.BOM).lstrip()
        if not start or sse.BOM.startswith(head):
            self._head = head if sse.BOM.startswith(head) else b""
            return
        self._head = b""
        if start[:1] == b"[":
            self._elements = _Elements()
            self._array(self._elements, start, events)
        else:
            self._answer = BodySniffer(final=(b"[DONE]",))
            self._stream(self._answer, start, events)

    def _array(self, elements: _Elements, data: bytes, events: Events, *, last: bool = False) -> None:
        for chunk in elements.feed(data, last=last):
            if isinstance(chunk, dict) and not self.ended:
                self._chunk(chunk, events)
        if not self.ended and (elements.broken or elements.held > sse.HELD):
            self._fail(unreadable() if elements.broken else too_large(), events)

    def _whole(self, body: bytes, events: Events) -> None:
        try:
            value = wire.decode_tolerant(body)
        except ValueError:
            self._fail(broken_off(), events)
            return
        self._chunk(value, events)
        if self.ended:
            return
        if self._candidates or self._blocked:
            self._end(events, marked=True)
        else:
            self._fail(wire.upstream_error(value), events)

    # --- an event stream

    def _stream(self, answer: BodySniffer, data: bytes, events: Events) -> None:
        found = answer.feed(data)
        for event in found:
            self._event(event, events)
        if found or self._kept > _AFTER:
            self._after = []
            self._kept = 0
            self._behind = bool(found)
        if answer.stream is not None:
            self._after.append(data)
            self._kept += len(data)
        if answer.error is not None and not self.ended:
            self._fail(answer.error, events)

    def _event(self, event: sse.Event, events: Events) -> None:
        if self.ended:
            return
        data = event.data
        try:
            chunk = _decode(data)
        except wire.UNREADABLE:
            if data.strip() == b"[DONE]":
                self._end(events, marked=True)
                return
            try:
                chunk = wire.decode_tolerant(data)
            except ValueError:
                if data.lstrip()[:1] == b"{":
                    self._fail(unreadable(), events)
                elif event.name == "error":
                    self._fail(wire.upstream_error(data.decode("utf-8", "replace")), events)
                return
        if isinstance(chunk, list) and chunk:
            chunk = chunk[0]
        if isinstance(chunk, dict):
            if event.name == "error" and not chunk.get("error"):
                self._fail(wire.upstream_error(chunk), events)
            else:
                self._chunk(chunk, events)

    def _bare_error(self) -> UpstreamError | None:
        """The error that stands between the events, if one does."""
        since = self._after
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

    # --- a chunk, or a whole reply

    def _chunk(self, chunk: dict[str, Json], events: Events) -> None:
        if chunk.get("error"):
            self._fail(wire.upstream_error(chunk), events)
            return
        counts = _field(chunk, "usageMetadata", "usage_metadata")
        if isinstance(counts, dict):
            self._counts = counts
        candidates = chunk.get("candidates")
        if isinstance(candidates, list) and candidates:
            self._start(chunk, events)
            for position, fields in enumerate(candidates):
                if isinstance(fields, dict):
                    self._candidate(fields, position, events)
            return
        feedback = _field(chunk, "promptFeedback", "prompt_feedback")
        if isinstance(feedback, dict) and _field(feedback, "blockReason", "block_reason"):
            self._start(chunk, events)
            self._blocked = True

    def _start(self, chunk: dict[str, Json], events: Events) -> None:
        if self._started:
            return
        self._started = True
        names = [_field(chunk, "responseId", "response_id"), _field(chunk, "modelVersion", "model_version")]
        identity, model = (wire.repaired(name) if isinstance(name, str) and name else None for name in names)
        events.append(ReplyStart(identity, None, model))

    def _candidate(self, fields: dict[str, Json], position: int, events: Events) -> None:
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
            found = _REASONS.get(reason, Reason.STOP)
            candidate.reason = found if found is not Reason.STOP else candidate.reason or found

    # --- the end

    def _end(self, events: Events, *, marked: bool) -> None:
        """The answer is over; `marked` says that the upstream said so itself."""
        candidates = [self._candidates[index] for index in sorted(self._candidates)]
        if self._blocked and not candidates:
            candidates = [_Candidate(index, reason=Reason.FILTER) for index in range(self._n)]
        if not candidates or not (marked or all(candidate.reason for candidate in candidates)):
            answer = None if self._started else self._answer
            self._fail(self._bare_error() or (broken_off() if answer is None else answer.broken_off()), events)
            return
        if len(candidates) < self._n:
            sentence = f"The upstream gave {len(candidates)} of {self._n} choices; ask for one at a time."
            self._fail(UpstreamError(sentence, param="n", code="choices_missing"), events)
            return
        for candidate in candidates:
            for joiner, kind in ((candidate.reasoning, ReplyReasoningDelta), (candidate.text, ReplyTextDelta)):
                rest = joiner.close()
                if rest:
                    events.append(kind(candidate.index, rest))
            events.append(ReplyFinish(candidate.index, candidate.reason or Reason.STOP))
        if self._counts is not None:
            events.append(UsageReport(_usage(self._counts)))
        events.append(ReplyEnd())
        self.ended = True

    def _fail(self, error: UpstreamError, events: Events) -> None:
        events.append(ReplyFailure(error))
        self.ended = True


def _part(part: dict[str, Json], candidate: _Candidate, events: Events) -> None:
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
            _text(call.get("id")),
            wire.repaired(name),
            _text(_field(part, "thoughtSignature", "thought_signature")),
        ),
        ReplyArgumentsDelta(candidate.index, index, wire.encode(call.get("args") or {}).decode()),
        ReplyCallEnd(candidate.index, index),
    )


def _text(value: Json) -> str | None:
    """A string with something in it; else None."""
    return wire.repaired(value) if isinstance(value, str) and value else None


def _field(fields: dict[str, Json], camel: str, snake: str) -> Json:
    """What stands under either spelling of a key."""
    return fields[camel] if camel in fields else fields.get(snake)


def _usage(counts: dict[str, Json]) -> Usage:
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
