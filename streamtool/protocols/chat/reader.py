"""Reads an upstream's Chat Completions reply, in whatever shape it really comes, into reply events.

Theory of operation. What the answer is (an event stream, one document, a web page), `BodySniffer` tells. A whole reply
goes through the same code as a chunk: a `message` is read like a `delta`. A chunk is decoded as a whole, which takes
half a microsecond; the common one, which holds a piece of text and nothing else, is recognised first and leaves with
its own bytes in `TextDelta.raw`. The events of one reply differ in nothing but their text, as a rule: once one was read
and recognised, what stands before and behind its text is remembered, and of an event that begins and ends so only the
text is decoded.

What is worth knowing about upstreams:
- Some put a finish reason on every chunk, some send two. A choice is therefore finished when the stream says so
  (`[DONE]`, a chunk without choices, the end), not when a reason comes; text that follows a reason is not lost.
- Native calls may come although text was asked for. One call is open at a time: what belongs elsewhere while its
  arguments are no whole object is queued until the end. An upstream that finishes one call before the next, as all
  should, never meets the queue.
- Half a character may stand at the end of a piece (`wire.Joiner`).
Nothing here raises on what an upstream sends.
"""

import re
from typing import Any, Final

import msgspec

from streamtool import sse
from streamtool.errors import UpstreamError
from streamtool.protocols import wire
from streamtool.protocols.body_sniffer import BodySniffer, broken_off, tokens, too_large, unreadable
from streamtool.protocols.chat.choice import ChoiceReader
from streamtool.reply import (
    Reason,
    ReplyEnd,
    ReplyEvent,
    ReplyFailure,
    ReplyFinish,
    ReplyStart,
    ReplyTextDelta,
    Usage,
    UsageReport,
)

Json = Any  # a decoded JSON value

_REASONS: Final = {
    "length": Reason.LENGTH,
    "max_tokens": Reason.LENGTH,
    "content_filter": Reason.FILTER,
    "safety": Reason.FILTER,
    "stop_sequence": Reason.STOP_SEQUENCE,
}
"""Everything else (`stop`, `tool_calls`, `function_call`, `eos`, …) is a stop."""

_decode: Final = wire.decode
_string: Final = msgspec.json.Decoder(str).decode
_content: Final = re.compile(rb'"content":[ ]?"').search
_escaped: Final = re.compile(rb'["\\\x00-\x1f]').search
_LOOKS: Final = 4  # how often the shape of an event is remembered; an upstream whose events all differ has none


