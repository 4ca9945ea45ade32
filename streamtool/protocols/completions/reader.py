"""Reads the reply of a legacy completions upstream, in whatever shape it really comes, into reply events.

Theory of operation. What the answer is (an event stream, one document, a web page), `BodySniffer` tells. A chunk and a
whole reply have the same shape: choices, each with its text and perhaps the reason why it ended. There is nothing but
text.

What is worth knowing about upstreams:
- Some put a finish reason on every chunk, some send two. A choice is therefore finished when the stream says so
  (`[DONE]`, a chunk without choices, the end), not when a reason comes; text that follows a reason is not lost.
- Half a character may stand at the end of a piece (`wire.Joiner`).
Nothing here raises on what an upstream sends.
"""

from typing import Any, Final

from attrs import Factory, define

from streamtool import sse
from streamtool.errors import UpstreamError
from streamtool.protocols import wire
from streamtool.protocols.body_sniffer import BodySniffer, broken_off, tokens, unreadable
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
Events = list[ReplyEvent]

_REASONS: Final = {"length": Reason.LENGTH, "max_tokens": Reason.LENGTH, "content_filter": Reason.FILTER}
"""Everything else (`stop`, `eos_token`, …) is a stop."""

_decode: Final = wire.decode


@define
class _Choice:
    """One of the replies, as far as it came."""

    index: int
    reason: Reason | None = None
    finished: bool = False
    text: wire.Joiner = Factory(wire.Joiner)


class ReplyReader:
    """Reads one reply with `n` choices.

    `usage` is the last report so far, also when the reply never ends; `ended` says that nothing more will come out.
    """

    __slots__ = ("_answer", "_choices", "_n", "ended", "usage")

    def __init__(self, *, n: int = 1) -> None:
        self.usage: Usage | None = None
        self.ended = False
        self._n = n
        self._choices: dict[int, _Choice] = {}
        self._answer = BodySniffer(final=(b"[DONE]",))

    def feed(self, data: bytes) -> list[ReplyEvent]:
        """What `data` says."""
        events: Events = []
        if self.ended:
            return events
        answer = self._answer
        for event in answer.feed(data):
            self._event(event, events)
        if answer.error is not None and not self.ended:
            self._fail(answer.error, events)
        return events

    def close(self) -> list[ReplyEvent]:
        """What the end of the answer says; a reply that broke off ends in a `ReplyFailure`."""
        events: Events = []
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

    def _whole(self, body: bytes, events: Events) -> None:
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

    def _event(self, event: sse.Event, events: Events) -> None:
        if self.ended:
            return
        try:
            chunk = _decode(event.data)
        except wire.UNREADABLE:
            self._odd(event, events)
            return
        if type(chunk) is not dict:
            return
        if event.name == "error" and not chunk.get("error"):
            self._fail(wire.upstream_error(chunk), events)
            return
        self._chunk(chunk, events)

    def _odd(self, event: sse.Event, events: Events) -> None:
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

    def _chunk(self, chunk: dict[str, Json], events: Events) -> None:
        if chunk.get("error") or chunk.get("object") == "error":
            self._fail(wire.upstream_error(chunk), events)
            return
        usage = chunk.get("usage")
        if type(usage) is dict:
            self.usage = _usage(usage)
        choices = chunk.get("choices")
        if type(choices) is not list or not choices:
            # usage, or a filter's report that comes before everything else; no text follows the usage
            if self._choices and all(choice.reason for choice in self._choices.values()):
                self._finish(events)
            return
        if not self._choices:
            self._start(chunk, events)
        for position, fields in enumerate(choices):
            if type(fields) is dict:
                self._choice(fields, position, events)

    def _start(self, chunk: dict[str, Json], events: Events) -> None:
        identity, created, model = (chunk.get(key) for key in ("id", "created", "model"))
        events.append(
            ReplyStart(
                wire.repaired(identity) if isinstance(identity, str) and identity else None,
                created if isinstance(created, int) and not isinstance(created, bool) and created > 0 else None,
                wire.repaired(model) if isinstance(model, str) and model else None,
            )
        )

    def _choice(self, fields: dict[str, Json], position: int, events: Events) -> None:
        index = fields.get("index")
        if self._n == 1 or not isinstance(index, int) or isinstance(index, bool) or index < 0:
            index = position
        choice = self._choices.get(index)
        if choice is None:
            if index >= self._n:
                return  # nobody asked for it
            choice = self._choices[index] = _Choice(index)
        text = fields.get("text")
        if type(text) is str and text and not choice.finished:
            text = choice.text.feed(text)
            if text:
                events.append(ReplyTextDelta(index, text))
        reason = fields.get("finish_reason")
        if type(reason) is str and reason:
            found = _REASONS.get(reason, Reason.STOP)
            choice.reason = found if found is not Reason.STOP else choice.reason or found

    # --- the end

    def _finish(self, events: Events) -> None:
        for index in sorted(self._choices):
            choice = self._choices[index]
            if not choice.finished:
                choice.finished = True
                rest = choice.text.close()
                if rest:
                    events.append(ReplyTextDelta(index, rest))
                events.append(ReplyFinish(index, choice.reason or Reason.STOP))

    def _end(self, events: Events, *, marked: bool) -> None:
        """The answer is over; `marked` says that the upstream said so itself."""
        if not self._choices:
            if not marked:
                self._fail(self._answer.broken_off(), events)
                return
            self._start({}, events)
            self._choices[0] = _Choice(0)
        if not marked and not all(choice.reason for choice in self._choices.values()):
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

    def _fail(self, error: UpstreamError, events: Events) -> None:
        events.append(ReplyFailure(error))
        self.ended = True


def _usage(fields: dict[str, Json]) -> Usage:
    return Usage(
        input=tokens(fields, "prompt_tokens"),
        output=tokens(fields, "completion_tokens"),
        cached=tokens(fields.get("prompt_tokens_details"), "cached_tokens"),
        reasoning=tokens(fields.get("completion_tokens_details"), "reasoning_tokens"),
    )
