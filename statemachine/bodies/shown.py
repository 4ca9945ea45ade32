"""The markup that an open raw value shows, and that is text of it: what stands balanced there.

An opener that does not count lies on a stack until its closer comes. While a key lies on top, the closer of a value is
its closer; while a call lies there, the call's closer is that call's. A value that ends although a key is still open,
or without a closer of its own after it has shown markup, may have swallowed what was meant for its call: it is not
sound.
"""

from enum import Enum

LEVELS = 128
"""Openers that lie on the stack, at most; more than that are text."""


class Kind(Enum):
    """What a value shows."""

    CALL = "a call"
    KEY = "a key"
    MENTION = "a key that a blank follows: more likely a word of a sentence"
    QUOTE = "a quote like the one around the value"


class Shown:
    """The stack of one value, and how many of it are calls and keys."""

    __slots__ = ("calls", "keys", "stack", "stray", "whole")

    def __init__(self) -> None:
        self.stack: list[Kind] = []
        self.calls = 0
        self.keys = 0
        self.whole = False
        """A call or a key came whole."""
        self.stray = False
        """A value's closer came that closes nothing."""

    def open(self, kind: Kind) -> None:
        """An opener that does not count."""
        if len(self.stack) < LEVELS:
            self.stack.append(kind)
            self.calls += kind is Kind.CALL
            self.keys += kind is Kind.KEY

    @property
    def balances(self) -> bool:
        """True if the closer of a value closes a key that is shown."""
        return bool(self.stack) and self.stack[-1] is not Kind.CALL

    @property
    def blocks(self) -> bool:
        """True if a key that begins here may belong to what is shown."""
        return self.calls + self.keys > 0

    @property
    def open_key(self) -> bool:
        """True if a key is open that no call around it explains."""
        return self.keys > 0 and not self.calls

    def close_key(self) -> None:
        """The closer of a value that does not count."""
        if not self.balances:
            self.stray = True
        elif self._pop() is not Kind.MENTION:
            self.whole = True

    def close_call(self) -> None:
        """The closer of a call that is shown: what is open inside of it is closed too."""
        while self._pop() is not Kind.CALL:
            pass
        self.whole = True

    def _pop(self) -> Kind:
        kind = self.stack.pop()
        self.calls -= kind is Kind.CALL
        self.keys -= kind is Kind.KEY
        return kind
