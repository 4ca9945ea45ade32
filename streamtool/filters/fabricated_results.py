"""A stage for visible text that ends the reply if the model makes up a result for its own call.

Only text directly after a call is checked, against the phrases that introduce results in our prompts and in those of
model families. A few characters are buffered while they may still become such a phrase. Any other text ends the check.
"""

from typing import Final

from streamtool.core.reply import ReplyEvent, ReplyTextDelta
from streamtool.filters.choice_state import ChoiceState, Tally
from streamtool.filters.stages import Content, Stage

MARKERS: Final = (
    "<tool_response",
    "<tool_result",
    "<tool_output",
    "<function_result",
    "<function_response",
    "<observation",
    "<|tool_response",
    "<|observation",
    "<|im_start|>user",
    "<|im_start|>tool",
    "<|start_header_id|>ipython",
    "<|start_header_id|>user",
    "<|tool▁outputs▁begin|>",
    "[TOOL_RESULTS]",
    "[Tool Result]",
    "Tool Result (",
    "Observation:",
)


class FabricatedResultFilter:
    """A filter for the text that directly follows a call. Reasoning passes unchecked."""

    __slots__ = ("_choice", "_held", "_next", "_state", "_tally", "active")

    def __init__(self, choice: int, state: ChoiceState, tally: Tally, then: Stage) -> None:
        self._choice = choice
        self._state = state
        self._tally = tally
        self._next = then
        self._held = ""
        self.active = False
        """Whether text is being checked, or buffered."""

    @property
    def holds(self) -> bool:
        """Whether any text is buffered."""
        return bool(self._held)

    def watch(self) -> None:
        """Start checking, because a call that the model wrote has just ended."""
        self.active = True

    def feed(self, event: Content, out: list[ReplyEvent]) -> None:
        """Pass text on once it has been found not to be a result."""
        if not self.active or type(event) is not ReplyTextDelta:
            self._next.feed(event, out)
            return
        self._held += event.text
        begins = self._held.lstrip()
        if any(marker.startswith(begins) for marker in MARKERS):
            return
        if begins.startswith(MARKERS):
            self._tally.discard(self._held, "invented result")
            self._held = ""
            self._state.ended = True
        else:
            self.release(out)

    def release(self, out: list[ReplyEvent]) -> None:
        """Emit the buffered characters as text and stop checking."""
        self.active = False
        text, self._held = self._held, ""
        if text:
            self._next.feed(ReplyTextDelta(self._choice, text), out)

    def close(self, out: list[ReplyEvent]) -> None:
        """Flush this stage and the stages after it."""
        self.release(out)
        self._next.close(out)
