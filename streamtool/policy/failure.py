"""What a row of the table of failures says, and what is known of a failure that has happened."""

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from attrs import field, frozen

from streamtool.conversation import Conversation
from streamtool.policy.evidence import Evidence

E = TypeVar("E", bound=Evidence)

_EXIT: Final = " If the task is done, say so in plain text."
"""What ends a demand for a call, unless the client demands it as well."""


class Outcome(Enum):
    """What becomes of an attempt that fails, while another one may follow."""

    RETRIED = "retried"
    """It is thrown away: an attempt of which the client has seen something does not fail in this way."""
    CONTINUED = "continued"
    """Its visible text becomes an assistant message, and the next attempt goes on behind it."""
    EITHER = "retried, or continued behind visible text"
    DELIVERED = "delivered"
    """The client gets it as it is, and nobody is asked again."""
    ANSWERED = "answered"
    """The agent answers the call with an error instead of executing it."""

    def fits(self, *, visible: bool) -> bool:
        """Whether this can become of an attempt of which the client has, or has not, seen anything."""
        if self is Outcome.RETRIED:
            return not visible
        return visible or self is not Outcome.CONTINUED


@frozen
class Failure(Generic[E]):
    """One class of failures."""

    cause: str
    """The word of the log record."""
    on: type[E]
    """The evidence on which it is detected."""
    detect: Callable[[E], str | None] = field(repr=False)
    """The detail of the failure, which may be empty; None: it did not happen."""
    when: str
    """The same in words, for the docs."""
    outcome: Outcome
    setting: str = ""
    """The setting that switches it, for the docs; "": it is always on."""
    corrections: tuple[str, ...] = field(default=(), repr=False)
    """What the model is told after its first, second, … try. `{detail}` and `{tool}` are filled in."""
    native: tuple[str, ...] = field(default=(), repr=False)
    """The same for a model that has its tools natively. (): it is not asked again."""
    demands_call: bool = True
    """The correction asks for a call, so it has to leave a way out to a model that needs none."""
    in_record: bool = True
    """The record names it when the last attempt fails and is delivered all the same."""
    detail_is_ours: bool = False
    """The detail quotes no contents: it is a phrase of our own files, and may stand in any log."""


@frozen
class Finding:
    """A failure that has happened, and its detail."""

    failure: Failure[Any]  # the kind of evidence no longer matters
    detail: str = ""
    problem: str = ""
    """For errors: what is wrong, in one sentence."""

    @property
    def cause(self) -> str:
        """The word of the log record."""
        return self.failure.cause

    @property
    def asks_again(self) -> bool:
        """Another attempt is made, if one may follow."""
        return self.failure.outcome is not Outcome.DELIVERED

    def correction(self, conversation: Conversation, attempt: int, *, native: bool = False) -> str:
        """What the model is told after its `attempt`-th try (1 is the first); `native`: it has its tools natively."""
        choice = conversation.choice
        tool = f" The tool to call is `{choice.names[0]}`." if len(choice.names) == 1 else ""
        text = self._wording(attempt, tool, (native and self.failure.native) or self.failure.corrections)
        return text + _EXIT if self.failure.demands_call and choice.mode != "required" else text

    @property
    def answer(self) -> str:
        """What the model is told of a call that the agent does not execute, or of a reply that it does not accept."""
        return self._wording(1, "", self.failure.corrections)

    def _wording(self, attempt: int, tool: str, corrections: tuple[str, ...]) -> str:
        text = corrections[(attempt - 1) % len(corrections)]
        return text.replace("{tool}", tool).replace("{detail}", self.detail)
