"""The stages of visible text in a row, and the last of them."""

from typing import Final

from streamtool.policy.choice_state import ChoiceState, Tally
from streamtool.policy.fabricated_results import FabricatedResultFilter
from streamtool.policy.held_text import OpeningFilter, TextHold
from streamtool.policy.rules import Rules
from streamtool.policy.stages import Content, Holding
from streamtool.policy.stop_sequences import StopSequences
from streamtool.reply import ReplyEvent, ReplyTextDelta

_WAITS_FOR: Final = (
    "it waits for the call that is forced",
    "the beginning of the reply may deny the tools",
    "an answer that has to have a form is checked when it is whole",
    "it may be an invented result",
    "it may be a stop sequence",
)
"""Why text waits, by the stage that holds it."""


class VisibleText:
    """The last stage: what comes here is visible. Visible text ends at the caller's stop sequences, and the reply too.

    What might become a stop sequence waits across attempts: it was visible text of one, and the next goes on behind it.
    """

    __slots__ = ("_choice", "_state", "_stops")

    def __init__(self, choice: int, state: ChoiceState, stop: tuple[str, ...]) -> None:
        self._choice = choice
        self._state = state
        self._stops = StopSequences(stop) if stop else None

    @property
    def active(self) -> bool:
        """There are stop sequences to look for."""
        return self._stops is not None

    @property
    def holds(self) -> bool:
        """What may become a stop sequence waits."""
        return self._stops is not None and self._stops.holds

    def feed(self, event: Content, out: list[ReplyEvent]) -> None:
        """Send the event, or its text as far as it may go."""
        state = self._state
        if state.over:
            return
        if type(event) is not ReplyTextDelta:
            self.close(out)
            out.append(event)
        elif self._stops is None:
            self._send(event, out)
        else:
            text, state.stop_sequence = self._stops.feed(event.text)
            state.over = state.stop_sequence is not None
            self._send(ReplyTextDelta(self._choice, text), out)

    def close(self, out: list[ReplyEvent]) -> None:
        """What might have become a stop sequence is text."""
        if self._stops is not None:
            self._send(ReplyTextDelta(self._choice, self._stops.close()), out)

    def _send(self, event: ReplyTextDelta, out: list[ReplyEvent]) -> None:
        if event.text:
            self._state.visible = self._state.visible or not event.text.isspace()
            out.append(event)


class TextFilter:
    """The stages of one choice."""

    __slots__ = ("_answer", "_hold", "_rules", "_state", "_visible", "fabricated", "opening")

    def __init__(self, choice: int, rules: Rules, state: ChoiceState, tally: Tally) -> None:
        self._rules = rules
        self._state = state
        self._visible = VisibleText(choice, state, rules.text.stop)
        self.fabricated = FabricatedResultFilter(choice, state, tally, self._visible)
        self._answer = TextHold(rules, tally, self.fabricated, active=rules.text.form is not None)
        self.opening = OpeningFilter(rules, state, tally, self._answer)
        self._hold = TextHold(rules, tally, self.opening, active=rules.forced)

    @property
    def idle(self) -> bool:
        """No stage has anything to do, so text may go out directly."""
        holding = self._hold.active or self.opening.active or self._answer.active
        return not (holding or self.fabricated.active or self._visible.active or self._state.over)

    @property
    def holds(self) -> bool:
        """Text waits for a forced call, for the end of the opening, or of the answer."""
        return self._hold.holds or self.opening.holds or self._answer.holds

    @property
    def waits_for(self) -> str:
        """Why text waits; "" if none does."""
        stages: tuple[Holding, ...] = (self._hold, self.opening, self._answer, self.fabricated, self._visible)
        return next((why for stage, why in zip(stages, _WAITS_FOR, strict=True) if stage.holds), "")

    @property
    def answer(self) -> str:
        """The answer that waits."""
        return self._answer.text

    @property
    def waiting(self) -> int:
        """Characters of it."""
        return self._answer.size

    def restart(self) -> None:
        """The next attempt begins."""
        self._hold.restart(active=self._rules.forced and not self._state.calls)
        self.opening.restart()
        fresh = not (self._state.calls or self._state.visible)
        self._answer.restart(active=self._rules.text.form is not None and fresh)

    def feed(self, event: Content, out: list[ReplyEvent]) -> None:
        """Text or reasoning that the model has written."""
        self._hold.feed(event, out)

    def end(self, out: list[ReplyEvent], *, broken: bool) -> None:
        """The upstream's text is over. What waits for a forced call goes on waiting: the attempt may be rejected."""
        self.opening.end(out, broken=broken)
        self.fabricated.close(out)

    def close(self, out: list[ReplyEvent]) -> None:
        """Everything that waits goes out, in order."""
        self._hold.close(out)
