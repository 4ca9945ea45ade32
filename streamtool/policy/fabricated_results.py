"""Sees that a model goes on behind its call with a result that it makes up itself.

Only what follows a call at once counts: the words by which results begin in our frames and in those of model families.
A few characters wait while they may still become such words; anything else is text, and nothing waits any more.
"""

from typing import Final

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
    """Looks at what follows one call."""

    __slots__ = ("_held", "decided", "found")

    def __init__(self) -> None:
        self._held = ""
        self.decided = False
        """Nothing is looked for any more."""
        self.found = False
        """A result begins here that the model has made up."""

    def feed(self, text: str) -> str:
        """The text that may be shown."""
        self._held += text
        begins = self._held.lstrip()
        if any(marker.startswith(begins) for marker in MARKERS):
            return ""
        self.found = begins.startswith(MARKERS)
        self.decided = True
        return "" if self.found else self.close()

    def close(self) -> str:
        """What waited: something else follows, or nothing."""
        held, self._held = self._held, ""
        return held
