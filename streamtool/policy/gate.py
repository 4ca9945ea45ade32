"""One choice of a reply: the upstream's text goes in, calls are found in it, and what the client may see comes out.

The gate stands between the upstream's reader and the client's writer. It owns the parser of its choice and the numbers
and ids of the calls, and it applies the rules: a forbidden or surplus call does not pass, text waits for a forced call,
an incomplete call makes the reply end as truncated. Over several attempts one gate goes on: the next attempt brings
a new parser (`restart`), while what the client has seen, and the numbers of its calls, stay.

The way of a piece of text or of arguments is short on purpose: text that the parser hands back as the same object is
forwarded as the very event that came, so that its bytes can travel untouched.
"""

import re
from collections.abc import Callable, Iterable
from typing import Protocol, assert_never

import statemachine
from streamtool.policy.causes import Cause
from streamtool.policy.invented import Invented
from streamtool.policy.native import NativeArguments
from streamtool.policy.raw_input import RawInput
from streamtool.policy.refusals import Opening
from streamtool.policy.rules import Rules
from streamtool.policy.stops import Stops
from streamtool.policy.validation import Fault, Validator
from streamtool.reply import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Reason,
    ReasoningDelta,
    ReplyEvent,
    TextDelta,
)

_LEGAL_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
_CLOSE: dict[Reason, str | None] = {
    Reason.STOP: None,
    Reason.STOP_SEQUENCE: None,
    Reason.PAUSE: None,
    Reason.LENGTH: "length",
    Reason.FILTER: "content_filter",
}
"""How the parser is told why the text ended; None: the model stopped by itself."""

Upstream = TextDelta | ReasoningDelta | CallStart | ArgumentsDelta | CallEnd
"""What a gate takes from the upstream."""


class TextParser(Protocol):
    """What the gate needs of a parser."""

    def feed(self, text: str, /) -> list[statemachine.Event]: ...
    def close(self, reason: str | None = None, /) -> list[statemachine.Event]: ...


class Plain:
    """The parser of a request without tools: text is text, whatever stands in it."""

    __slots__ = ()

    def feed(self, text: str, /) -> list[statemachine.Event]:
        """The text itself."""
        return [statemachine.TextDelta(text)]

    def close(self, reason: str | None = None, /) -> list[statemachine.Event]:  # noqa: ARG002  as the parser has it
        """Nothing was held."""
        return []


class Ids:
    """Ids of calls, each used once in a conversation."""

    __slots__ = ("_make", "_used")

    def __init__(self, make: Callable[[], str], used: Iterable[str]) -> None:
        self._make = make
        self._used = set(used)

    def take(self, proposed: str | None) -> str:
        """`proposed` if it is legal and new in the conversation, else a new id."""
        while proposed is None or proposed in self._used or _LEGAL_ID.fullmatch(proposed) is None:
            proposed = self._make()
        self._used.add(proposed)
        return proposed


