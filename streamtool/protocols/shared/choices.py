"""Reader for replies that are lists of choices: Chat Completions and legacy completions.

A chunk and a whole reply have the same shape: choices, each with some content and possibly a finish reason. A
protocol-specific object reads the content of each choice.

Some upstreams put a finish reason on every chunk; others send two finish reasons. A choice is therefore finished not
when a reason arrives, but only when the end of the stream is evident (from `[DONE]`, a chunk without choices, or the
end of the response body), so that text after a reason is not lost.
"""

from collections.abc import Mapping
from typing import ClassVar, Generic, Protocol, TypeVar

from streamtool.core import sse
from streamtool.core.json_value import Json, JsonObject
from streamtool.core.reply import Reason, ReplyFinish, ReplyStart, Usage
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.body_sniffer import token_count, too_large_error, truncated_error
from streamtool.protocols.shared.stream import (
    Events,
    StreamReader,
    choices_missing_error,
    creation_time,
    nonempty_string,
    stronger_reason,
)


class SingleChoiceReader(Protocol):
    """State of one choice while the reply is being received."""

    reason: Reason | None
    finished: bool
    buffered: int
    """Number of buffered characters."""

    def read(self, fields: JsonObject, events: Events) -> None:
        """Read one entry of `choices`, from a chunk or a whole reply."""

    def close(self, events: Events, *, cut: bool) -> None:
        """End the choice; `cut` means that the upstream truncated it."""


ChoiceT = TypeVar("ChoiceT", bound=SingleChoiceReader)


class ChoicesReader(StreamReader, Generic[ChoiceT]):
    """Reader for one reply with `n` choices; base class of the `ReplyReader` of both protocols."""

    __slots__ = ("_choices", "_n", "_name")

    REASONS: ClassVar[Mapping[str, Reason]]
    """Finish reasons that mean something other than a plain stop."""

    def __init__(self, *, n: int = 1) -> None:
        super().__init__()
        self._n = n
        self._choices: dict[int, ChoiceT] = {}
        self._name = ReplyStart()
        """Id, creation time and model of the reply, as far as the upstream has sent them."""

    def _new_choice(self, index: int) -> ChoiceT:
        """Return a new protocol-specific reader for one choice."""
        raise NotImplementedError

    def _document(self, value: Json, events: Events) -> None:
        if not isinstance(value, dict) or not isinstance(value.get("choices"), list) or value.get("error"):
            self._fail(wire.upstream_error(value), events)
            return
        self._read(value, None, events)
        if not self.ended:
            self._end(events, marked=True)

    def _read(self, fields: JsonObject, event: sse.ServerSentEvent | None, events: Events) -> None:  # noqa: ARG002
        if fields.get("error") or fields.get("object") == "error":
            self._fail(wire.upstream_error(fields), events)
            return
        usage = fields.get("usage")
        if type(usage) is dict:
            self._counts = usage
        choices = fields.get("choices")
        if type(choices) is not list or not choices:
            # The chunk contains token usage or a content filter's report. A filter's report precedes all text, and
            # usage follows it, so the choices are finished if all of them have a reason.
            if self._choices and all(choice.reason for choice in self._choices.values()):
                self._finish(events)
            return
        if not self._choices:
            self._start(fields, events)
        for position, entry in enumerate(choices):
            if type(entry) is dict and not self.ended:
                self._entry(entry, position, events)

    def _start(self, fields: JsonObject, events: Events) -> None:
        created = creation_time(fields.get("created"))
        self._name = ReplyStart(nonempty_string(fields.get("id")), created, nonempty_string(fields.get("model")))
        events.append(self._name)

    def _entry(self, entry: JsonObject, position: int, events: Events) -> None:
        """Read one entry of `choices`."""
        index = entry.get("index")
        if self._n == 1 or not isinstance(index, int) or isinstance(index, bool) or index < 0:
            index = position
        if index >= self._n:
            return  # not requested
        choice = self._choices.get(index) or self._new(index)
        if not choice.finished:
            choice.read(entry, events)
        if choice.buffered > sse.MAX_BUFFERED:
            self._fail(too_large_error(), events)
            return
        reason = entry.get("finish_reason")
        if reason is None:
            return
        if reason == "error":
            self._fail(wire.upstream_error(entry), events)
        elif isinstance(reason, str) and reason not in ("", "null"):
            choice.reason = stronger_reason(self.REASONS.get(reason.lower(), Reason.STOP), choice.reason)

    def _new(self, index: int) -> ChoiceT:
        choice = self._choices[index] = self._new_choice(index)
        return choice

    def _finish(self, events: Events) -> None:
        for index in sorted(self._choices):
            choice = self._choices[index]
            if not choice.finished:
                reason = choice.reason or Reason.STOP
                choice.close(events, cut=reason is not Reason.STOP)
                events.append(ReplyFinish(index, reason))

    def _end(self, events: Events, *, marked: bool) -> None:
        if not self._choices:
            if not marked:
                self._fail(self._answer.truncated_error(), events)
                return
            self._start({}, events)
            self._new(0)
        if not marked and not all(choice.reason for choice in self._choices.values()):
            self._fail(truncated_error(), events)
        elif len(self._choices) < self._n:
            self._fail(choices_missing_error(len(self._choices), self._n), events)
        else:
            self._finish(events)
            self._done(events)

    def _usage(self, counts: JsonObject) -> Usage:
        cached = token_count(counts.get("prompt_tokens_details"), "cached_tokens")
        return Usage(
            input=token_count(counts, "prompt_tokens"),
            output=token_count(counts, "completion_tokens"),
            cached=cached or token_count(counts, "prompt_cache_hit_tokens"),
            reasoning=token_count(counts.get("completion_tokens_details"), "reasoning_tokens"),
        )
