"""Evidence for detecting failures: one class for each moment when an attempt is judged.

A detector is a function that takes an instance of one of these classes: the facts known at that moment. It has no side
effects.
"""

from typing import ClassVar, Literal

from streamtool.core.conversation import ForcingMethod
from streamtool.core.values import frozen
from streamtool.forcing.rules import Rules
from streamtool.refusals import Denial
from streamtool.schemas.validator import InvalidArguments


@frozen(kw_only=True)
class Evidence:
    """The evidence that is available to every detector."""

    MOMENT: ClassVar[str]
    """The name of the moment, as used in the docs."""
    visible: bool = False
    """Whether the client has seen a call or non-whitespace text of this reply."""

    @property
    def problem(self) -> str:
        """The problem in one sentence, for the client's error message; empty if the client receives no error."""
        return ""


@frozen(kw_only=True)
class RejectedRequest(Evidence):
    """An error response from the upstream."""

    MOMENT: ClassVar[str] = "request"
    status: int
    message: str
    native: bool
    """Whether the request offered the tools natively, in a mode that can fall back to tools as text."""
    forcing: ForcingMethod | None
    """The method that the request used to force a call."""
    asks_usage: bool = False
    """Whether the request asked for token usage with a field that the client had not sent."""


@frozen(kw_only=True)
class Opening(Evidence):
    """The first sentence of a reply, which matches a phrase. It is buffered, so the client has not seen any of it."""

    MOMENT: ClassVar[str] = "opening"
    rules: Rules
    denies: Denial
    phrase: str
    """The phrase as written in the file."""


@frozen(kw_only=True)
class UnreadCall(Evidence):
    """Call syntax that the parser did not turn into a call."""

    MOMENT: ClassVar[str] = "call"
    rules: Rules
    reason: Literal["unknown", "rejected"]
    """`unknown` if no tool with this name is offered, or `rejected` if the syntax cannot be parsed."""


@frozen(kw_only=True)
class SearchCall(Evidence):
    """A call of the tool that searches for tools. The client has not seen any call."""

    MOMENT: ClassVar[str] = "call"
    query: str
    allowed: bool
    """Whether a further search is allowed."""


@frozen(kw_only=True)
class CheckedArguments(Evidence):
    """The arguments of a buffered call, which do not match the schema even after coercion."""

    MOMENT: ClassVar[str] = "arguments"
    invalid: InvalidArguments

    @property
    def problem(self) -> str:
        """A description of the fault in the arguments."""
        return self.invalid.message


@frozen(kw_only=True)
class UnreadArguments(Evidence):
    """A call that the model has ended, but whose arguments are incomplete. The client has not seen any of it."""

    MOMENT: ClassVar[str] = "arguments"
    name: str
    """The name of the called tool."""
    rules: Rules


@frozen(kw_only=True)
class EndOfReply(Evidence):
    """The end of a reply that the model itself ended."""

    MOMENT: ClassVar[str] = "end"
    rules: Rules
    text: str
    """The text written by the model, including call syntax and the parts of earlier attempts that the client has
    seen.
    """
    calls: int
    """Number of calls whose start the client has seen."""
    refused: int
    """Number of calls that the rules did not allow."""
    unread: int
    """Number of calls that were buffered until complete but could not be parsed."""
    incomplete: bool
    """Whether the last call was truncated, or an earlier one that the client has partly seen."""
    stopped: bool
    """Whether the text ended at one of the client's stop sequences."""
    reasoned: bool = False
    """Whether the model has written reasoning."""
    answer: str = ""
    """The answer, if it is buffered because its form must be checked."""


@frozen(kw_only=True)
class ProposedCall(Evidence):
    """A call that the agent is about to execute."""

    MOMENT: ClassVar[str] = "execution"
    name: str
    offered: tuple[str, ...]
    """The names of the agent's tools."""
    complete: bool
    invalid: InvalidArguments | None = None
    quoted: bool = False
    """Whether the call repeats a result or a tool's description, and must therefore not be executed."""
    approved: bool = True
    """Whether the call was approved."""
    reason: str = ""
    """The reason for not approving the call; empty if none was given."""


@frozen(kw_only=True)
class WholeReply(Evidence):
    """A reply that the agent requires to be a single object."""

    MOMENT: ClassVar[str] = "reply"
    violation: str | None
    """The fault in the form of the answer, and how to fix it, or None if the answer has the requested form."""
