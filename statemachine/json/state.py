"""State of one JSON text while it is being read: its depth, its repairs, and the closers that are still missing."""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Protocol

from attrs import define, field

from statemachine.stream.buffer import Grammar
from statemachine.stream.reader import Reader

MAX_DEPTH = 128
MAX_WORD = 64
"""Maximum length of a word that is not a string."""

word = re.compile(r"[A-Za-z_$][\w$-]*+").match
WORDS = {
    "true": "true",
    "false": "false",
    "null": "null",
    "True": "true",
    "False": "false",
    "None": "null",
    "undefined": "null",
    "NaN": "null",
    "Infinity": "null",
}
"""Words that stand for JSON values, in JSON and in other languages."""


CLOSES = {"}": "}", "]": "]", ")": "]", '"': '"'}
"""JSON closer for each closer on the stack."""


class Dialect(Protocol):
    """Notation of values that are not written as JSON; implemented in `literals.py`."""

    brackets: Mapping[str, str]
    """Closers of containers, by opener."""
    trailing_comma: bool
    """Whether a comma may precede a closer."""
    comments: bool
    """Whether comments are allowed between values; if not, text that begins like a comment is a value."""

    def key(self, reader: Reader, state: "JsonState") -> Grammar:
        """Read a member's key and its colon."""

    def scalar(self, reader: Reader, state: "JsonState") -> Grammar:
        """Read a value that is not a container."""

    def string(self, reader: Reader, state: "JsonState") -> Grammar:
        """Read a string."""

    def kind(self, reader: Reader) -> Generator[None, None, str]:
        """Return the JSON type of the value that begins here, or "" if the value is a word that the language does not
        define.
        """

    def opening(self, reader: Reader) -> Generator[None, None, tuple[int, tuple[str, ...]] | None]:
        """Return the opener's length and the possible closers of the string that begins here, or None if none begins
        here.
        """


class Typing(Protocol):
    """Types of the values in one JSON text, according to its schema. It is notified of every step within that text, and
    is implemented in `typed.py`.
    """

    def may_contradict(self, char: str) -> bool:
        """Return whether a value beginning with this character may contradict the schema and needs `read_repaired`."""

    def allows(self, kind: str) -> bool:
        """Return whether the next value may have this type."""

    given: set[str]
    """Names of the outermost object's members so far."""

    def names(self, depth: int, key: str) -> bool | None:
        """Return whether the object with `depth` containers around it may have this key, or None if its schema does not
        describe it.
        """

    def read_repaired(self, reader: Reader, state: "JsonState") -> Generator[None, None, bool]:
        """Read the next value and convert it to an allowed type. Return False, without consuming anything, if the value
        needs no change.
        """

    def enter(self, depth: int) -> None:
        """Record that the next value is a container with `depth` containers around it."""

    def key(self, reader: Reader, state: "JsonState") -> Grammar:
        """Read a member's key and its colon."""

    def item(self, depth: int) -> None:
        """Record that the next value is an item of the array with `depth` containers around it."""

    def end_object(self, reader: Reader, state: "JsonState", *, cut: bool = False) -> None:
        """Emit what has to be emitted before the closer of the outermost object, or where the arguments are `cut`."""


class Around(Protocol):
    """Surroundings of one JSON text; they limit where the strings in that text can end (see `quotes.py`)."""

    @property
    def stack(self) -> Sequence[str]:
        """Closers of the containers around the text, outermost first."""

    def follows(self, offset: int) -> Generator[None, None, bool]:
        """Return whether a marker at `offset` can only follow the JSON text."""


@define(eq=False, repr=False)
class JsonState:
    """State of one JSON text while it is being read."""

    repairs: dict[str, None] = field(factory=dict)
    """Names of repairs, each listed once, in order of first use."""
    stack: list[str] = field(factory=list)
    """Closers of open containers, outermost first."""
    quoted: bool = False
    """Whether the reader is inside a string."""
    encoded: int | None = None
    """Number of containers around the string whose content is being read as a value; None outside such a string. The
    containers inside it are on the stack too.
    """
    cut: bool = False
    """Whether something would be cut off if the text ended here (a string, a word, a number, a pair, a container
    without members). Closers cannot repair that.
    """
    depth: int = MAX_DEPTH
    dialect: Dialect | None = None
    """Notation of the values; None means JSON."""
    typed: Typing | None = None
    """Schema of the values, or None if they have no schema."""
    around: Around | None = None
    """Text around this JSON text. If it is None, the first quote ends a string."""
    escaped_marker: Callable[[], Generator[None, None, str]] | None = None
    """Consumes a marker at the current position of a string that is escaped in the language around this JSON text, and
    returns it without the escape, or "" if none is there. None if that language has no escapes.
    """
    may_follow_string: Callable[[int], Generator[None, None, bool]] | None = None
    """In an expression: whether the text at an offset may follow a string at the current position."""
    leave_open: int = 0
    """Number of containers, counted from the outermost one, whose closers are withheld because further members or items
    may follow: 1 for the object of the arguments, 2 for a list in it, 0 for none.
    """
    withheld: bool = False
    """Whether that closer has been read and withheld."""
    doubled: set[int] | None = None
    """Number of containers around each open object whose braces are doubled, as in a template that was not filled in;
    None if no object has had such braces.
    """
    lossless: bool = True
    """False if a key was repeated whose values belong together, so that a reader of the JSON loses one of them."""
    resumed: str | None = None
    """Separator before the first member or item of the next container if that one continues a container whose opener
    has already been emitted; None if it does not.
    """

    @property
    def comments(self) -> bool:
        """Whether comments are allowed between values."""
        return self.dialect is None or self.dialect.comments

    def add_repair(self, name: str) -> None:
        """Record a repair."""
        self.repairs[name] = None

    def missing(self) -> str | None:
        """Return the closers that would complete the output if the text ended here, or None if closers are not
        enough.
        """
        return None if self.cut else "".join(CLOSES[closer] for closer in reversed(self.stack))
