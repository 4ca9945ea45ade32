"""One choice of a reply: the upstream's text goes in, calls are found in it, and what the client may see comes out.

The choice filter stands between the upstream's reader and the client's writer. It is a row of stages:

    text ─▶ parser (a QuotationFilter around it, if need be) ─▶ calls ─▶ CallFilter ────────────▶ out
                                                             └▶ text, reasoning ─▶ TextFilter ──▶ out

The stages share a `ChoiceState`. What they find wrong with an attempt is a row of the table of failures. Over several
attempts one filter goes on: the next attempt brings a new parser (`restart`), while what the client has seen, and the
numbers of its calls, stay.

The way of a piece of text or of arguments is short on purpose: while no stage has anything to look at, text that the
parser hands back as the same object is forwarded as the very event that came, so that its bytes can travel untouched.
"""

from collections.abc import Callable, Iterable
from typing import assert_never

import statemachine
from streamtool.errors import UpstreamError
from streamtool.policy.call_filter import CallFilter
from streamtool.policy.call_ids import CallIds
from streamtool.policy.choice_state import ChoiceState, Tally
from streamtool.policy.evidence import EndOfReply
from streamtool.policy.failure import Finding
from streamtool.policy.failures import CALL_MISSING, find
from streamtool.policy.null_parser import TextParser
from streamtool.policy.opened_reasoning import OpenedReasoning
from streamtool.policy.quotations import QuotationFilter
from streamtool.policy.rules import Rules
from streamtool.policy.text_filter import TextFilter
from streamtool.reply import (
    Reason,
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyEvent,
    ReplyFinish,
    ReplyReasoningDelta,
    ReplyTextDelta,
)

_PARSER_REASONS: dict[Reason, str | None] = {
    Reason.STOP: None,
    Reason.STOP_SEQUENCE: None,
    Reason.PAUSE: None,
    Reason.LENGTH: "length",
    Reason.FILTER: "content_filter",
}
"""How the parser is told why the text ended; None: the model stopped by itself."""
_STOPPED_BY_ITSELF = (Reason.STOP, Reason.STOP_SEQUENCE)

UpstreamEvent = ReplyTextDelta | ReplyReasoningDelta | ReplyCallStart | ReplyArgumentsDelta | ReplyCallEnd
"""What a choice filter takes from the upstream."""


