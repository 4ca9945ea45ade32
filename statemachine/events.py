"""What a parser emits.

The order, per call: `CallStart`, any number of `ArgumentsDelta`, `CallEnd`; calls never overlap, `index` counts them
from 0. `TextDelta`, `ReasoningDelta` and `Discarded` stand outside of calls, with one exception: the `Discarded` of a
broken call follows its `CallEnd`. `states.py` holds the table of what may be emitted where.

Events are mutable, slotted and made by the million: treat them as values, never change one.
`Parser.feed` makes the most frequent ones without `__init__`, and sets their fields itself.
"""

from attrs import define


@define(weakref_slot=False)
class TextDelta:
    """Visible text; never empty."""

    text: str


@define(weakref_slot=False)
class ReasoningDelta:
    """Text of a reasoning span, its markers left out; never empty."""

    text: str


@define(weakref_slot=False)
class CallStart:
    """A call has committed: its name is an offered tool."""

    index: int
    name: str
    id: str | None
    """The id that the text carried; None if it carried none."""
    format: str
    """Name of the format in `formats.FORMATS`."""


@define(weakref_slot=False)
class ArgumentsDelta:
    """A piece of the arguments: all pieces of a complete call joined are one strict JSON object."""

    index: int
    text: str


@define(weakref_slot=False)
class CallEnd:
    """The call is over."""

    index: int
    complete: bool
    """False when the text ended, or broke, inside the arguments."""
    repairs: tuple[str, ...] = ()
    """What had to be mended, by name, each once, in order of first use."""


@define(weakref_slot=False)
class Discarded:
    """Text that is neither shown nor part of a call, and why (`malformed`, `unknown`, `limit`, `invented`)."""

    text: str
    reason: str


Event = TextDelta | ReasoningDelta | CallStart | ArgumentsDelta | CallEnd | Discarded
