"""The state and statistics of one choice, shared by its stages.

`ChoiceState` is reset for each attempt, except for the state of the client's reply. `Tally` accumulates over all
attempts.
"""

from attrs import define, field

from streamtool.policy.failure import Finding
from streamtool.policy.failures import TOOL_SEARCH


@define
class ChoiceState:
    """The state of one choice in the current attempt."""

    may_retry: bool
    """Whether another attempt may follow this one."""
    may_search: bool = False
    """Whether another attempt may follow this one because the model searches for tools."""
    insists: bool = False
    """Whether this attempt is the last of several, so that calls to unknown tools are delivered."""
    visible: bool = False
    """Whether the client has seen a call or non-whitespace text, in this attempt or an earlier one."""
    last_text: str = ""
    """The last piece of visible text."""
    last_reasoning: str = ""
    """The last piece of reasoning that the client has seen."""
    reasoning_separator: str = ""
    """Text to insert before the next reasoning, because it continues that of a rejected attempt."""
    separator: str = ""
    """Text to insert before the next visible text, because it continues the text of a rejected attempt."""
    calls: list[str] = field(factory=list)
    """Ids of the calls whose start the client has seen."""
    ended: bool = False
    """Whether this choice has ended for the client, even if the upstream sends more."""
    turn_over: bool = False
    """Whether this choice has ended because the model continues with a turn that it makes up."""
    rejected: Finding | None = None
    """The failure that rejects this attempt, regardless of the remainder of the reply."""
    tolerated: Finding | None = None
    """The failure that would reject this attempt if another one could follow."""
    invalid: Finding | None = None
    """The failure found in the arguments of the last call that was buffered until complete."""
    disallowed: int = 0
    """Number of calls that the rules did not allow."""
    unreadable: int = 0
    """Number of calls that were buffered until complete but could not be read."""
    reasoned: bool = False
    """Whether the model has written reasoning."""
    incomplete: bool = False
    """Whether the last call was truncated, or an earlier call that the client has partly seen."""
    unknown_native: bool = False
    """Whether the upstream itself called a tool that was not offered, so that the call has no text to deliver."""
    stop_sequence: str | None = None
    """The client's stop sequence that ended the text, or None if none has."""

    @property
    def searched(self) -> bool:
        """Whether the model has ended this attempt with a search for tools."""
        return self.rejected is not None and self.rejected.failure is TOOL_SEARCH

    def restart(self, *, may_retry: bool, may_search: bool, insists: bool = False) -> None:
        """Reset the state for the next attempt, except for the state of the client's reply."""
        self.may_retry, self.may_search, self.insists = may_retry, may_search, insists
        self.ended = self.turn_over = self.incomplete = self.reasoned = self.unknown_native = False
        self.rejected = self.tolerated = self.invalid = None
        self.disallowed = self.unreadable = 0
        self.stop_sequence = None

    def reject(self, finding: Finding | None) -> bool:
        """Reject the attempt because of this finding, if the model may be asked again. Return whether it was rejected.

        Once the client has seen a call, the attempt can no longer be rejected.
        """
        if finding is None or self.calls or not finding.asks_again:
            return False
        if not (self.may_search if finding.failure is TOOL_SEARCH else self.may_retry):
            return False
        self.rejected = finding
        self.ended = True
        return True

    def tolerate(self, finding: Finding | None) -> None:
        """Record a failure of an attempt that is delivered anyway."""
        if finding is not None and finding.failure.in_record:
            self.tolerated = finding


@define
class Tally:
    """The statistics of one choice over all of its attempts."""

    held: int = 0
    """Maximum number of characters that were buffered before they were known to be visible."""
    formats: dict[str, int] = field(factory=dict)
    """Number of calls found, by format."""
    repairs: tuple[str, ...] = ()
    """Names of the repairs made to calls, in order and without duplicates."""
    discarded: dict[str, int] = field(factory=dict)
    """Number of characters that were neither shown nor part of a call, by reason."""

    repeated: list[str] = field(factory=list)
    """Ids of calls that repeat a result or a tool's description, but no user's message, if these are reported."""

    def discard(self, text: str, reason: str) -> None:
        """Count discarded text."""
        self.discarded[reason] = self.discarded.get(reason, 0) + len(text)

    def count_buffered(self, size: int) -> None:
        """Update the maximum with the number of characters that are currently buffered."""
        self.held = max(self.held, size)

    def count_call(self, format: str) -> None:
        """Count a call of this format."""
        self.formats[format] = self.formats.get(format, 0) + 1

    def add_repairs(self, names: tuple[str, ...]) -> None:
        """Record the names of repairs."""
        self.repairs = tuple(dict.fromkeys((*self.repairs, *names)))
