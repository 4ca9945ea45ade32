"""Resumption of a reply whose upstream died, reported an error or reached its own limit in the middle, or that contains
a call which has become unreadable.

The next attempt's prompt ends with the text that the model has written, cut back to a position between two tokens
(`split_at_seam`). The model writes the part that was cut off again; it is compared with the original as it arrives, and
dropped (`ContinuationReader`). The same parser then reads the text that follows, so the client sees one reply.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

from attrs import define, evolve, frozen

from streamtool.core.conversation import Conversation
from streamtool.core.errors import StreamtoolError, UpstreamError
from streamtool.core.reply import (
    Reason,
    ReplyEvent,
    ReplyFailure,
    ReplyFinish,
    ReplyReasoningDelta,
    ReplyStart,
    ReplyTextDelta,
    Usage,
    UsageReport,
)
from streamtool.exchange.broken_calls import BrokenCall
from streamtool.exchange.plan import Plan
from streamtool.exchange.record import Interruption
from streamtool.filters import ChoiceFilter
from streamtool.forcing import (
    ANY_TEXT,
    CLIENT_CONSTRAINTS,
    arguments_schema,
    call_grammar,
    continuation_grammar,
    repeated_text_grammar,
    rest_grammar,
    schema_grammar,
    without_schema,
)
from streamtool.prompting.window import BYTES_PER_TOKEN, CountTokens
from streamtool.protocols.interfaces import UpstreamReader

CONTRADICTED: Final = "continuation_differs"
_OURS: Final = frozenset(("reply_too_large", "prompt_truncated"))
"""Codes of errors that our own limits and settings cause."""
_FAILED: Final = 500
"""The lowest status of a server that has failed."""
_TEMPORARY: Final = (408, 429)
"""Statuses below 500 of a server that may accept the same request later."""
_BYTES_PER_DELTA: Final = 8
"""If deltas are larger on average, they contain several tokens."""
_ROOM: Final = 64
"""Number of tokens that the window must have room for if a reply that has reached a limit is to be continued."""
_TAIL: Final = 512
"""Number of characters at the end of the text in which the seam is searched."""
_UNIT: Final = re.compile(
    r"""\s*(?:
        </?[^\s<>]{0,62}>? | \[/?[A-Z_]{2,40}\]?      # a marker that may be a single token
        | \\(?:u[0-9a-fA-F]{0,4}|[^u])?               # an escape in JSON
        | \d[\d.,]*
        | [\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]   # scripts without spaces between words
        | (?:(?![\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])\w){1,64}
        | [^\w\s<\\]{1,16}
    )""",
    re.VERBOSE,
)
"""A word, number, marker or run of punctuation, with the whitespace before it. Few tokens extend over its end."""


@frozen
class Resumption:
    """A reply that the next attempt continues."""

    cause: StreamtoolError | ReplyFinish
    """How the reply ends if it cannot be continued."""
    text: str
    """The text that the model has written in this attempt and in those that it continues."""
    cut: int
    """Position in the text: the prompt contains the part before it, and the model writes the rest again."""
    left: int | None
    """Maximum number of tokens after the text, or None if the client has not limited them."""
    limit: int | None
    """Maximum number of tokens in the next attempt, which writes a part of the text again."""
    interruption: Interruption
    failures: int = 0
    """Number of attempts that have not continued the text."""
    call: BrokenCall | None = None
    """The call that has become unreadable or repetitive after the text, or None if something else ended the reply."""

    @property
    def readings(self) -> tuple[str, ...]:
        """The ways in which the next reply may begin: with the part that was cut off, possibly without its leading
        whitespace, or, if the server repeats the prompt's end, with the whole text.
        """
        rest = self.text[self.cut :]
        return tuple(dict.fromkeys((rest, *((rest.lstrip(), self.text) if self.cut and rest.strip() else ()))))


@define(eq=False)
class Resumptions:
    """The attempts that continue one reply, and the number of tokens that they may use."""

    pending: Resumption | None = None
    """The reply that this attempt or the next one continues, until it has been continued; or None."""
    count: int = 0
    """Number of attempts so far that were meant to continue a reply."""
    call: BrokenCall | None = None
    """The last broken call that an attempt was meant to continue."""
    cut_short: ReplyFinish | None = None
    """The end of the upstream's reply because of the upstream's own limit, until the end has been handled."""
    additions: tuple[str | None, str | None] | None = None
    """The correction and the text so far in the last request that does not continue a reply; None before it."""
    limit: int | None = None
    """Maximum number of tokens in that request."""
    _before: int = 0
    """Number of tokens in the text that the current attempt continues."""
    _again: int = 0
    """Number of deltas in which the current attempt has written a part of that text again."""

    def restart(self) -> None:
        """Prepare for an attempt that does not continue a reply."""
        self._before = self._again = 0
        self.call = None

    def is_cut_short(self, plan: Plan, told: Usage | None, first: ChoiceFilter) -> bool:
        """Return whether a reply that has reached a limit has fewer tokens than the client allows, and the window has
        room for more. `told` is the usage that the upstream has reported for this attempt; without it, the text must
        have fewer bytes than the limit allows tokens. If the client sets no limit, only the number of attempts does.
        """
        if self.count >= plan.model.resume or not first.unfinished:
            return False
        window = plan.model.context
        if told is not None and window is not None and told.input + told.output + _ROOM > window:
            return False
        return self.limit is None or max(first.deltas, self._used(told, first.unfinished_size)) < self.limit

    def request(
        self,
        cause: StreamtoolError | ReplyFinish,
        plan: Plan,
        told: Usage | None,
        first: ChoiceFilter,
        *,
        tokenizer: CountTokens | None,
        seconds: float,
        call: BrokenCall | None = None,
    ) -> None:
        """Request an attempt that continues the unfinished reply of `first`, which ended with this cause: at its end
        or, if a call is broken, at the last good character.
        """
        text = first.unfinished
        if self.pending is not None:
            failures = self.pending.failures + 1
            cut = split_at_seam(text, failures)
            self.pending = evolve(self.pending, failures=failures, cut=cut)
        else:
            used = self._used(told, _count_tokens(plan, first, tokenizer))
            tokens = max(0, used - self._before)
            interruption = Interruption(_cause(cause, call), len(first.written), first.place, seconds, tokens)
            left = None if self.limit is None else max(0, self.limit - used)
            self.call = call
            self.pending = Resumption(cause, text, split_at_seam(text), left, None, interruption, call=call)
            self._before, self._again = used, 0
        if self.pending.left is not None:
            again = len(text[self.pending.cut :].encode("utf-8", "surrogatepass"))
            if tokenizer is not None:
                again = tokenizer(text[self.pending.cut :])
            elif not _sends_single_tokens(plan):
                again = -(-again // BYTES_PER_TOKEN)
            limit = min(self.limit or again, self.pending.left + again)
            self.pending = evolve(self.pending, limit=max(1, limit))
        self.count += 1

    def end(self, again: int) -> Resumption | None:
        """Note that the model continues the reply after `again` deltas of known text. Return what it has continued."""
        continued, self.pending, self._again = self.pending, None, again
        return continued

    def _used(self, told: Usage | None, otherwise: int) -> int:
        """Return the number of tokens so far: as reported for this attempt, or this number."""
        return self._before + told.output - self._again if told is not None and told.output else otherwise


def _cause(cause: StreamtoolError | ReplyFinish, call: BrokenCall | None) -> str:
    """Return what the record contains about the end of the upstream's reply."""
    if isinstance(cause, ReplyFinish):
        limit = "upstream's own limit" if call is None else "endless repetition"
        return limit if cause.reason is Reason.LENGTH else "malformed call"
    return "upstream reported an error" if cause.quotes else "upstream died"


