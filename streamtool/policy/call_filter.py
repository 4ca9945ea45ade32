"""The stage of calls: which of them pass, under which id, and whether their arguments go out at once.

A forbidden call does not pass, and neither does one of a tool that is not offered. A call whose arguments are to be
complete waits for its end and is checked; any other call commits when it begins. What waits as text goes out before a
call does.
"""

from collections.abc import Callable
from typing import Literal

from streamtool.policy.call_ids import CallIds
from streamtool.policy.choice_state import ChoiceState, Tally
from streamtool.policy.evidence import CheckedArguments, UnreadCall
from streamtool.policy.failures import find
from streamtool.policy.open_call import OpenCall
from streamtool.policy.rules import Rules
from streamtool.policy.text_filter import TextFilter
from streamtool.reply import ReplyArgumentsDelta, ReplyCallEnd, ReplyCallStart, ReplyEvent, ReplyTextDelta


class CallFilter:
    """The calls of one choice."""

    __slots__ = (
        "_choice", "_clock", "_cut", "_ids", "_open", "_rules", "_state", "_tally", "_text", "first_at", "streams",
    )  # fmt: skip

    def __init__(
        self,
        choice: int,
        rules: Rules,
        state: ChoiceState,
        tally: Tally,
        text: TextFilter,
        *,
        ids: CallIds,
        clock: Callable[[], float] | None,
    ) -> None:
        self._choice = choice
        self._rules = rules
        self._state = state
        self._tally = tally
        self._text = text
        self._ids = ids
        self._clock = clock
        self._open: OpenCall | None = None
        self._cut = False
        """The client has seen a part of a call that was cut."""
        self.streams = False
        """A call is open whose arguments go out as they come."""
        self.first_at: float | None = None
        """When the client saw the first call begin."""

    @property
    def open(self) -> bool:
        """A call has begun and has not ended."""
        return self._open is not None

    @property
    def waiting(self) -> int:
        """Characters of arguments that wait for the end of their call."""
        return 0 if self._open is None else self._open.size

    @property
    def waits_for(self) -> str:
        """Why a call waits; "" if none does."""
        return "its arguments are checked when they are complete" if self._open is not None and self._open.waits else ""

    def restart(self) -> None:
        """The next attempt begins. No call of the last one was seen."""
        self._open = None
        self.streams = False

    def begin(
        self,
        name: str,
        call_id: str | None,
        out: list[ReplyEvent],
        *,
        native: bool = False,
        signature: str | None = None,
    ) -> None:
        """A call begins. `native`: the upstream has made it itself, with the `signature`."""
        if self._open is not None:
            self.end(out, complete=False)
        self._text.fabricated.release(out)
        rules = self._rules
        name = rules.tools.aliases.get(name, name)
        trusted = native and rules.native
        if not trusted and (rules.forbidden or (rules.unknown != "deliver" and name not in rules.tools.schemas)):
            self._state.refused += 1
            self._tally.discard(name, self._why_refused)
            if rules.unknown == "retry":
                self.unread("", "unknown", out)
            return
        self._open = call = OpenCall(rules, self._ids.take(call_id), name, native=native, signature=signature)
        if not call.waits:
            self.streams = call.direct
            self._commit(call, out)

    def feed(self, text: str, out: list[ReplyEvent]) -> None:
        """A piece of the arguments."""
        if self._open is None:
            self._tally.discard(text, self._why_refused)
        elif text := self._open.feed(text):
            out.append(ReplyArgumentsDelta(self._choice, len(self._state.calls) - 1, text))

    def end(self, out: list[ReplyEvent], *, complete: bool) -> None:
        """The call is over."""
        call, self._open = self._open, None
        self.streams = False
        if call is None:
            return
        text, complete = call.end_native(complete=complete)
        self._cut = self._cut or not (complete or call.waits)
        self._state.incomplete = self._cut or not complete
        if not call.waits:
            self._finish(call, text, out, complete=complete)
        elif not complete:
            self._tally.discard(call.waiting, "incomplete")
            self._state.unread += 1
        elif self._passes(call):
            self._commit(call, out)
            self._finish(call, text, out, complete=True)
        else:
            self._tally.discard(call.waiting, "invalid")
        self._tally.repair(call.repairs)
        if call.malformed:
            self._tally.discarded["malformed"] = self._tally.discarded.get("malformed", 0) + call.malformed
        if self._state.calls:
            if not self._rules.native:
                self._text.fabricated.watch()
            if self._rules.single:
                self._state.over = True

    def unread(self, text: str, reason: Literal["unknown", "rejected"], out: list[ReplyEvent]) -> None:
        """Call syntax that is no call: asked for again.

        If nobody is asked any more, a call of an unknown tool is left out, and anything else is the text that it was.
        """
        state = self._state
        found = find(UnreadCall(visible=state.visible, rules=self._rules, reason=reason))
        if state.rejects(found):
            return
        state.tolerate(found)
        if reason == "unknown":
            self._tally.discard(text, "unknown")
            state.incomplete = state.incomplete or not state.calls
        elif text:
            self._text.feed(ReplyTextDelta(self._choice, text), out)

    @property
    def _why_refused(self) -> str:
        return "forbidden" if self._rules.forbidden else "unknown"

    def _commit(self, call: OpenCall, out: list[ReplyEvent]) -> None:
        """The call stands, whatever was said before it; that goes out first."""
        self._text.close(out)
        state = self._state
        state.over, state.stop_sequence = False, None
        state.visible = True
        out.append(ReplyCallStart(self._choice, len(state.calls), call.id, call.name, call.signature))
        if not state.calls:
            self.first_at = None if self._clock is None else self._clock()
            state.tolerated = state.invalid
        state.calls.append(call.id)

    def _finish(self, call: OpenCall, text: str, out: list[ReplyEvent], *, complete: bool) -> None:
        """The last of the arguments, and the end."""
        index = len(self._state.calls) - 1
        text += call.close(complete=complete)
        if text:
            out.append(ReplyArgumentsDelta(self._choice, index, text))
        out.append(ReplyCallEnd(self._choice, index, complete))

    def _passes(self, call: OpenCall) -> bool:
        """Whether a call that waited may go out: its arguments match the schema, or are the best there is."""
        state = self._state
        invalid = call.check()
        if invalid is None:
            state.invalid = None
            return True
        state.invalid = find(CheckedArguments(visible=state.visible, invalid=invalid))
        return not state.rejects(state.invalid) and self._rules.invalid == "deliver"
