"""What a failure is detected on: one class for each moment at which an attempt is judged.

A detector is a function of one of these. It sees what is known at that moment, and it changes nothing.
"""

from typing import ClassVar, Literal

from attrs import frozen

from streamtool.conversation import ForcingMethod
from streamtool.policy.refusals import Denial
from streamtool.policy.rules import Rules
from streamtool.validation.validator import InvalidArguments


@frozen(kw_only=True)
class Evidence:
    """What every detector may look at."""

    MOMENT: ClassVar[str]
    """When it is looked at; the word of the docs."""
    visible: bool = False
    """The client has seen text of this reply, other than white space, or a call."""

    @property
    def problem(self) -> str:
        """What is wrong, in one sentence for the client's error; "" where no error follows."""
        return ""


@frozen(kw_only=True)
class RefusedRequest(Evidence):
    """The upstream has answered a request with an error."""

    MOMENT = "request"
    status: int
    message: str
    native: bool
    """The request offered the tools natively, and the mode lets them become text instead."""
    forcing: ForcingMethod | None
    """The method by which the request forced a call."""
    asks_usage: bool = False
    """The request asked for counts of tokens by a field that the client has not sent."""


@frozen(kw_only=True)
class Opening(Evidence):
    """The first sentence of a reply matches a phrase. It is held back, so nothing of it is visible."""

    MOMENT = "opening"
    rules: Rules
    denies: Denial
    phrase: str
    """The phrase as the file has it."""


@frozen(kw_only=True)
class UnreadCall(Evidence):
    """Call syntax from which the parser has made no call."""

    MOMENT = "call"
    rules: Rules
    reason: Literal["unknown", "rejected"]
    """No tool of this name is offered, or the syntax cannot be read."""


@frozen(kw_only=True)
class CheckedArguments(Evidence):
    """The arguments of a call that waited until it was whole do not match the schema, even after coercion."""

    MOMENT = "arguments"
    invalid: InvalidArguments

    @property
    def problem(self) -> str:
        """What is wrong with them."""
        return self.invalid.message


@frozen(kw_only=True)
class EndOfReply(Evidence):
    """The model has stopped by itself."""

    MOMENT = "end"
    rules: Rules
    text: str
    """What the model has written, call syntax included, and before it the earlier attempts that the client has seen."""
    calls: int
    """Calls that the client has seen begin."""
    refused: int
    """Calls that the rules did not let pass."""
    unread: int
    """Calls that waited until they were whole, and could not be read."""
    incomplete: bool
    """The last call was cut, or an earlier one of which the client has seen a part."""
    stopped: bool
    """The text ended at a stop sequence of the caller."""
    reasoned: bool = False
    """The model has written reasoning."""
    answer: str = ""
    """Text that waits because it has to have a form."""


@frozen(kw_only=True)
class ProposedCall(Evidence):
    """The agent is about to execute a call."""

    MOMENT = "execution"
    name: str
    offered: tuple[str, ...]
    """The names of the tools."""
    complete: bool
    invalid: InvalidArguments | None = None
    approved: bool = True
    """Whoever was asked allows it."""
    reason: str = ""
    """Why they do not; "": they have not said."""


@frozen(kw_only=True)
class WholeReply(Evidence):
    """The agent has received a reply that has to be one object and nothing else."""

    MOMENT = "reply"
    violation: str | None
    """What is wrong with its form, and how to put it right; None: nothing."""