class Gate:
    """What passes of one choice. Every method appends what the client may see to `out`."""

    __slots__ = (
        "_again", "_behind", "_direct", "_forced", "_held", "_held_size", "_ids", "_named", "_native", "_new_parser",
        "_open", "_opening", "_parser", "_pending", "_raw", "_rules", "_said", "_seen_cut", "_stops", "calls",
        "choice", "denied", "detail", "discarded", "fault", "finished", "formats", "forwards", "held_most",
        "incomplete", "length", "over", "refused", "repairs", "stopped", "visible",
    )  # fmt: skip

    def __init__(
        self, rules: Rules, choice: int, ids: Ids, new_parser: Callable[[], TextParser], *, again: bool = False
    ) -> None:
        self._rules = rules
        self.choice = choice
        self._ids = ids
        self._new_parser = new_parser
        self._parser = new_parser()
        self._forced = rules.forced
        self._held: list[TextDelta | ReasoningDelta] = []
        self._held_size = 0
        self._open: str | None = None
        self._named = ""
        self._pending: list[str] | None = None
        self._raw: RawInput | None = None
        self._native: NativeArguments | None = None
        """While a call of the upstream's own is open."""
        self._direct = False
        """A call is open whose arguments go out as they come."""
        # a buffer of bytes: pieces of text, or io.StringIO, which keeps them, would take ten times the memory
        self._said = bytearray() if rules.forced or rules.watches else None
        self._stops = Stops(rules.stop) if rules.stop else None
        self._again = again
        """Another attempt may follow this one."""
        self.visible = False
        """The client has seen text or a call."""
        self._behind: Invented | None = None
        """Directly behind a call that the model has written."""
        self._opening = self._new_opening()
        """While the reply may still turn out to deny its tools."""
        self.denied: Cause | None = None
        """Why this attempt is not accepted, whatever else it says."""
        self.detail = ""
        """What the model is told of it, or the phrase that gave it away."""
        self.fault: Fault | None = None
        """What is wrong with the arguments of the last call that went out whole."""
        self.forwards = not rules.forced and self._stops is None and self._opening is None
        """Visible text goes out at once, as the event that came."""
        self.calls = 0
        """Calls that the client has seen begin; the next one's number."""
        self.incomplete = False
        """The last call was cut, or one of which the client has seen a part."""
        self._seen_cut = False
        self.over = False
        """The reply of this choice ends here, whatever the upstream still says."""
        self.stopped: str | None = None
        """The caller's stop string at which the text ended."""
        self.finished = False
        self.refused = 0
        """Calls that were not allowed to pass."""
        self.repairs: dict[str, None] = {}
        self.formats: dict[str, None] = {}
        self.discarded: dict[str, int] = {}
        """Characters that are neither shown nor part of a call, by reason."""
        self.held_most = 0
        self.length = 0
        """Characters that the upstream has written, markup included."""

    @property
    def said(self) -> str:
        """The visible text so far; kept only where a reply may have to be continued."""
        return "" if self._said is None else self._said.decode("utf-8", "surrogatepass")

    def _new_opening(self) -> Opening | None:
        return Opening() if self._rules.watches and self._again and not self.visible else None

    def restart(self, *, again: bool) -> None:
        """The next attempt begins: what the last one held back is dropped, what it showed stays."""
        self._again = again
        self._opening = self._new_opening()
        self.denied, self.detail, self.fault = None, "", None
        self._parser = self._new_parser()
        self.over = self.incomplete = False
        self.stopped = None
        self.refused = 0
        self._held.clear()
        self._held_size = 0
        self._open = None
        self._pending = self._raw = self._native = None
        self._direct = False
        self._forced = self._rules.forced and self.calls == 0
        self.forwards = not self._forced and self._stops is None and self._opening is None

    def feed(self, event: Upstream, out: list[ReplyEvent]) -> None:
        """One event of the upstream."""
        if type(event) is TextDelta:
            text = event.text
            self.length += len(text)
            found = self._parser.feed(text)
            if len(found) == 1:
                first = found[0]
                if type(first) is statemachine.TextDelta:
                    if first.text is text and self.forwards:
                        self.visible = True
                        if self._said is not None:
                            self._said += text.encode("utf-8", "surrogatepass")
                        out.append(event)
                        return
                    if first.text is text and self._opening is not None and not self._forced:
                        self._opens(event, self._opening, out)
                        return
                elif type(first) is statemachine.ArgumentsDelta and self._direct:
                    out.append(ArgumentsDelta(self.choice, self.calls - 1, first.text))
                    return
            if found:
                self._found(found, out)
            return
        if self.over:
            return
        match event:
            case TextDelta():
                raise AssertionError("handled above")
            case ReasoningDelta(text=text, signature=signature):
                if text:
                    self._reasoning(text, out)
                if signature is not None and self._rules.reasoning == "emit" and not self._held:
                    out.append(ReasoningDelta(self.choice, "", signature))
            case CallStart(id=call_id, name=name):
                self._found(self._parser.close(), out)
                if not self.over:
                    self._parser = self._new_parser()
                    self._begin(name, call_id, out, trusted=self._rules.native)
                    self._native = None if self._open is None or self._raw is not None else NativeArguments()
            case ArgumentsDelta(text=text):
                text = text if self._native is None else self._native.feed(text)
                if text:
                    self._arguments(text, out)
            case CallEnd(complete=complete):
                self._end_native(complete, out)
            case _:
                assert_never(event)

    def close(self, reason: Reason | None, out: list[ReplyEvent]) -> None:
        """The upstream's text is over; None: it broke off. Held-back text comes out as what it is."""
        self._found(self._parser.close("broken" if reason is None else _CLOSE[reason]), out)
        if self._open is not None:  # a call of the upstream's own that was never ended
            self._end_native(False, out)
        if self._opening is not None:
            text = self._opening.release() if reason is None else self._opening.close()
            self._opened(text, self._opening, out)
        self._leave_behind(out)
        self._no_stop(out)

    def _leave_behind(self, out: list[ReplyEvent]) -> None:
        """What waited behind a call is text: something else follows."""
        behind, self._behind = self._behind, None
        if behind is not None:
            self.forwards = self._stops is None
            if text := behind.close():
                self._show(TextDelta(self.choice, text), out)

    def release(self, out: list[ReplyEvent]) -> None:
        """What waited comes out, in order."""
        self._forced = False
        opening, self._opening = self._opening, None
        if opening is not None and (text := opening.release()):
            self._show(TextDelta(self.choice, text), out)
        for event in self._held:
            self._show(event, out)
        self._held.clear()
        self._held_size = 0
        self._no_stop(out)

    def _found(self, events: Iterable[statemachine.Event], out: list[ReplyEvent]) -> None:
        for event in events:
            if self.over:
                return
            match event:
                case statemachine.TextDelta(text=text):
                    self._text(TextDelta(self.choice, text), out)
                case statemachine.ArgumentsDelta(text=text):
                    self._arguments(text, out)
                case statemachine.CallStart(name=name, id=call_id, format=format_):
                    self.formats[format_] = None
                    self._begin(name, call_id, out)
                case statemachine.CallEnd(complete=complete, repairs=repairs):
                    self.repairs.update(dict.fromkeys(repairs))
                    self._end(complete, out)
                case statemachine.ReasoningDelta(text=text):
                    self._reasoning(text, out)
                case statemachine.Discarded(text=text, reason="unknown") if self._rules.unknown == "retry":
                    self._unknown(text, out)
                case statemachine.Discarded(text=text, reason=reason):
                    self._discard(text, reason)
                case _:
                    assert_never(event)

    def _text(self, event: TextDelta, out: list[ReplyEvent]) -> None:
        if self._forced:
            self._wait(event, out)
        elif self._opening is not None:
            self._opened(self._opening.feed(event.text), self._opening, out)
        elif self._behind is not None:
            self._follows(self._behind.feed(event.text), self._behind, out)
        else:
            self._show(event, out)

    def _opens(self, event: TextDelta, opening: Opening, out: list[ReplyEvent]) -> None:
        """A piece of the opening, which passes as it came once it is clear that nothing is denied."""
        text = opening.feed(event.text)
        if text is event.text and opening.decided and self._stops is None:
            self._opening = None
            self.forwards = True
            self._say(event, out)
        else:
            self._opened(text, opening, out)

    def _opened(self, text: str, opening: Opening, out: list[ReplyEvent]) -> None:
        """What the opening of the reply lets go; if it is a denial, the attempt is over."""
        self.held_most = max(self.held_most, opening.held)
        if opening.found is not None:
            self._deny(opening.found, opening.phrase)
            return
        if opening.decided:
            self._opening = None
            self.forwards = self._stops is None
        if text:
            self._show(TextDelta(self.choice, text), out)

    def _follows(self, text: str, behind: Invented, out: list[ReplyEvent]) -> None:
        """What follows a call; a result that the model makes up ends the reply."""
        if behind.found:
            self._discard(behind.close(), "invented result")
            self.over = True
            return
        if behind.decided:
            self._behind = None
            self.forwards = self._stops is None
        if text:
            self._show(TextDelta(self.choice, text), out)

    def _unknown(self, text: str, out: list[ReplyEvent]) -> None:
        """A call of a tool that is not offered: asked for again, or else the text that it was."""
        if self._again and not self.visible:
            self._deny("unknown tool", ", ".join(f"`{name}`" for name in self._rules.tools))
        else:
            self._text(TextDelta(self.choice, text), out)

    def _deny(self, why: Cause, detail: str) -> None:
        self.denied, self.detail = why, detail
        self.over = True
        self.forwards = False

    def _wait(self, event: TextDelta | ReasoningDelta, out: list[ReplyEvent]) -> None:
        """Hold `event` back until a forced call comes, or the limit is reached."""
        self._held.append(event)
        self._held_size += len(event.text)
        self.held_most = max(self.held_most, self._held_size)
        if self._held_size > self._rules.held:
            self.release(out)

    def _show(self, event: TextDelta | ReasoningDelta, out: list[ReplyEvent]) -> None:
        if self.over:
            return
        if type(event) is TextDelta:
            if self._stops is None:
                self._say(event, out)
                return
            text, self.stopped = self._stops.feed(event.text)
            self.over = self.stopped is not None
            self._say(TextDelta(self.choice, text), out)
        else:
            self._no_stop(out)
            out.append(event)

    def _say(self, event: TextDelta, out: list[ReplyEvent]) -> None:
        if event.text:
            self.visible = True
            if self._said is not None:
                self._said += event.text.encode("utf-8", "surrogatepass")
            out.append(event)

    def _no_stop(self, out: list[ReplyEvent]) -> None:
        """What might have become a stop string is text: something else follows."""
        if self._stops is not None:
            self._say(TextDelta(self.choice, self._stops.close()), out)

    def _reasoning(self, text: str, out: list[ReplyEvent]) -> None:
        match self._rules.reasoning:
            case "emit" if self._held:
                self._wait(ReasoningDelta(self.choice, text), out)
            case "emit":
                self._show(ReasoningDelta(self.choice, text), out)
            case "text":
                self._text(TextDelta(self.choice, text), out)
            case "drop":
                self._discard(text, "reasoning")
            case _:
                assert_never(self._rules.reasoning)

    def _begin(self, name: str, call_id: str | None, out: list[ReplyEvent], *, trusted: bool = False) -> None:
        if self._open is not None:
            self._end(False, out)
        self._leave_behind(out)
        rules = self._rules
        name = rules.aliases.get(name, name)
        if not trusted and (rules.forbidden or (rules.unknown != "deliver" and name not in rules.tools)):
            self.refused += 1
            self._open = None
            self._discard(name, "forbidden" if rules.forbidden else "unknown")
            if rules.unknown == "retry" and self._again and not self.visible:
                self._unknown("", out)
            return
        self._open = self._ids.take(call_id)
        self._named = name
        self._raw = RawInput() if name in rules.custom else None
        if name in rules.complete:
            self._pending = []
        else:
            self._direct = self._raw is None
            self._commit(out)

    def _commit(self, out: list[ReplyEvent]) -> None:
        self.release(out)
        self.over, self.stopped = False, None  # the call stands, whatever was said before it
        self.visible = True
        self.forwards = self._stops is None
        out.append(CallStart(self.choice, self.calls, self._open, self._named))
        self.calls += 1

    def _arguments(self, text: str, out: list[ReplyEvent]) -> None:
        if self._open is None:
            self._discard(text, "forbidden" if self._rules.forbidden else "unknown")
        elif self._pending is not None:
            self._pending.append(text)
        elif self._raw is not None:
            if text := self._raw.feed(text):
                out.append(ArgumentsDelta(self.choice, self.calls - 1, text))
        else:
            out.append(ArgumentsDelta(self.choice, self.calls - 1, text))

    def _end(self, complete: bool, out: list[ReplyEvent]) -> None:
        if self._open is None:
            return
        if self._pending is None:
            self._seen_cut = self._seen_cut or not complete
        self.incomplete = self._seen_cut or not complete
        if self._pending is not None and not complete:
            self._discard("".join(self._pending), "incomplete")
        elif self._pending is not None and not self._valid():
            self._discard("".join(self._pending), "invalid")
        else:
            text = ""
            if self._pending is not None:
                self._commit(out)
                text = "".join(self._pending)
            if self._raw is not None:
                text = self._raw.feed(text) + (self._raw.close() if complete else "")
            if text:
                out.append(ArgumentsDelta(self.choice, self.calls - 1, text))
            out.append(CallEnd(self.choice, self.calls - 1, complete))
        self._pending = self._raw = self._open = None
        self._direct = False
        if self.calls and not self._rules.native:
            self._behind = Invented()
            self.forwards = False
        if self._rules.single and self.calls:
            self.over = True
            self.forwards = False

    def _valid(self) -> bool:
        """Whether the call that waits may go out: its arguments, mended, fit the schema, or are the best there is."""
        assert self._pending is not None  # noqa: S101  whoever calls has looked
        if self._named in self._rules.custom:
            return True
        validator = Validator.of(self._rules.tools.get(self._named))
        text, self.fault, mends = validator.check("".join(self._pending))
        self._pending = [text]
        self.repairs.update(dict.fromkeys(mends))
        if self.fault is None:
            return True
        if self._again and self.calls == 0:
            self._deny("schema", self.fault.sentence)
            return False
        return self._rules.invalid == "deliver"

    def _end_native(self, complete: bool, out: list[ReplyEvent]) -> None:
        """The end of a call of the upstream's own."""
        native, self._native = self._native, None
        if native is not None:
            text = native.close(complete=complete)
            if text:
                self._arguments(text, out)
            complete = native.complete
            self.repairs.update(dict.fromkeys(native.repairs))
            if native.malformed:
                self.discarded["malformed"] = self.discarded.get("malformed", 0) + native.malformed
        self._end(complete, out)

    def _discard(self, text: str, reason: str) -> None:
        self.discarded[reason] = self.discarded.get(reason, 0) + len(text)
