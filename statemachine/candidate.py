"""A call while it is being read: the candidate, its arguments, and the envelope around them."""

from attrs import define, field

from statemachine.formats.format import Format
from statemachine.json.state import JsonState

TICK = "`"
NO_KEYS: set[str] = set()
"""The parameters of a call that has none yet; never changed."""


@define(eq=False)
class ArgumentsState:
    """What is known of a call's arguments while they are read."""

    json: JsonState = field(factory=JsonState)
    early: list[str] = field(factory=list)
    """What came before the name."""
    begun: bool = False
    complete: bool = False
    given: set[str] = NO_KEYS
    """Parameters that were given."""
    open_value: bool = False
    """Inside a raw value."""

    def missing(self) -> str | None:
        """What would complete them if the text ended here; None if nothing can."""
        return None if self.open_value or not self.begun else self.json.missing()


@define(eq=False)
class EnvelopeState:
    """What is known of the JSON that carries name and arguments while it is read."""

    json: JsonState
    nested: int = 0
    """Objects in it that hold the call, so far."""
    decisive: bool = False
    """It has a key that only calls have."""
    spoke: bool = False
    """It said something to the reader: it need not be a call."""


@define(eq=False)
class Candidate:
    """What is known of the call that is being read."""

    format: Format | None = None
    marked: bool = True
    """False while nothing but its keys says that this is a call (a bare object)."""
    bare: bool = False
    """No marker opened it, so none closes it."""
    name: str | None = None
    """The offered tool's name; or, when it is not offered, the name as it was written."""
    known: bool = False
    """The name is an offered tool."""
    committed: bool = False
    id: str | None = None
    arguments: ArgumentsState = field(factory=ArgumentsState)
    envelope: EnvelopeState = field(init=False)
    preamble: int = 0
    """How many of the held pieces stand before the call itself: line ends, wrappers, the bracket of an array."""
    wrappers: list[str] = field(factory=list)
    """Closers of the wrappers that were opened with it, outermost first."""
    self_closed: bool = False
    """Its tag ended itself: no closer of its own follows."""

    def __attrs_post_init__(self) -> None:
        self.envelope = EnvelopeState(JsonState(self.arguments.json.repairs))  # named once for both

    @property
    def in_fence(self) -> bool:
        """It stands first in a code fence."""
        return bool(self.wrappers) and self.wrappers[0][0] == TICK


NOTHING = Candidate()
"""The candidate of a machine that has not met one; never changed."""
