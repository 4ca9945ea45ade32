"""Excerpts of the text that a model has written: parts of it that are needed once more at their end.

A stream may stay open for long, so its text should be in memory once. The arguments of a call, and the texts that some
protocols repeat, are usually a part of what the model has written, character by character. An excerpt refers to that
part, and contains only what differs.
"""

from typing import Final

_PIECES: Final = 16
"""Maximum number of pieces that are stored apart."""
_REACH: Final = 1024
"""Maximum number of bytes that may have been written after a piece before the excerpt receives it; a later piece is
copied.
"""
_COMPARED: Final = 1024 * 1024
"""Maximum number of bytes that a search compares, in the worst case."""


class Excerpt:
    """A text in pieces, which usually is a part of `source`, in UTF-8. The source may only grow."""

    __slots__ = ("_begin", "_copied", "_end", "_source", "pieces")

    def __init__(self, source: bytearray | None = None) -> None:
        self._source = source
        self._copied = bytearray()
        """The beginning of the text, as far as it is not a part of the source."""
        self._begin = 0
        """Where the part of the source begins that follows `_copied`."""
        self._end = 0
        """Where this part ends; 0 without such a part."""
        self.pieces: list[str] = []
        """The rest of the text. Call `join` after adding pieces, unless they are few."""

    def add(self, text: str) -> None:
        """Add a piece of the text."""
        self.pieces.append(text)
        if len(self.pieces) > _PIECES:
            self.join()

    def join(self) -> None:
        """Store the pieces in less memory. Short pieces take up to twenty times as much as their characters."""
        data = "".join(self.pieces).encode("utf-8", "surrogatepass")
        self.pieces.clear()
        source = self._source
        if source is not None and data:
            if self._end and source.startswith(data, self._end):
                self._end += len(data)
                return
            self._copied += source[self._begin : self._end]
            self._begin = self._end = 0
            reach = min(_REACH, _COMPARED // len(data))
            found = source.rfind(data, max(0, len(source) - len(data) - reach))
            if found >= 0:
                self._begin, self._end = found, found + len(data)
                return
        self._copied += data

    def __str__(self) -> str:
        """Return the whole text."""
        data = self._copied
        if self._source is not None and self._end:
            data = data + self._source[self._begin : self._end]
        return data.decode("utf-8", "surrogatepass") + "".join(self.pieces)


def excerpt_without_source(_: int) -> Excerpt:
    """Return an excerpt that contains its whole text, for any choice of a reply."""
    return Excerpt()