def _sends_single_tokens(plan: Plan) -> bool:
    found = plan.model.engine
    return found is not None and found.engine.single_tokens


def _count_tokens(plan: Plan, first: ChoiceFilter, tokenizer: CountTokens | None) -> int:
    """Return the number of tokens in the unfinished text: as counted by the model's tokenizer if it is known, the
    number of its deltas if the server sends a delta for each token, and otherwise an estimate, which is not lower.
    """
    deltas, size = first.deltas, first.unfinished_size
    if tokenizer is not None:
        return max(deltas, tokenizer(first.unfinished))
    if _sends_single_tokens(plan) and size <= _BYTES_PER_DELTA * deltas:
        return deltas
    return max(deltas, -(-size // BYTES_PER_TOKEN))


def grammar_after(plan: Plan, asked: Conversation, resumption: Resumption) -> str:
    """Return a grammar for the attempt that continues a reply, or "" if it is free or the server takes no grammars.

    The constraint of the first attempt continues to apply. If an attempt has not repeated the part that was cut off,
    the grammar demands that part.
    """
    forced, found = plan.forcing.current, plan.model.engine
    able = found is not None and found.engine.grammars
    again = resumption.text[resumption.cut :]
    made = None
    if forced is not None and (able or forced.way == "grammar"):
        made = continuation_grammar(forced, asked, plan.model.format, text=resumption.text, again=again)
    if made is None and able and resumption.call is not None:
        made = _grammar_of_call(asked, resumption, resumption.call, again)
    if made is None and able and resumption.failures:
        made = repeated_text_grammar(again)
    return made or ""


def _grammar_of_call(asked: Conversation, resumption: Resumption, call: BrokenCall, again: str) -> str | None:
    """Return a grammar for the rest of a call that has become unreadable: of the calls in its format or, if the model
    writes the format in another way than the grammar, of its arguments. Return None if the text fits neither.
    """
    tools = [tool for tool in asked.tools if not asked.choice.names or tool.name in asked.choice.names]
    for some in (tools, [without_schema(tool) for tool in tools]):
        made = call_grammar(some, call.format, forced=False, parallel=asked.choice.parallel, lazy=False)
        if made is not None and (found := rest_grammar(made[0], resumption.text, again, begun=True)) is not None:
            return found
    if not resumption.text.endswith(call.arguments):
        if not resumption.text.endswith(call.arguments.removesuffix(call.ahead)):
            return None
        again += call.ahead
    for tool in (one for one in tools if one.name == call.name):
        for schema in (arguments_schema(tool), {"type": "object"}):
            whole = schema_grammar(schema)
            if whole is not None and (found := rest_grammar(whole, call.arguments, again, then=ANY_TEXT)) is not None:
                return found
    return None


def continues(plan: Plan, asked: Conversation, prompt: Conversation) -> bool:
    """Return whether the upstream continues the beginning of a reply, in this request with this prompt."""
    protocol, found = plan.upstream.NAME, plan.model.engine
    able = protocol == "completions" or (
        protocol in ("chat", "ollama") and found is not None and found.engine.prefill == "continued"
    )
    free = CLIENT_CONSTRAINTS.isdisjoint(asked.raw)
    return able and free and plan.emulates and asked.options.n == 1 and not _is_begun(prompt)


def _is_begun(prompt: Conversation) -> bool:
    """Return whether the client itself has begun the reply."""
    forced = prompt.forcing is not None and prompt.forcing.way == "prefill"
    return not forced and prompt.messages[-1].role == "assistant"


def may_be_continued(error: StreamtoolError) -> bool:
    """Return whether another attempt may continue the reply that ended with this error: if the upstream failed, but
    has not rejected the request.
    """
    if not isinstance(error, UpstreamError) or error.code in _OURS:
        return False
    return error.status >= _FAILED or error.status in _TEMPORARY


def split_at_seam(text: str, failures: int = 0) -> int:
    """Return the position of the cut in the text: before its last word, number, marker or run of punctuation, and
    before the whitespace in front of it. A word of more than 64 characters is cut inside. Each failure so far moves
    the position back by one word.

    The position is further back if the reply to the text before it could be taken for a repetition of that text.
    """
    start = max(0, len(text) - _TAIL)
    bounds = [found.start() for found in _UNIT.finditer(text, start)]
    if start:
        del bounds[:1]  # the tail may begin inside a word
    elif bounds:
        bounds[0] = 0
    left = failures
    for bound in reversed(bounds):
        rest = text[bound:]
        if bound and text.startswith((rest, rest.lstrip())):
            continue
        if not left:
            return bound
        left -= 1
    return start


class ContinuationReader:
    """A reader for an attempt that continues a reply. It drops the text that the client has already received.

    `on_continued` is called when all of that text has been written again; from then on, the wrapped reader can be used
    directly, unless there is a limit. If the reply differs from the text, it ends with a failure.

    `left` limits the number of deltas after that text: one more delta ends the reply. None means no limit. A delta with
    the end of that text and the beginning of new text counts, because its new part would exceed the limit.
    """

    __slots__ = ("_again", "_at", "_left", "_on_continued", "_readings", "reader", "tool_names")

    def __init__(
        self, reader: UpstreamReader, readings: Iterable[str], on_continued: Callable[[int], None], left: int | None
    ) -> None:
        self.reader = reader
        self.tool_names = reader.tool_names
        self._readings = list(readings)
        self._at = 0
        """Number of characters that have been compared."""
        self._again = 0
        """Number of deltas that have been compared."""
        self._left = left
        self._on_continued = on_continued

    @property
    def usage(self) -> Usage | None:
        """Usage as last reported by the upstream."""
        return self.reader.usage

    def feed(self, data: bytes, /) -> list[ReplyEvent]:
        """Return the reply events that `data` completes."""
        return self._read(self.reader.feed(data))

    def close(self) -> list[ReplyEvent]:
        """Return the events at the end of the reply."""
        return self._read(self.reader.close())

    def _read(self, events: Iterable[ReplyEvent]) -> list[ReplyEvent]:
        out: list[ReplyEvent] = []
        for event in events:
            if not self._readings:
                self._limit(event, out)
            elif isinstance(event, ReplyStart | UsageReport | ReplyFailure):
                out.append(event)
            elif isinstance(event, ReplyTextDelta):
                new = self._compare(event.text)
                if new is None:
                    return [*out, ReplyFailure(contradiction_error())]
                if new:
                    self._limit(ReplyTextDelta(event.choice, new), out)
            elif isinstance(event, ReplyFinish) and event.reason is Reason.LENGTH:
                self._end_comparison()  # the limit leaves no room for more than the text that is already known
                out.append(event)
            elif not (isinstance(event, ReplyReasoningDelta) and not event.text):
                return [*out, ReplyFailure(contradiction_error())]
        return out

    def _limit(self, event: ReplyEvent, out: list[ReplyEvent]) -> None:
        """Emit an event after the known text, or the end of the reply if the limit has been reached."""
        if self._left is not None and isinstance(event, ReplyTextDelta):
            if not self._left:
                event = ReplyFinish(event.choice, Reason.LENGTH)
            else:
                self._left -= 1
        out.append(event)

    def _end_comparison(self) -> None:
        self._readings.clear()
        self._on_continued(self._again)

    def _compare(self, text: str) -> str | None:
        """Compare the next piece with the text. Return the part of the piece that is new, or None if it differs."""
        self._again += 1
        alive = []
        for known in self._readings:
            left = len(known) - self._at
            if left > len(text):
                if known.startswith(text, self._at):
                    alive.append(known)
            elif text.startswith(known[self._at :]):
                self._again -= left < len(text)
                self._end_comparison()
                return text[left:]
        self._at += len(text)
        self._readings = alive
        return "" if alive else None


def contradiction_error() -> UpstreamError:
    """Return the error for a reply that does not continue the text."""
    return UpstreamError("the reply does not continue the text that the client has received", code=CONTRADICTED)
