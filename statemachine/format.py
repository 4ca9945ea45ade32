"""What a format is made of, and the check that a declaration is unambiguous.

A format is data. It names the literals that open and close a call, where the name stands (`Head`), and one of a few
ways in which arguments are written (a body). It holds no function and no state.

Markers are literal text with pieces of pattern in braces:

    {ns}   an optional XML namespace prefix: `<{ns}invoke` is `<invoke` and `<anything:invoke`
    {_}    optional blanks (space, tab)
    { }    one character of white space
    {*}    optional white space, line ends included

In a format that is anchored to the line start, letters match in either case (labels are written as people write).
"""

import itertools
from collections.abc import Mapping
from enum import Enum

from attrs import frozen


class Anchor(Enum):
    """Where an opener counts."""

    ANYWHERE = "anywhere"
    LINE = "line"
    """At the start of a line; blanks before it are allowed and stay text."""
    REPLY = "reply"
    """Where nothing but white space, reasoning or calls came before."""


@frozen
class Head:
    """Where the name stands: directly after the opener, up to one of `ends`; or in an attribute of the opener's tag."""

    ends: tuple[str, ...] = (">",)
    """Markers that end the name, white space before them allowed. `{` belongs to the body and is not consumed."""
    attribute: str = ""
    """`<invoke name="f" k="V">`: the attribute with the name; the others are arguments, `ends` end the tag."""
    id: str = ""
    """Marker of an id that may stand between the name and its end."""
    one_line: bool = False
    """The name and its end stand on one line."""
    noise: tuple[str, ...] = ()
    """Words that may stand before the name (`@tool f`)."""


@frozen
class Json:
    """The arguments as one JSON object."""


NAME_KEYS = ("name", "tool", "function", "tool_name", "action")
ARGUMENT_KEYS = ("arguments", "parameters", "params", "args", "input", "tool_input", "action_input")
ID_KEYS = ("id", "call_id", "tool_call_id")
ONLY_CALLS_KEYS = ("tool", "function", "tool_name")


@frozen
class Envelope:
    """JSON that carries name and arguments; an array of such objects; or one nested in another.

    The first key of `name` and `arguments` is the format's own spelling and the one that is written; the others are
    read too. A key whose value is an object and that stands in `nest` holds the call inside.
    """

    name: tuple[str, ...] = NAME_KEYS
    arguments: tuple[str, ...] = ARGUMENT_KEYS
    id: tuple[str, ...] = ID_KEYS
    nest: tuple[str, ...] = ("function", "action", "tool_call", "function_call")
    written_nest: str = ""
    """The key under which the format itself nests the call, if it does."""
    calls: str = ""
    """The key that holds an array of calls."""
    array: bool = False
    """The format itself writes an array of calls."""
    as_string: bool = False
    """The format itself writes the arguments as a JSON string."""
    thought: str = ""
    """The key whose string is reasoning (strict one-object protocol)."""
    final: tuple[str, ...] = ()
    """The path of keys to the visible text (strict one-object protocol)."""


@frozen
class Parameters:
    """Marked keys and raw values, typed by the tool's JSON Schema.

    `trim`: exactly one line end on each side of a value is markup. `wrappers` may stand around all parameters.
    """

    key: str
    head: Head
    close: str
    trim: bool = False
    wrappers: tuple[tuple[str, str], ...] = ()


Body = Json | Envelope | Parameters


@frozen
class Shape:
    """One way in which a format goes on after its opener. An envelope has no head; every other body has one."""

    body: Body
    head: Head | None = None


@frozen
class Format:
    """One textual way of writing calls; a row of `formats.FORMATS`. The first opener, wrapper and shape are written."""

    name: str
    shapes: tuple[Shape, ...]
    openers: tuple[str, ...] = ()
    """() means that the format has no marker of its own: its envelope stands bare in the text."""
    close: str = ""
    """Ends the call; skipped when present, never demanded."""
    wrappers: tuple[tuple[str, str], ...] = ()
    """Opener and closer of spans that may stand around one or several calls."""
    anchor: Anchor = Anchor.ANYWHERE
    fence: tuple[str, ...] = ()
    """Info strings of code fences that announce a call by themselves; the first is written around each call."""
    models: str = ""
    """Who writes it natively, for the docs."""
    wrapped: bool = False
    """The format itself always stands in its first wrapper."""


@frozen
class Span:
    """A reasoning span. It opens only where nothing but white space, reasoning or calls came before."""

    open: str
    close: str


class FormatError(ValueError):
    """A declaration is ambiguous or impossible; says which format and why."""


def check(formats: Mapping[str, Format]) -> None:
    """Nothing, if every declaration can be read and no two say the same.

    Raises:
        FormatError: a row's key is not its name; a shape without a way to tell the name; two formats whose openers
            are equal and that go on in the same way; an opener that begins with another one.

    """
    seen: dict[tuple[str, str], str] = {}
    for key, form in formats.items():
        if key != form.name:
            raise FormatError(f"{key}: the row is named {form.name!r}; give it the key of its name")
        if not form.shapes:
            raise FormatError(f"{key}: a format needs at least one shape")
        for shape in form.shapes:
            if isinstance(shape.body, Envelope) == (shape.head is not None):
                raise FormatError(f"{key}: an envelope carries the name itself, every other body needs a head")
            if not form.openers and not isinstance(shape.body, Envelope):
                raise FormatError(f"{key}: without an opener only an envelope can be told from text")
            goes_on = "envelope" if isinstance(shape.body, Envelope) else "head"
            for opener in form.openers:
                other = seen.setdefault((opener, goes_on), key)
                if other != key:
                    raise FormatError(f"{key}: the opener {opener!r} followed by a {goes_on} is {other}'s already")
    openers = sorted(
        {opener for opener, _ in seen} | {wrapper for form in formats.values() for wrapper, _ in form.wrappers}
    )
    for one, other in itertools.pairwise(openers):
        if other.startswith(one):
            raise FormatError(f"the opener {other!r} begins with {one!r}: which one it is would depend on the cuts")
