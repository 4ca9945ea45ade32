"""Text buffer for incremental grammars.

A grammar is a generator over a `Buffer`; a bare `yield` in it means "I need more text". The buffer keeps only the
unconsumed text, which is `text` from `at` on. Indexes into `text` become invalid at a `yield`, because the consumed
prefix is dropped when a piece arrives. Offsets relative to `at` stay valid.
"""

import re
from collections.abc import Generator

MAX_WHITESPACE = 256
"""Maximum length of whitespace to skip, in characters."""
match_whitespace = re.compile(r"[ \t\r\n]*+").match

Grammar = Generator[None, None, None]


class EndOfText(Exception):
    """The text has ended. Raised where a grammar requests more text, and handled in one place for the whole reply
    (`grammar/reply.py`).
    """


class Mismatch(Exception):
    """The text does not continue what was being read. Handled in one place (`grammar/reply.py`), in a way that depends
    on the state.
    """


class Overflow(Exception):
    """A candidate exceeds its buffer limit. This exception, too, is handled in `grammar/reply.py`."""


class Buffer:
    """Text that has arrived and has not been consumed yet."""

    __slots__ = ("at", "ended", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        """Whether the text has ended, so that no more will arrive."""

    def append(self, piece: str) -> None:
        """Append a piece and drop the consumed text."""
        self.text = self.text[self.at :] + piece if self.text else piece
        self.at = 0

    def compact(self) -> None:
        """Drop the consumed text."""
        if self.at:
            self.text = self.text[self.at :]
            self.at = 0

    def give_back(self, text: str) -> None:
        """Put consumed text back in front of the unread text."""
        self.text = text + self.text[self.at :]
        self.at = 0

    def more(self) -> Grammar:
        """Wait for more text.

        Raises:
            EndOfText: the text has ended.
        """
        if self.ended:
            raise EndOfText
        yield

    def whitespace_end(self, offset: int) -> Generator[None, None, int]:
        """Find the end of the whitespace that begins at `offset`, without consuming it.

        Offsets are relative to `at`. Return the offset of the next character or of the end of all text, or −1 if the
        whitespace is longer than `MAX_WHITESPACE`.
        """
        while True:
            end = match_whitespace(self.text, self.at + offset).end() - self.at  # type: ignore[union-attr]  # * always matches
            if end - offset > MAX_WHITESPACE:
                return -1
            if self.at + end < len(self.text) or self.ended:
                return end
            yield

    def peek(self) -> Generator[None, None, str]:
        """Return the next character without consuming it, waiting for it if necessary."""
        while self.at >= len(self.text):
            yield from self.more()
        return self.text[self.at]
