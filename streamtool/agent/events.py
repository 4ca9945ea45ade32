"""What an agent tells while it runs. Each event is data; their order in one run:

    (TurnStart (TextDelta | ReasoningDelta | CallStart ArgumentsDelta* CallEnd)* Rejected* (Progress | Result)*)* Final

A `Rejected` without a call says that the whole reply was not accepted: what was shown of it is void, and the model is
asked again. Everything else that was shown stands. A run that ends without `Final` raises an error instead.
"""

from collections.abc import Mapping
from typing import Any

from attrs import define, field, frozen

from streamtool.conversation import Part, TextPart
from streamtool.reply import Reason, Usage

Json = Any  # a decoded JSON value


@frozen
class TurnStart:
    """The model is asked for its next reply; 1 is the first."""

    turn: int


@define
class OutputDelta:
    """A piece of visible text."""

    text: str


@define
class ThoughtDelta:
    """A piece of the model's reasoning."""

    text: str


@frozen
class ToolCallStart:
    """The model begins to write a call."""

    id: str
    name: str


@define
class ToolArgumentsDelta:
    """A piece of the call's arguments."""

    id: str
    text: str


@frozen
class ToolCallEnd:
    """The call is written; `complete` is False when it was cut off."""

    id: str
    name: str
    arguments: str
    complete: bool = True


@frozen
class Veto:
    """A "no" of `approve`, with a reason that the model reads."""

    reason: str


@frozen
class Rejected:
    """A call that is not executed, or (without `id`) a whole reply that is not accepted; the model is told why."""

    why: str
    """The cause of a failure that an agent detects (`streamtool/policy/failures.py`)."""
    message: str
    """What the model is told."""
    id: str | None = None
    name: str | None = None


@frozen
class Progress:
    """What a tool tells while it runs."""

    id: str
    name: str
    done: float
    total: float | None = None
    message: str | None = None


@frozen
class ToolCallResult:
    """What a call gave back, or why it gave nothing."""

    id: str
    name: str
    content: tuple[Part, ...]
    error: bool = False
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """All text of it, joined by newlines."""
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))


@frozen
class Final:
    """The final answer, and what it took."""

    text: str
    reason: Reason
    """Why the reply ended: a length, for instance, says that the answer is cut."""
    turns: int
    usage: Usage
    messages: tuple[Mapping[str, Json], ...] = field(repr=False)
    """All that the run adds to the conversation, this answer included, as messages of Chat Completions."""

    @property
    def output(self) -> str:
        """The answer: `text`, by the name that other agents' results have for it."""
        return self.text


Event = (
    TurnStart
    | OutputDelta
    | ThoughtDelta
    | ToolCallStart
    | ToolArgumentsDelta
    | ToolCallEnd
    | Rejected
    | Progress
    | ToolCallResult
    | Final
)