class ReplyReader:
    """Reads one reply with `n` choices.

    `usage` is the last report so far, also when the reply never ends; `ended` says that nothing more will come out.
    """

    __slots__ = (
        "_answer", "_before", "_behind", "_choices", "_created", "_id", "_looks", "_model", "_n", "_named", "_quick",
        "_speaker", "ended", "usage",
    )  # fmt: skip

    def __init__(self, *, n: int = 1) -> None:
        self.usage: Usage | None = None
        self.ended = False
        self._n = n
        self._id: str | None = None
        self._created: int | None = None
        self._model: str | None = None
        self._named = False  # the reply has an id, a time and a model of its own, which a forwarded event repeats
        self._choices: dict[int, ChoiceReader] = {}
        self._answer = BodySniffer(final=(b"[DONE]",))
        self._before = self._behind = b""  # the shape of an event of nothing but text
        self._speaker: ChoiceReader | None = None  # the choice whose text it is
        self._quick: ChoiceReader | None = None  # the same, while an event begins next and its text may pass
        self._looks = 0

    def feed(self, data: bytes) -> list[ReplyEvent]:
        """What `data` says."""
        quick = self._quick
        if quick is not None and data.startswith(self._before) and data.endswith(self._behind):
            try:  # with its quotes it is one string, or else something that only looked like this event
                text = _string(data[len(self._before) - 1 : 1 - len(self._behind)])
            except wire.UNREADABLE:
                text = ""
            if text:
                return [ReplyTextDelta(quick.index, text, data)]
        events: list[ReplyEvent] = []
        if self.ended:
            return events
        answer = self._answer
        for event in answer.feed(data):
            self._event(event, events)
        if answer.error is not None and not self.ended:
            self._fail(answer.error, events)
        speaker = self._speaker
        idle = speaker is not None and speaker.plain and answer.stream is not None and answer.stream.idle
        self._quick = speaker if idle else None
        return events

    def close(self) -> list[ReplyEvent]:
        """What the end of the answer says; a reply that broke off ends in a `ReplyFailure`."""
        events: list[ReplyEvent] = []
        self._quick = None
        if self.ended:
            return events
        for event in self._answer.close():
            self._event(event, events)
        if self._answer.error is not None and not self.ended:
            self._fail(self._answer.error, events)
        body = self._answer.body
        if body is not None and not self.ended:
            self._whole(body, events)
        if not self.ended:
            self._end(events, marked=False)
        return events

    def _whole(self, body: bytes, events: list[ReplyEvent]) -> None:
        try:
            value = wire.decode_tolerant(body)
        except ValueError:
            self._fail(broken_off(), events)
            return
        if isinstance(value, list) and value:
            value = value[0]
        if isinstance(value, dict) and isinstance(value.get("choices"), list) and not value.get("error"):
            self._chunk(value, events)
            if not self.ended:
                self._end(events, marked=True)
            return
        self._fail(wire.upstream_error(value), events)

    # --- an event stream

    def _event(self, event: sse.Event, events: list[ReplyEvent]) -> None:
        if self.ended:
            return
        try:
            chunk = _decode(event.data)
        except wire.UNREADABLE:
            self._odd(event, events)
            return
        if type(chunk) is not dict:
            return
        if event.raw is not None and event.name is None and self._named:
            text = self._forwardable(chunk)
            if text is not None:
                text.raw = event.raw
                events.append(text)
                if self._looks < _LOOKS:
                    self._remember(text, event.raw)
                return
        if event.name == "error" and not chunk.get("error"):
            self._fail(wire.upstream_error(chunk), events)
            return
        self._chunk(chunk, events)

    def _forwardable(self, chunk: dict[str, Json]) -> ReplyTextDelta | None:
        """The text of a chunk that holds nothing else: the common case, and what may be forwarded as it came."""
        choices = chunk.get("choices")
        if type(choices) is not list or len(choices) != 1 or type(choices[0]) is not dict:
            return None
        choice = choices[0]
        delta, index = choice.get("delta"), choice.get("index")
        if type(delta) is not dict or len(delta) != 1 or type(index) is not int:
            return None
        text = delta.get("content")
        state = self._choices.get(index)
        if (
            type(text) is str
            and text
            and state is not None
            and state.plain
            and choice.get("finish_reason", "") is None
            and chunk.get("usage") is None
            and "error" not in chunk
            and chunk.get("id") == self._id
            and chunk.get("created") == self._created
            and chunk.get("model") == self._model
            and chunk.get("object") == "chat.completion.chunk"
        ):
            return ReplyTextDelta(index, text)
        return None

    def _remember(self, event: ReplyTextDelta, raw: bytes) -> None:
        """Keep what stands before and behind the text of this event, if that is all there is to it."""
        text, content = event.text.encode(), _content(raw)
        known = self._speaker is not None and raw.startswith(self._before)
        if known or content is None or _escaped(text) is not None:
            return
        self._looks += 1
        before, behind = raw[: content.end()], raw[content.end() + len(text) :]
        try:
            again = self._forwardable(_decode(before[6:] + b"x" + behind))
        except wire.UNREADABLE:
            return
        if before + text + behind == raw and again == ReplyTextDelta(event.choice, "x"):
            self._before, self._behind, self._speaker = before, behind, self._choices[event.choice]

    def _odd(self, event: sse.Event, events: list[ReplyEvent]) -> None:
        """An event that is not strict JSON: the end mark, damaged JSON, or something that nobody defined."""
        data = event.data.strip()
        if data.startswith(b"[DONE]"):
            self._end(events, marked=True)
            return
        try:
            chunk = wire.decode_tolerant(data)
        except ValueError:
            if data[:1] == b"{":
                self._fail(unreadable(), events)
            elif event.name == "error":
                self._fail(wire.upstream_error(data.decode("utf-8", "replace")), events)
            return
        if isinstance(chunk, dict):
            self._chunk(chunk, events)

    # --- a chunk, or a whole reply

    def _chunk(self, chunk: dict[str, Json], events: list[ReplyEvent]) -> None:
        if chunk.get("error") or chunk.get("object") == "error":
            self._fail(wire.upstream_error(chunk), events)
            return
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self.usage = _usage(usage)
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices:
            # usage, or a filter's report that comes before everything else; no text follows the usage
            if self._choices and all(state.reason for state in self._choices.values()):
                self._finish(events)
            return
        self._start(chunk, events)
        for position, choice in enumerate(choices):
            if not isinstance(choice, dict):
                continue
            index = choice.get("index")
            if self._n == 1 or not isinstance(index, int) or isinstance(index, bool) or index < 0:
                index = position
            if index >= self._n:
                continue  # nobody asked for it
            state = self._choices.get(index)
            if state is None:
                state = self._choices[index] = ChoiceReader(index)
            if not state.finished:
                state.read(choice, events)
            if state.kept > sse.HELD:
                self._fail(too_large(), events)
                return
            reason = choice.get("finish_reason")
            if reason == "error":
                self._fail(wire.upstream_error(choice), events)
                return
            if isinstance(reason, str) and reason not in ("", "null"):
                found = _REASONS.get(reason.lower(), Reason.STOP)
                state.reason = found if found is not Reason.STOP else state.reason or found

    def _start(self, chunk: dict[str, Json], events: list[ReplyEvent]) -> None:
        if self._choices:
            return
        identity, created, model = (chunk.get(key) for key in ("id", "created", "model"))
        if isinstance(identity, str) and identity:
            self._id = wire.repaired(identity)
        if isinstance(created, int) and not isinstance(created, bool) and created > 0:
            self._created = created
        if isinstance(model, str) and model:
            self._model = wire.repaired(model)
        self._named = self._id is not None and self._created is not None and self._model is not None
        events.append(ReplyStart(self._id, self._created, self._model))

    # --- the end

    def _finish(self, events: list[ReplyEvent]) -> None:
        for index in sorted(self._choices):
            state = self._choices[index]
            if not state.finished:
                reason = state.reason or Reason.STOP
                state.close(events, cut=reason is not Reason.STOP)
                events.append(ReplyFinish(index, reason))

    def _end(self, events: list[ReplyEvent], *, marked: bool) -> None:
        """The answer is over; `marked` says that the upstream said so itself."""
        if not self._choices:
            if not marked:
                self._fail(self._answer.broken_off(), events)
                return
            self._start({}, events)
            self._choices[0] = ChoiceReader(0)
        if not marked and not all(state.reason for state in self._choices.values()):
            self._fail(broken_off(), events)
            return
        if len(self._choices) < self._n:
            sentence = f"The upstream gave {len(self._choices)} of {self._n} choices; ask for one at a time."
            self._fail(UpstreamError(sentence, param="n", code="choices_missing"), events)
            return
        self._finish(events)
        if self.usage is not None:
            events.append(UsageReport(self.usage))
        events.append(ReplyEnd())
        self.ended = True

    def _fail(self, error: UpstreamError, events: list[ReplyEvent]) -> None:
        events.append(ReplyFailure(error))
        self.ended = True
        self._speaker = None


def _usage(fields: dict[str, Json]) -> Usage:
    details = fields.get("prompt_tokens_details")
    cached = tokens(details, "cached_tokens") or tokens(fields, "prompt_cache_hit_tokens")
    return Usage(
        input=tokens(fields, "prompt_tokens"),
        output=tokens(fields, "completion_tokens"),
        cached=cached,
        reasoning=tokens(fields.get("completion_tokens_details"), "reasoning_tokens"),
    )
