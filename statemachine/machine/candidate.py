"""State of a call while it is being read: the candidate, its arguments and its envelope."""

from attrs import define, field, frozen

from statemachine.formats.format import Format
from statemachine.formats.openers import KeyRole
from statemachine.formats.scanner import TICK
from statemachine.json.state import JsonState

# Shared until something is added to them, because most calls need none of them. Never mutated.
NO_PARAMETERS: set[str] = set()
NO_STRAYS: "dict[str, StrayMember]" = {}
NO_OTHERS: list[str] = []


@define(eq=False, repr=False)
class ArgumentsState:
    """Arguments of a call while they are being read."""

    json: JsonState = field(factory=JsonState)
    queued: list[str] = field(factory=list)
    """Pieces of arguments that arrived before the name."""
    begun: bool = False
    complete: bool = False
    parameters: set[str] = NO_PARAMETERS
    """Names of the parameters given so far."""
    open_value: bool = False
    """Whether a raw value is open."""
    typed: bool = False
    """Whether the schema of the tool has been looked up to determine the types of JSON."""
    flat: bool = False
    """Whether members of the envelope itself are arguments, so that more of them may follow."""

    def missing(self) -> str | None:
        """Return the text that would complete the arguments if the reply ended here, or None if nothing can complete
        them.
        """
        return None if self.open_value or not self.begun else self.json.missing()


@frozen(eq=False, repr=False)
class StrayMember:
    """Member of an envelope that may turn out to be an argument."""

    text: str
    """JSON of the value; "" if it is too long to keep."""
    role: KeyRole | None
    """Role of the member's key in the envelope, if any."""


@define(eq=False, repr=False)
class EnvelopeState:
    """JSON that contains both the name and the arguments, while it is being read."""

    json: JsonState
    depth_entered: int = 0
    """Number of objects entered so far in search of the call."""
    has_call_key: bool = False
    """Whether the object has a key that occurs only in calls."""
    contained: bool = False
    """Whether there was an arguments object."""
    strays: dict[str, StrayMember] = NO_STRAYS
    """Members that are kept until the end of the envelope, by key."""
    others: list[str] = NO_OTHERS
    """JSON of the arguments after the arguments object, which are kept until the end of the envelope; "" if it is too
    long to keep.
    """
    buffered: int = 0
    """Number of characters kept in `strays` and `others`."""
    emitted_text: bool = False
    """Whether a thought or a final answer inside the envelope was emitted, in which case the object need not be a
    call.
    """


@define(eq=False, repr=False)
class Candidate:
    """Call that is being read, from its opener to its closers."""

    format: Format | None = None
    marked: bool = True
    """False while nothing but its keys suggests that this is a call (a bare object)."""
    bare: bool = False
    """Whether the call was not opened by a marker, so that no marker closes it."""
    name: str | None = None
    """Name of the offered tool or, if no such tool is offered, the name as written."""
    offered: bool = False
    """Whether the name is that of an offered tool."""
    committed: bool = False
    id: str | None = None
    arguments: ArgumentsState = field(factory=ArgumentsState)
    envelope: EnvelopeState = field(init=False)
    preamble: int = 0
    """Number of buffered pieces that precede the call itself: newlines, wrappers, the bracket of an array."""
    wrappers: list[str] = field(factory=list)
    """Closers of the wrappers that were opened along with the call, outermost first."""
    info: str | None = None
    """Info string of the fence if the candidate is the first thing in a fence before any text."""
    fenced_body: bool = False
    """Whether the JSON after the opener is in a code fence."""
    follows_call: bool = False
    """Whether only newlines separate the candidate from the call before it."""
    self_closed: bool = False
    """Whether the call's tag closed itself (`/>`), so that no closer follows."""

    def __attrs_post_init__(self) -> None:
        self.envelope = EnvelopeState(JsonState(self.arguments.json.repairs))  # shared: each repair is reported once

    @property
    def in_fence(self) -> bool:
        """Whether the candidate is the first thing in a code fence."""
        return bool(self.wrappers) and self.wrappers[0][0] == TICK


NO_CANDIDATE = Candidate()
"""Candidate of a machine that has not encountered one yet. Shared, never mutated."""
