"""Undeclared members that may repeat: if the next member has the same key, both become items of a list.

The value of the first such member is buffered, up to a limit, until the next member or the end of the container
arrives; a longer value is emitted unchanged. From the second item on, nothing is buffered. Buffered values that are
nested in another buffered value share its buffer, so depth adds no cost.
"""

from attrs import define

from statemachine.json.typed import FilterTarget
from statemachine.stream.reader import Reader

MAX_BUFFERED = 1024
"""Maximum length of a buffered value, as JSON."""


@define(eq=False)
class PossibleFirstItem:
    """Value that may become the first item of a list."""

    key: str
    start: int
    """Index of the value's first piece in the buffer."""
    buffered: bool = True
    listed: bool = False
    """Whether the key was repeated, so that a list is open."""


class BufferingTarget(FilterTarget):
    """Target that buffers pieces, and tracks the values among them that may become the first item of a list, outermost
    first.
    """

    __slots__ = ("firsts", "length", "pieces")

    def __init__(self, reader: Reader) -> None:
        super().__init__(reader)
        self.pieces: list[str] = []
        self.length = 0
        self.firsts: list[PossibleFirstItem] = []

    def append(self, piece: str) -> None:
        """Buffer a piece of strict JSON."""
        self.pieces.append(piece)
        self.length += len(piece)
        if self.length > MAX_BUFFERED:
            self.release()

    def release(self) -> None:
        """Emit the buffered pieces and stop buffering.

        Raises:
            Mismatch: the arguments exceed their limit.
        """
        for first in self.firsts:
            first.buffered = False
        self.firsts.clear()
        for piece in self.pieces:
            self.pass_on(piece)
        self.end()


def begin_buffering(reader: Reader, key: str) -> PossibleFirstItem:
    """Begin a value that may become the first item of a list, and buffer everything from here on."""
    waiting = reader.target if isinstance(reader.target, BufferingTarget) else BufferingTarget(reader)
    first = PossibleFirstItem(key, len(waiting.pieces))
    waiting.firsts.append(first)
    return first


def resolve_first(reader: Reader, first: PossibleFirstItem, *, listed: bool) -> None:
    """Record whether the innermost buffered value is the first item of a list (`listed`) or a single value."""
    waiting = reader.target
    first.listed = first.listed or listed
    if not first.buffered or not isinstance(waiting, BufferingTarget):
        return
    first.buffered = False
    if listed:
        waiting.pieces.insert(first.start, "[")
    waiting.firsts.remove(first)
    if not waiting.firsts:
        waiting.release()
