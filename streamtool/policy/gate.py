"""One choice of a reply: the upstream's text goes in, calls are found in it, and what the client may see comes out.

The gate stands between the upstream's reader and the client's writer. It owns the parser of its choice and the numbers
and ids of the calls, and it applies the rules: a forbidden or surplus call does not pass, text waits for a forced call,
an incomplete call makes the reply end as truncated. Over several attempts one gate goes on: the next attempt brings
a new parser (`restart`), while what the client has seen, and the numbers of its calls, stay.

The way of a piece of text or of arguments is short on purpose: text that the parser hands back as the same object is
forwarded as the very event that came, so that its bytes can travel untouched.
"""

from collections.abc import Callable, Iterable
from typing import assert_never

import statemachine
from streamtool.policy.call_ids import CallIds
from streamtool.policy.causes import Cause
from streamtool.policy.fabricated_results import FabricatedResultFilter
from streamtool.policy.null_parser import TextParser
from streamtool.policy.open_call import OpenCall
from streamtool.policy.refusals import OpeningWatch
from streamtool.policy.rules import Rules
from streamtool.policy.stop_sequences import StopSequences
from streamtool.reply import (
    Reason,
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyEvent,
    ReplyReasoningDelta,
    ReplyTextDelta,
)
from streamtool.validation.validator import InvalidArguments

_CLOSE: dict[Reason, str | None] = {
    Reason.STOP: None,
    Reason.STOP_SEQUENCE: None,
    Reason.PAUSE: None,
    Reason.LENGTH: "length",
    Reason.FILTER: "content_filter",
}
"""How the parser is told why the text ended; None: the model stopped by itself."""

UpstreamEvent = ReplyTextDelta | ReplyReasoningDelta | ReplyCallStart | ReplyArgumentsDelta | ReplyCallEnd
"""What a gate takes from the upstream."""