class ChoiceFilter:
    """What passes of one choice. Every method appends what the client may see to `out`."""

    __slots__ = (
        "_calls", "_direct", "_new_parser", "_parser", "_rules", "_text", "_written", "choice", "exceeded", "finished",
        "state", "tally",
    )  # fmt: skip

    def __init__(
        self,
        rules: Rules,
        choice: int,
        ids: CallIds,
        new_parser: Callable[[], TextParser],
        *,
        may_retry: bool,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._rules = rules
        self._new_parser = new_parser
        self._parser = new_parser()
        # a buffer of bytes: pieces of text, or io.StringIO, which keeps them, would take ten times the memory
        self._written = bytearray() if rules.text.kept else None
        self.choice = choice
        self.state = ChoiceState(may_retry)
        self.tally = Tally()
        self._text = TextFilter(choice, rules, self.state, self.tally)
        self._calls = CallFilter(choice, rules, self.state, self.tally, self._text, ids=ids, clock=clock)
        self._direct = self._text.idle
        """Visible text goes out at once, as the event that came."""
        self.finished = False
        self.exceeded = False
        """The model has said more behind the end than what closes its last call."""

    @property
    def written(self) -> str:
        """What the model wrote, markup included, in all attempts of which something was seen."""
        return "" if self._written is None else self._written.decode("utf-8", "surrogatepass")

    @property
    def waiting(self) -> int:
        """Characters that wait to be checked: of arguments for the end of their call, of an answer for its own."""
        return self._calls.waiting + self._text.waiting

    @property
    def waits_for(self) -> str:
        """Why something waits that the parser has let go; "" if nothing does."""
        quotation = self._parser.waits_for if isinstance(self._parser, QuotationFilter) else ""
        return quotation or self._calls.waits_for or self._text.waits_for

    @property
    def first_call_at(self) -> float | None:
        """When the client saw the first call begin."""
        return self._calls.first_at

    @property
    def unmet(self) -> Finding | None:
        """What this attempt lacks that is delivered. A stop sequence may have come before a required call."""
        state = self.state
        if state.stop_sequence is not None and self._rules.forced and not state.calls:
            return Finding(CALL_MISSING)
        return state.tolerated

    def restart(self, *, may_retry: bool) -> None:
        """The next attempt begins: what the last one held back is dropped, what it showed stays."""
        self.state.restart(may_retry=may_retry)
        self.exceeded = False
        self._parser = self._new_parser()
        if self._written is not None and not self.state.visible:
            self._written.clear()
        self._text.restart()
        self._calls.restart()
        self._direct = self._text.idle

    def feed(self, event: UpstreamEvent, out: list[ReplyEvent]) -> None:
        """One event of the upstream."""
        if type(event) is ReplyTextDelta:
            text = event.text
            self.tally.written += len(text)
            if self._written is not None:
                self._written += text.encode("utf-8", "surrogatepass")
            found = self._parser.feed(text)
            if len(found) == 1:
                first = found[0]
                if type(first) is statemachine.TextDelta:
                    if first.text is text and self._direct:
                        if not self.state.visible:
                            self.state.visible = not text.isspace()
                        out.append(event)
                        return
                    if first.text is text and self._text.opening.active and not self.state.over:
                        self._text.feed(event, out)  # the event that came, since it may still go out untouched
                        self._direct = self._text.idle
                        return
                elif type(first) is statemachine.ArgumentsDelta and self._calls.streams:
                    out.append(ReplyArgumentsDelta(self.choice, len(self.state.calls) - 1, first.text))
                    return
            if found:
                self._take(found, out)
        elif self.state.over:
            self.exceeded = True
        elif not isinstance(event, ReplyTextDelta):  # it is none; mypy does not see that
            self._native(event, out)

    def close(self, reason: Reason | None, out: list[ReplyEvent]) -> None:
        """The upstream's text is over; None: it broke off. Text that the stages hold goes out as what it is."""
        if reason not in _STOPPED_BY_ITSELF:
            self.state.may_retry = False  # what was cut is not the model's fault
        self._take(self._parser.close("broken" if reason is None else _PARSER_REASONS[reason]), out)
        if self._calls.open:  # a native call that was never ended
            self._calls.end(out, complete=False)
        self._text.end(out, broken=reason is None)
        self._direct = self._text.idle

    def release(self, out: list[ReplyEvent]) -> None:
        """What still waits, for a forced call, goes out in order."""
        self._text.close(out)

    def failure(self, reason: Reason) -> Finding | None:
        """Why this attempt, which ended with `reason`, is not accepted; None when it is."""
        state = self.state
        if state.rejected is not None:
            return state.rejected
        if reason not in _STOPPED_BY_ITSELF:
            return None
        return find(
            EndOfReply(
                visible=state.visible,
                rules=self._rules,
                text=self.written,
                calls=len(state.calls),
                refused=state.refused,
                unread=state.unread,
                reasoned=state.reasoned,
                answer=self._text.answer,
                incomplete=state.incomplete,
                stopped=state.stop_sequence is not None,
            )
        )

    def ending(self, event: ReplyFinish) -> ReplyFinish | UpstreamError:
        """The end that is true for the client, where the upstream has told this one; or the error that replaces it."""
        state, rules = self.state, self._rules
        if state.invalid is not None and rules.invalid == "error":
            message = f"the arguments of a call do not fit: {state.invalid.problem}"
            return UpstreamError(message, code="invalid_arguments").quoting()
        if state.stop_sequence is not None:
            event = ReplyFinish(event.choice, Reason.STOP_SEQUENCE, state.stop_sequence)
        if state.incomplete and event.reason is not Reason.FILTER:
            if rules.truncated == "error":
                found = state.tolerated
                what = "ended inside a call" if found is None else f"lacks a call, which was left out ({found.cause})"
                return UpstreamError(f"the reply {what}", code="truncated_call")
            return ReplyFinish(event.choice, Reason.LENGTH)
        return event

    def _native(
        self, event: ReplyReasoningDelta | ReplyCallStart | ReplyArgumentsDelta | ReplyCallEnd, out: list[ReplyEvent]
    ) -> None:
        """What the upstream itself says to be no text."""
        match event:
            case ReplyReasoningDelta(text=text, signature=signature):
                if text:
                    self._separate(out)
                    self._reasoning(text, out)
                if signature is not None and self._rules.text.reasoning == "emit" and not self._text.holds:
                    out.append(ReplyReasoningDelta(self.choice, "", signature))
            case ReplyCallStart(id=call_id, name=name, signature=signature):
                self._separate(out)
                self._take(self._parser.close(), out)
                if not self.state.over:
                    self._parser = self._new_parser()
                    self._separate(out)
                    self._calls.begin(name, call_id, out, native=True, signature=signature)
            case ReplyArgumentsDelta(text=text):
                self._calls.feed(text, out)
                return
            case ReplyCallEnd(complete=complete):
                self._calls.end(out, complete=complete)
            case _:
                assert_never(event)
        self._direct = self._text.idle

    def _separate(self, out: list[ReplyEvent]) -> None:
        """The upstream tells by itself what is no text: the text does not begin inside of reasoning."""
        if isinstance(self._parser, OpenedReasoning):
            self._take(self._parser.separate(), out)

    def _take(self, events: Iterable[statemachine.Event], out: list[ReplyEvent]) -> None:
        """What the parser has found."""
        for event in events:
            if self.state.over:
                blank = isinstance(event, statemachine.TextDelta) and event.text.isspace()
                self.exceeded = self.exceeded or not blank
                continue
            match event:
                case statemachine.TextDelta(text=text):
                    self._text.feed(ReplyTextDelta(self.choice, text), out)
                case statemachine.ArgumentsDelta(text=text):
                    self._calls.feed(text, out)
                case statemachine.CallStart(name=name, id=call_id, format=format_):
                    self.tally.found(format_)
                    self._calls.begin(name, call_id, out)
                case statemachine.CallEnd(complete=complete, repairs=repairs):
                    self.tally.repair(repairs)
                    self._calls.end(out, complete=complete)
                case statemachine.ReasoningDelta(text=text):
                    self._reasoning(text, out)
                case statemachine.Discarded(text=text, reason="unknown") if self._rules.unknown == "retry":
                    self._calls.unread(text, "unknown", out)
                case statemachine.Discarded(text=text, reason="rejected") if self._rules.malformed == "retry":
                    self._calls.unread(text, "rejected", out)
                case statemachine.Discarded(text=text, reason="invented"):
                    self.tally.discard(text, "invented result")
                    self.state.over = True
                case statemachine.Discarded(text=text, reason=reason):
                    self.tally.discard(text, reason)
                case _:
                    assert_never(event)
        self._direct = self._text.idle and not self.state.over

    def _reasoning(self, text: str, out: list[ReplyEvent]) -> None:
        self.state.reasoned = True
        match self._rules.text.reasoning:
            case "emit":
                self._text.feed(ReplyReasoningDelta(self.choice, text), out)
            case "text":
                self._text.feed(ReplyTextDelta(self.choice, text), out)
            case "drop":
                self.tally.discard(text, "reasoning")
            case _:
                assert_never(self._rules.text.reasoning)
