"""Rows of the failure table, and findings, which are failures that have occurred."""

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from attrs import field, frozen

from streamtool.core.conversation import Conversation
from streamtool.policy.evidence import Evidence

E = TypeVar("E", bound=Evidence)

_EXIT: Final = " If the task is done, answer in plain text."
"""The end of a correction that demands a call although the client does not require one."""


class Outcome(Enum):
    """The consequence for a failed attempt if another one may follow."""

    RETRIED = "retried"
    """The attempt is discarded. This cannot happen if the client has already seen part of it."""
    CONTINUED = "continued"
    """The attempt's visible text becomes an assistant message, which the next attempt continues."""
    EITHER = "retried, or continued after visible text"
    DELIVERED = "delivered"
    """The client receives the attempt unchanged; no further attempt is made."""
    ANSWERED = "answered"
    """The agent answers the call with an error instead of executing it."""

    def fits(self, *, visible: bool) -> bool:
        """Return whether an attempt can have this outcome. `visible` means that the client has seen part of the
        attempt.
        """
        if self is Outcome.RETRIED:
            return not visible
        return visible or self is not Outcome.CONTINUED


class Effect(Enum):
    """A change to an exchange's plan after the upstream has declined a request; `exchange.plan.next_plan` makes it."""

    NONE = "repeats the request"
    WITHOUT_USAGE = "leaves the field out"
    TOOLS_AS_TEXT = "sends the tools as text"
    FORCING_LESS = "leaves out the rejected method or constraint, or relies on the prompt alone"


@frozen
class Failure(Generic[E]):
    """One class of failures: a row of the table."""

    cause: str
    """The failure's name in the log record."""
    on: type[E]
    """The type of evidence on which it is detected."""
    detect: Callable[[E], str | None] = field(repr=False)
    """The detector. It returns the failure's detail, which may be empty, or None if the failure did not occur."""
    when: str
    """The condition in words, for the docs."""
    outcome: Outcome
    setting: str = ""
    """The setting that turns detection on or off, for the docs; empty if detection is always on."""
    effect: Effect = Effect.NONE
    """A change to the plan. Only failures that are detected on `RejectedRequest` have one."""
    corrections: tuple[str, ...] = field(default=(), repr=False)
    """Messages to the model after its first, second, … attempt. `{detail}` and `{tool}` are filled in."""
    native: tuple[str, ...] = field(default=(), repr=False)
    """Messages to a model that receives its tools natively. If empty, such a model receives `corrections` as well."""
    demands_call: bool = True
    """Whether the correction demands a call. If the client does not require one, the correction allows an answer in
    plain text as well.
    """
    in_record: bool = True
    """Whether the record names the failure if the last attempt fails and is delivered nevertheless."""
    detail_is_ours: bool = False
    """Whether the detail may appear in any log: it is a phrase from our own files and quotes no contents."""


@frozen
class Finding:
    """A failure that has occurred, and its detail."""

    failure: Failure[Any]  # its type of evidence no longer matters
    detail: str = ""
    problem: str = ""
    """The problem in one sentence, for errors."""

    @property
    def cause(self) -> str:
        """The failure's name in the log record."""
        return self.failure.cause

    @property
    def asks_again(self) -> bool:
        """Whether this finding leads to another attempt, provided that another attempt may follow."""
        return self.failure.outcome is not Outcome.DELIVERED

    def correction(self, conversation: Conversation, attempt: int, *, native: bool = False) -> str:
        """Return the message to the model after attempt number `attempt`, counted from 1. `native` means that the model
        receives its tools natively.
        """
        choice = conversation.choice
        tool = f" The tool to call is `{choice.names[0]}`." if len(choice.names) == 1 else ""
        text = self._wording(attempt, tool, (native and self.failure.native) or self.failure.corrections)
        return text + _EXIT if self.failure.demands_call and choice.mode != "required" else text

    @property
    def answer(self) -> str:
        """The message to the model about a call that the agent does not execute, or a reply that it does not accept."""
        return self._wording(1, "", self.failure.corrections)

    def _wording(self, attempt: int, tool: str, corrections: tuple[str, ...]) -> str:
        text = corrections[(attempt - 1) % len(corrections)]
        return text.replace("{tool}", tool).replace("{detail}", self.detail)