class Gate:
    """What passes of one choice. Every method appends what the client may see to `out`."""

    __slots__ = (
        "_again", "_behind", "_clock", "_direct", "_forced", "_held", "_held_size", "_ids", "_new_parser", "_open",
        "_opening", "_parser", "_rules", "_seen_cut", "_stops", "_wrote", "called", "called_at", "choice",
        "denied", "detail", "discarded", "fault", "finished", "formats", "forwards", "held_most", "incomplete",
        "lacks", "length", "over", "refused", "repairs", "spoilt", "stopped", "visible",
    )  # fmt: skip

    def __init__(
        self,
        rules: Rules,
        choice: int,
        ids: CallIds,
        new_parser: Callable[[], TextParser],
        *,
        clock: Callable[[], float] | None = None,
        again: bool = False,
    ) -> None:
        self._rules = rules
        self.choice = choice
        self._ids = ids
        self._new_parser = new_parser
        self._parser = new_parser()
        self._forced = rules.forced
        self._held: list[ReplyTextDelta | ReplyReasoningDelta] = []
        self._held_size = 0
        self._open: OpenCall | None = None
        self._direct = False
        """A call is open whose arguments go out as they come."""
        self._clock = clock
        self.called_at: float | None = None
        """When the client saw the first call begin."""
        # a buffer of bytes: pieces of text, or io.StringIO, which keeps them, would take ten times the memory
        self._wrote = bytearray() if rules.keeps else None
        self._stops = StopSequences(rules.stop) if rules.stop else None
        self._again = again
        """Another attempt may follow this one."""
        self.visible = False
        """The client has seen text or a call."""
        self._behind: FabricatedResultFilter | None = None
        """Directly behind a call that the model has written."""
        self._opening = self._new_opening()
        """While the reply may still turn out to deny its tools."""
        self.denied: Cause | None = None
        """Why this attempt is not accepted, whatever else it says."""
        self.detail = ""
        """What the model is told of it, or the phrase that gave it away."""
        self.lacks: Cause | None = None
        """For what this attempt would not be accepted if it were not the last one."""
        self.fault: InvalidArguments | None = None
        """What is wrong with the arguments of the last call that went out whole."""
        self.forwards = not rules.forced and self._stops is None and self._opening is None
        """Visible text goes out at once, as the event that came."""
        self.called: list[str] = []
        """Ids of the calls that the client has seen begin."""
        self.incomplete = False
        """The last call was cut, or one of which the client has seen a part."""
        self._seen_cut = False
        self.spoilt = False
        """A call that waited could not be read."""
        self.over = False
        """The reply of this choice ends here, whatever the upstream still says."""
        self.stopped: str | None = None
        """The caller's stop string at which the text ended."""
        self.finished = False
        self.refused = 0
        """Calls that were not allowed to pass."""
        self.repairs: dict[str, None] = {}
        self.formats: dict[str, int] = {}
        """Formats, and how many calls were found in each."""
        self.discarded: dict[str, int] = {}
        """Characters that are neither shown nor part of a call, by reason."""
        self.held_most = 0
        self.length = 0
        """Characters that the upstream has written, markup included."""

    @property
    def calls(self) -> int:
        """How many calls the client has seen begin; the next one's number."""
        return len(self.called)

    @property
    def wrote(self) -> str:
        """What the model wrote, markup included, in all attempts of which something was seen."""
        return "" if self._wrote is None else self._wrote.decode("utf-8", "surrogatepass")

    def _new_opening(self) -> OpeningWatch | None:
        return OpeningWatch(self._rules.phrases) if self._rules.watches and not self.visible else None

    def restart(self, *, again: bool) -> None:
        """The next attempt begins: what the last one held back is dropped, what it showed stays."""
        self._again = again
        self._opening = self._new_opening()
        self.denied, self.detail, self.fault, self.lacks = None, "", None, None
        self._parser = self._new_parser()
        if self._wrote is not None and not self.visible:
            self._wrote.clear()
        self.over = self.incomplete = self.spoilt = False
        self.stopped = None
        self.refused = 0
        self._held.clear()
        self._held_size = 0
        self._open = None
        self._direct = False
        self._forced = self._rules.forced and not self.called
        self.forwards = not self._forced and self._stops is None and self._opening is None

    def feed(self, event: UpstreamEvent, out: list[ReplyEvent]) -> None:
        """One event of the upstream."""
        if type(event) is ReplyTextDelta:
            text = event.text
            self.length += len(text)
            if self._wrote is not None:
                self._wrote += text.encode("utf-8", "surrogatepass")
            found = self._parser.feed(text)
            if len(found) == 1:
                first = found[0]
                if type(first) is statemachine.TextDelta:
                    if first.text is text and self.forwards:
                        self.visible = True
                        out.append(event)
                        return
                    if first.text is text and self._opening is not None and not self._forced:
                        self._opens(event, self._opening, out)
                        return
                elif type(first) is statemachine.ArgumentsDelta and self._direct:
                    out.append(ReplyArgumentsDelta(self.choice, len(self.called) - 1, first.text))
                    return
            if found:
                self._found(found, out)
            return
        if self.over:
            return
        match event:
            case ReplyTextDelta():
                raise AssertionError("handled above")
            case ReplyReasoningDelta(text=text, signature=signature):
                if text:
                    self._reasoning(text, out)
                if signature is not None and self._rules.reasoning == "emit" and not self._held:
                    out.append(ReplyReasoningDelta(self.choice, "", signature))
            case ReplyCallStart(id=call_id, name=name, signature=signature):
                self._found(self._parser.close(), out)
                if not self.over:
                    self._parser = self._new_parser()
                    self._begin(name, call_id, out, native=True, signature=signature)
            case ReplyArgumentsDelta(text=text):
                self._arguments(text, out)
            case ReplyCallEnd(complete=complete):
                self._end(complete, out)
            case _:
                assert_never(event)

    def close(self, reason: Reason | None, out: list[ReplyEvent]) -> None:
        """The upstream's text is over; None: it broke off. Held-back text comes out as what it is."""
        if reason not in (Reason.STOP, Reason.STOP_SEQUENCE):
            self._again = False  # what was cut is not the model's fault
        self._found(self._parser.close("broken" if reason is None else _CLOSE[reason]), out)
        if self._open is not None:  # a call of the upstream's own that was never ended
            self._end(False, out)
        if self._opening is not None:
            if reason is None:
                self._opening.release()
            else:
                self._opening.close()
            self._opened(self._opening, out)
        self._leave_behind(out)
        self._no_stop(out)

    def _leave_behind(self, out: list[ReplyEvent]) -> None:
        """What waited behind a call is text: something else follows."""
        behind, self._behind = self._behind, None
        if behind is not None:
            self.forwards = self._stops is None
            if text := behind.close():
                self._show(ReplyTextDelta(self.choice, text), out)

    def release(self, out: list[ReplyEvent]) -> None:
        """What waited comes out, in order."""
        self._forced = False
        self._opening = None
        self._let_go(out)
        self._no_stop(out)

    def _let_go(self, out: list[ReplyEvent]) -> None:
        for event in self._held:
            self._show(event, out)
        self._held.clear()
        self._held_size = 0

    def _found(self, events: Iterable[statemachine.Event], out: list[ReplyEvent]) -> None:
        for event in events:
            if self.over:
                return
            match event:
                case statemachine.TextDelta(text=text):
                    self._text(ReplyTextDelta(self.choice, text), out)
                case statemachine.ArgumentsDelta(text=text):
                    self._arguments(text, out)
                case statemachine.CallStart(name=name, id=call_id, format=format_):
                    self.formats[format_] = self.formats.get(format_, 0) + 1
                    self._begin(name, call_id, out)
                case statemachine.CallEnd(complete=complete, repairs=repairs):
                    self.repairs.update(dict.fromkeys(repairs))
                    self._end(complete, out)
                case statemachine.ReasoningDelta(text=text):
                    self._reasoning(text, out)
                case statemachine.Discarded(text=text, reason="unknown") if self._rules.unknown == "retry":
                    self._unknown(text, out)
                case statemachine.Discarded(text=text, reason="rejected") if self._rules.malformed == "retry":
                    self._malformed(text, out)
                case statemachine.Discarded(text=text, reason=reason):
                    self._discard(text, reason)
                case _:
                    assert_never(event)

    def _text(self, event: ReplyTextDelta, out: list[ReplyEvent]) -> None:
        if self._forced:
            self._wait(event, out)
        elif self._opening is not None:
            self._opens(event, self._opening, out)
        elif self._behind is not None:
            self._follows(self._behind.feed(event.text), self._behind, out)
        else:
            self._show(event, out)

    def _opens(self, event: ReplyTextDelta, opening: OpeningWatch, out: list[ReplyEvent]) -> None:
        """A piece of the opening: it waits with those before it until it is clear that nothing is denied."""
        self._held.append(event)
        opening.feed(event.text)
        self._opened(opening, out)

    def _opened(self, opening: OpeningWatch, out: list[ReplyEvent]) -> None:
        """Let go of the opening, each piece as it came, once it is decided; if it is a denial, the attempt is over.

        The last attempt is only looked at.
        """
        if self._again:
            self.held_most = max(self.held_most, opening.held)
        if opening.found is not None and (opening.found == "tools denied" or self._rules.acts):
            if self._again:
                self._deny(opening.found, opening.phrase)
                return
            self.lacks = opening.found
        if opening.found is not None:  # no tool could have done it, an honest answer; or nobody is asked again
            opening.release()
        if opening.decided:
            self._opening = None
            self.forwards = self._stops is None
        if opening.decided or not self._again:
            self._let_go(out)

    def _follows(self, text: str, behind: FabricatedResultFilter, out: list[ReplyEvent]) -> None:
        """What follows a call; a result that the model makes up ends the reply."""
        if behind.found:
            self._discard(behind.close(), "invented result")
            self.over = True
            return
        if behind.decided:
            self._behind = None
            self.forwards = self._stops is None
        if text:
            self._show(ReplyTextDelta(self.choice, text), out)

    def _malformed(self, text: str, out: list[ReplyEvent]) -> None:
        """What was meant as a call and cannot be read: asked for again, or else the text that it was."""
        if self._again and not self.called:
            self._deny("malformed", "")
        else:
            self._text(ReplyTextDelta(self.choice, text), out)

    def _unknown(self, text: str, out: list[ReplyEvent]) -> None:
        """A call of a tool that is not offered: asked for again, or else the text that it was."""
        if not self.visible:
            why: Cause = "wrong tool" if self._rules.forced else "unknown tool"
            if self._again:
                self._deny(why, ", ".join(f"`{name}`" for name in self._rules.tools))
                return
            self.lacks = why
        if text:
            self._text(ReplyTextDelta(self.choice, text), out)

    def _deny(self, why: Cause, detail: str) -> None:
        self.denied, self.detail = why, detail
        self.over = True
        self.forwards = False

    def _wait(self, event: ReplyTextDelta | ReplyReasoningDelta, out: list[ReplyEvent]) -> None:
        """Hold `event` back until a forced call comes, or the limit is reached."""
        self._held.append(event)
        self._held_size += len(event.text)
        self.held_most = max(self.held_most, self._held_size)
        if self._held_size > self._rules.held:
            self.release(out)

    def _show(self, event: ReplyTextDelta | ReplyReasoningDelta, out: list[ReplyEvent]) -> None:
        if self.over:
            return
        if type(event) is ReplyTextDelta:
            if self._stops is None:
                self._say(event, out)
                return
            text, self.stopped = self._stops.feed(event.text)
            self.over = self.stopped is not None
            self._say(ReplyTextDelta(self.choice, text), out)
        else:
            self._no_stop(out)
            out.append(event)

    def _say(self, event: ReplyTextDelta, out: list[ReplyEvent]) -> None:
        if event.text:
            self.visible = True
            out.append(event)

    def _no_stop(self, out: list[ReplyEvent]) -> None:
        """What might have become a stop string is text: something else follows."""
        if self._stops is not None:
            self._say(ReplyTextDelta(self.choice, self._stops.close()), out)

    def _reasoning(self, text: str, out: list[ReplyEvent]) -> None:
        match self._rules.reasoning:
            case "emit" if self._held:
                self._wait(ReplyReasoningDelta(self.choice, text), out)
            case "emit":
                self._show(ReplyReasoningDelta(self.choice, text), out)
            case "text":
                self._text(ReplyTextDelta(self.choice, text), out)
            case "drop":
                self._discard(text, "reasoning")
            case _:
                assert_never(self._rules.reasoning)

    def _begin(
        self,
        name: str,
        call_id: str | None,
        out: list[ReplyEvent],
        *,
        native: bool = False,
        signature: str | None = None,
    ) -> None:
        """A call of `name` begins; `native`: one of the upstream's own."""
        if self._open is not None:
            self._end(False, out)
        self._leave_behind(out)
        rules = self._rules
        name = rules.aliases.get(name, name)
        trusted = native and rules.native
        if not trusted and (rules.forbidden or (rules.unknown != "deliver" and name not in rules.tools)):
            self.refused += 1
            self._discard(name, "forbidden" if rules.forbidden else "unknown")
            if rules.unknown == "retry":
                self._unknown("", out)
            return
        self._open = call = OpenCall(rules, self._ids.take(call_id), name, native=native, signature=signature)
        if not call.waits:
            self._direct = call.direct
            self._commit(call, out)

    def _commit(self, call: OpenCall, out: list[ReplyEvent]) -> None:
        self.release(out)
        self.over, self.stopped = False, None  # the call stands, whatever was said before it
        self.visible = True
        self.forwards = self._stops is None
        out.append(ReplyCallStart(self.choice, self.calls, call.id, call.name, call.signature))
        if not self.called:
            self.called_at = None if self._clock is None else self._clock()
            self.lacks = None if self.fault is None else "schema"
        self.called.append(call.id)

    def _arguments(self, text: str, out: list[ReplyEvent]) -> None:
        if self._open is None:
            self._discard(text, "forbidden" if self._rules.forbidden else "unknown")
        elif text := self._open.feed(text):
            out.append(ReplyArgumentsDelta(self.choice, self.calls - 1, text))

    def _end(self, complete: bool, out: list[ReplyEvent]) -> None:
        call, self._open = self._open, None
        self._direct = False
        if call is None:
            return
        text, complete = call.end_native(complete=complete)
        self._seen_cut = self._seen_cut or not (complete or call.waits)
        self.incomplete = self._seen_cut or not complete
        if not call.waits or (complete and self._valid(call)):
            if call.waits:
                self._commit(call, out)
            text += call.close(complete=complete)
            if text:
                out.append(ReplyArgumentsDelta(self.choice, self.calls - 1, text))
            out.append(ReplyCallEnd(self.choice, self.calls - 1, complete))
        else:
            self._discard(call.waiting, "invalid" if complete else "incomplete")
            self.spoilt = self.spoilt or not complete
        self.repairs.update(dict.fromkeys(call.repairs))
        if call.malformed:
            self.discarded["malformed"] = self.discarded.get("malformed", 0) + call.malformed
        if self.called and not self._rules.native:
            self._behind = FabricatedResultFilter()
            self.forwards = False
        if self._rules.single and self.called:
            self.over = True
            self.forwards = False

    def _valid(self, call: OpenCall) -> bool:
        """Whether the call that waits may go out: its arguments, mended, fit the schema, or are the best there is."""
        self.fault = call.judge()
        if self.fault is None:
            return True
        if self._again and not self.called:
            self._deny("schema", self.fault.sentence)
            return False
        return self._rules.invalid == "deliver"

    def _discard(self, text: str, reason: str) -> None:
        self.discarded[reason] = self.discarded.get(reason, 0) + len(text)
