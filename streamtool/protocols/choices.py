"""Reads replies that are a list of choices: Chat Completions, and the legacy completions.

A chunk and a whole reply have the same shape: choices, each with what it says and perhaps the reason why it ended. What
a choice says is read by an object of the protocol's own, one for each choice.

What is worth knowing about upstreams: some put a finish reason on every chunk, some send two. A choice is therefore
finished when the stream says so (`[DONE]`, a chunk without choices, the end), not when a reason comes; text that
follows a reason is not lost.
"""

from collections.abc import Mapping
from typing import ClassVar, Generic, Protocol, TypeVar

from streamtool import sse
from streamtool.protocols import wire
from streamtool.protocols.body_sniffer import broken_off, tokens, too_large
from streamtool.protocols.stream import Events, Fields, Json, StreamReader, choices_missing, later, word
from streamtool.reply import Reason, ReplyFinish, ReplyStart, Usage


class Choice(Protocol):
    """One of the replies, as far as it came."""

    reason: Reason | None
    finished: bool
    kept: int
    """Characters that it keeps."""

    def read(self, fields: Fields, events: Events) -> None:
        """One entry of a chunk's `choices`, or of a whole reply's."""

    def close(self, events: Events, *, cut: bool) -> None:
        """The choice is over; `cut` says that the upstream stopped it."""


ChoiceT = TypeVar("ChoiceT", bound=Choice)


class ChoicesReader(StreamReader, Generic[ChoiceT]):
    """Reads one reply with `n` choices; the base of both protocols' `ReplyReader`."""

    __slots__ = ("_choices", "_n", "_name")

    REASONS: ClassVar[Mapping[str, Reason]]
    """The finish reasons that are more than a stop."""

    def __init__(self, *, n: int = 1) -> None:
        super().__init__()
        self._n = n
        self._choices: dict[int, ChoiceT] = {}
        self._name = ReplyStart()
        """Id, time and model of the reply, as far as it told them."""

    def _new_choice(self, index: int) -> ChoiceT:
        """The protocol's reader of one choice."""
        raise NotImplementedError

    def _document(self, value: Json, events: Events) -> None:
        if not isinstance(value, dict) or not isinstance(value.get("choices"), list) or value.get("error"):
            self._fail(wire.upstream_error(value), events)
            return
        self._read(value, None, events)
        if not self.ended:
            self._end(events, marked=True)

    def _read(self, fields: Fields, event: sse.Event | None, events: Events) -> None:  # noqa: ARG002
        if fields.get("error") or fields.get("object") == "error":
            self._fail(wire.upstream_error(fields), events)
            return
        usage = fields.get("usage")
        if type(usage) is dict:
            self._counts = usage
        choices = fields.get("choices")
        if type(choices) is not list or not choices:
            # usage, or a filter's report that comes before everything else; no text follows the usage
            if self._choices and all(choice.reason for choice in self._choices.values()):
                self._finish(events)
            return
        if not self._choices:
            self._start(fields, events)
        for position, entry in enumerate(choices):
            if type(entry) is dict and not self.ended:
                self._entry(entry, position, events)

    def _start(self, fields: Fields, events: Events) -> None:
        created = fields.get("created")
        if not isinstance(created, int) or isinstance(created, bool) or created <= 0:
            created = None
        self._name = ReplyStart(word(fields.get("id")), created, word(fields.get("model")))
        events.append(self._name)

    def _entry(self, entry: Fields, position: int, events: Events) -> None:
        """One entry of `choices`."""
        index = entry.get("index")
        if self._n == 1 or not isinstance(index, int) or isinstance(index, bool) or index < 0:
            index = position
        if index >= self._n:
            return  # nobody asked for it
        choice = self._choices.get(index) or self._new(index)
        if not choice.finished:
            choice.read(entry, events)
        if choice.kept > sse.HELD:
            self._fail(too_large(), events)
            return
        reason = entry.get("finish_reason")
        if reason is None:
            return
        if reason == "error":
            self._fail(wire.upstream_error(entry), events)
        elif isinstance(reason, str) and reason not in ("", "null"):
            choice.reason = later(self.REASONS.get(reason.lower(), Reason.STOP), choice.reason)

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
                self._fail(self._answer.broken_off(), events)
                return
            self._start({}, events)
            self._new(0)
        if not marked and not all(choice.reason for choice in self._choices.values()):
            self._fail(broken_off(), events)
        elif len(self._choices) < self._n:
            self._fail(choices_missing(len(self._choices), self._n), events)
        else:
            self._finish(events)
            self._done(events)

    def _usage(self, counts: Fields) -> Usage:
        cached = tokens(counts.get("prompt_tokens_details"), "cached_tokens")
        return Usage(
            input=tokens(counts, "prompt_tokens"),
            output=tokens(counts, "completion_tokens"),
            cached=cached or tokens(counts, "prompt_cache_hit_tokens"),
            reasoning=tokens(counts.get("completion_tokens_details"), "reasoning_tokens"),
        )
