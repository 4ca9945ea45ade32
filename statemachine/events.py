"""Events that a parser emits.

Each call produces a `CallStart`, any number of `ArgumentsDelta`s and a `CallEnd`, in this order. Calls never overlap;
`index` counts them from 0. `TextDelta`, `ReasoningDelta` and `Discarded` occur outside calls; the discarded remainder
of a broken call follows its `CallEnd`. The tables in `states.py` define which events may be emitted in which state.

Events are mutable, slotted and created in large numbers: treat them as values and never modify them. For the most
frequent events, `Parser.feed` bypasses `__init__` and sets the fields directly.
"""

from attrs import define, field


@define(weakref_slot=False)
class TextDelta:
    """Visible text; never empty."""

    text: str


@define(weakref_slot=False)
class ReasoningDelta:
    """Text of a reasoning span, without its markers; never empty."""

    text: str


@define(weakref_slot=False)
class CallStart:
    """Start of a call that has been committed: its name is that of an offered tool."""

    index: int
    name: str
    id: str | None
    """Id found in the text, if any."""
    format: str
    """Name of the format in `formats.FORMATS`."""
    in_reasoning: bool = field(default=False, repr=False)
    """Whether the call is inside reasoning."""


@define(weakref_slot=False)
class ArgumentsDelta:
    """Piece of the arguments. The pieces of a complete call, concatenated, form one strict JSON object."""

    index: int
    text: str


@define(weakref_slot=False)
class CallEnd:
    """End of a call."""

    index: int
    complete: bool
    """False if the text ended or became unreadable inside the arguments."""
    repairs: tuple[str, ...] = ()
    """Names of the repairs made, each listed once, in order of first use."""


@define(weakref_slot=False)
class Discarded:
    """Text that is neither shown nor part of a call. `reason` is `malformed`, `rejected`, `cut_off`, `unknown`,
    `limit`, `invented`, `invented_turn` or `noise`.
    """

    text: str
    reason: str


Event = TextDelta | ReasoningDelta | CallStart | ArgumentsDelta | CallEnd | Discarded
