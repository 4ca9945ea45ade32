"""A stage of visible text: ends the reply where a model goes on behind its call with a result that it makes up itself.

Only what follows a call at once counts: the words by which results begin in our frames and in those of model families.
A few characters wait while they may still become such words; anything else is text, and nothing waits any more.
"""

from typing import Final

from streamtool.policy.choice_state import ChoiceState, Tally
from streamtool.policy.stages import Content, Stage
from streamtool.reply import ReplyEvent, ReplyTextDelta

MARKERS: Final = (
    *("<tool_response", "<tool_result", "<tool_output", "<function_result", "<function_response", "<observation"),
    *("<|tool_response", "<|observation", "<|im_start|>user", "<|im_start|>tool", "<|start_header_id|>ipython"),
    *(
        "<|start_header_id|>user",
        "<|tool▁outputs▁begin|>",
        "[TOOL_RESULTS]",
        "[Tool Result]",
        "Tool Result (",
        "Observation:",
    ),
)


class FabricatedResultFilter:
    """Looks at the text that directly follows a call. Reasoning is no result, and passes."""

    __slots__ = ("_choice", "_held", "_next", "_state", "_tally", "active")

    def __init__(self, choice: int, state: ChoiceState, tally: Tally, then: Stage) -> None:
        self._choice = choice
        self._state = state
        self._tally = tally
        self._next = then
        self._held = ""
        self.active = False
        """Text is looked at, or waits."""

    @property
    def holds(self) -> bool:
        """Something waits."""
        return bool(self._held)

    def watch(self) -> None:
        """A call of the model's own has ended."""
        self.active = True

    def feed(self, event: Content, out: list[ReplyEvent]) -> None:
        """Text passes once it is clear that it is no result."""
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
            self._state.over = True
        else:
            self.release(out)

    def release(self, out: list[ReplyEvent]) -> None:
        """What waited is text: something else follows, or nothing."""
        self.active = False
        text, self._held = self._held, ""
        if text:
            self._next.feed(ReplyTextDelta(self._choice, text), out)

    def close(self, out: list[ReplyEvent]) -> None:
        """Nothing follows: release what waited, here and in the stages behind."""
        self.release(out)
        self._next.close(out)
