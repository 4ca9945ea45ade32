"""Events of an agent run, in this order:

    (TurnStart
     (OutputDelta | ThoughtDelta | ToolCallStart ToolArgumentsDelta* ToolCallEnd)*
     Rejected* (Progress | ToolCallResult)*
    )* Final

A `Rejected` without an id rejects the whole reply: the events of the reply are void, and the model is asked for another
one. All other output remains valid. Calls that start while the model is still writing are reported in the same order:
nothing about their execution precedes the end of the reply. A run that ends without `Final` raises an exception
instead.
"""

from collections.abc import Awaitable, Callable, Mapping

from attrs import define, field, frozen

from streamtool.core.conversation import Part, TextPart
from streamtool.core.json_value import Json
from streamtool.core.reply import Reason, Usage


@frozen
class TurnStart:
    """Start of a turn: the model is asked for its next reply. Turns are numbered from 1."""

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
    """Start of a call, once the tool's name is known."""

    id: str
    name: str


@define
class ToolArgumentsDelta:
    """A piece of a call's arguments."""

    id: str
    text: str


@frozen
class ToolCallEnd:
    """End of a call; `complete` is False if the call was truncated."""

    id: str
    name: str
    arguments: str
    complete: bool = True
    quoted: bool = False
    """Whether the call repeats a result or a tool's description, but no user's message. Known only at the end of the
    reply, so only `approve` sees it.
    """


@frozen
class Veto:
    """Refusal of a call by `approve`, with a reason that the model reads."""

    reason: str


@frozen
class Rejected:
    """A call that is not executed or, without an `id`, a whole reply that is not accepted. The model receives the
    reason.
    """

    why: str
    """Cause, as listed in the table of failures (`streamtool/policy/failures.py`)."""
    message: str
    """Message to the model."""
    id: str | None = None
    name: str | None = None


@frozen
class Progress:
    """Progress reported by a tool while it runs."""

    id: str
    name: str
    done: float
    total: float | None = None
    message: str | None = None


@frozen
class ToolCallResult:
    """Result of a call, or the error that replaces it."""

    id: str
    name: str
    content: tuple[Part, ...]
    error: bool = False
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """All text of the result, joined by newlines."""
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))


@frozen
class Final:
    """Final answer and the totals for the run."""

    text: str
    reason: Reason
    """Why the last reply ended; `length` means that the answer is truncated."""
    turns: int
    usage: Usage
    messages: tuple[Mapping[str, Json], ...] = field(repr=False)
    """All messages added by the run, including this answer, in Chat Completions form."""

    @property
    def output(self) -> str:
        """The answer; an alias of `text` for compatibility with other agent libraries."""
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
Emit = Callable[[Event], Awaitable[None]]
