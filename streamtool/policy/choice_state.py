"""What the stages of one choice share, and what they count.

`ChoiceState` begins anew with each attempt, but for what the client has seen. `Tally` goes on over all of them.
"""

from attrs import define, field

from streamtool.policy.failure import Finding


@define
class ChoiceState:
    """How one choice stands."""

    may_retry: bool
    """Another attempt may follow this one."""
    visible: bool = False
    """The client has seen text, other than white space, or a call, in this attempt or before."""
    calls: list[str] = field(factory=list)
    """Ids of the calls that the client has seen begin."""
    over: bool = False
    """The reply of this choice ends here, whatever the upstream still says."""
    rejected: Finding | None = None
    """Why this attempt is not accepted, whatever else it says."""
    tolerated: Finding | None = None
    """Why this attempt would not be accepted if another one could follow."""
    invalid: Finding | None = None
    """What is wrong with the arguments of the last call that waited until it was whole."""
    refused: int = 0
    """Calls that the rules did not let pass."""
    unread: int = 0
    """Calls that waited until they were whole, and could not be read."""
    reasoned: bool = False
    """The model has written reasoning."""
    incomplete: bool = False
    """The last call was cut, or an earlier one of which the client has seen a part."""
    stop_sequence: str | None = None
    """The caller's stop sequence at which the text ended."""

    def restart(self, *, may_retry: bool) -> None:
        """The next attempt begins. What the client has seen stays."""
        self.may_retry = may_retry
        self.over = self.incomplete = self.reasoned = False
        self.rejected = self.tolerated = self.invalid = None
        self.refused = self.unread = 0
        self.stop_sequence = None

    def rejects(self, finding: Finding | None) -> bool:
        """Whether this finding ends the attempt. Once the client has seen a call, nothing is asked for again."""
        if finding is None or not self.may_retry or self.calls or not finding.asks_again:
            return False
        self.rejected = finding
        self.over = True
        return True

    def tolerate(self, finding: Finding | None) -> None:
        """The attempt is delivered with this failure."""
        if finding is not None and finding.failure.in_record:
            self.tolerated = finding


@define
class Tally:
    """What was counted in one choice, in all of its attempts."""

    written: int = 0
    """Characters that the upstream has written, call syntax included."""
    held: int = 0
    """Characters that were held back before they were known to be visible, at most."""
    formats: dict[str, int] = field(factory=dict)
    """Formats, and how many calls were found in each."""
    repairs: dict[str, None] = field(factory=dict)
    """Names of what was mended in calls, each once, in order."""
    discarded: dict[str, int] = field(factory=dict)
    """Characters that are neither shown nor part of a call, by reason."""

    def discard(self, text: str, reason: str) -> None:
        """Count text that goes nowhere."""
        self.discarded[reason] = self.discarded.get(reason, 0) + len(text)

    def hold(self, size: int) -> None:
        """So many characters are held back now."""
        self.held = max(self.held, size)

    def found(self, format: str) -> None:
        """A call of this format begins."""
        self.formats[format] = self.formats.get(format, 0) + 1

    def repair(self, names: tuple[str, ...]) -> None:
        """A call was mended so."""
        self.repairs.update(dict.fromkeys(names))
