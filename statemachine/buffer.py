"""Text that arrives in pieces, and how a grammar waits for more of it.

A grammar is a generator over a `Buffer`; a bare `yield` in it means "I need more text". The buffer keeps only what
nobody has consumed yet: `text` from `at` on. Offsets do not survive a `yield`, since the text is cut to what is left
whenever a piece arrives.
"""

import re
from collections.abc import Generator

BLANKS = 256
"""Characters of white space that are looked past."""
space = re.compile(r"[ \t\r\n]*+").match

Grammar = Generator[None, None, None]


class Ended(Exception):
    """The text is over; raised where a grammar asks for more of it and caught in one place."""


class Mismatch(Exception):
    """What comes cannot be read here; caught in one place, which knows what that means in the state."""


class Overflow(Exception):
    """More is held than may be; caught in the same place."""


class Buffer:
    """The text that has arrived and is not consumed."""

    __slots__ = ("at", "ended", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        """No more will come."""

    def append(self, piece: str) -> None:
        """A piece has arrived; what was consumed is forgotten."""
        self.text = self.text[self.at :] + piece if self.text else piece
        self.at = 0

    def compact(self) -> None:
        """What was consumed is forgotten."""
        if self.at:
            self.text = self.text[self.at :]
            self.at = 0

    def give_back(self, text: str) -> None:
        """Text that was consumed stands before the rest again."""
        self.text = text + self.text[self.at :]
        self.at = 0

    def more(self) -> Grammar:
        """Waits for more text.

        Raises:
            Ended: there is no more.

        """
        if self.ended:
            raise Ended
        yield

    def past_blanks(self, offset: int) -> Generator[None, None, int]:
        """Where the white space ends that stands `offset` characters on, counted from here: at a character, or at the
        end of all text; −1 if that is too far away.
        """
        while True:
            end = space(self.text, self.at + offset).end() - self.at  # type: ignore[union-attr]  # * always matches
            if end - offset > BLANKS:
                return -1
            if self.at + end < len(self.text) or self.ended:
                return end
            yield

    def peek(self) -> Generator[None, None, str]:
        """The next character, not consumed."""
        while self.at >= len(self.text):
            yield from self.more()
        return self.text[self.at]
