"""Balanced markup that is part of the text of an open raw value ("shown" markup).

An opener that is not recognized is pushed onto a stack until its closer arrives. If a key is on top, a value's closer
closes that key; if a call is on top, a call's closer closes that call. A value is unsound, because it may have
swallowed markup meant for its call, if it ends while a key is still open, or if it contains shown markup and ends
without its own closer.
"""

from enum import Enum

MAX_OPENERS = 128
"""Maximum number of openers on the stack; any further openers are text."""


class MarkupKind(Enum):
    """Kind of shown markup."""

    CALL = "a call"
    KEY = "a key"
    MENTION = "a key followed by a blank or punctuation: more likely a word in a sentence"
    QUOTE = "a quote like the one around the value"


class ShownMarkup:
    """Stack of the markup shown in one value, with the number of calls and keys on it."""

    __slots__ = ("call_mentioned", "calls", "complete", "foreign_key", "keys", "stack", "stray")

    def __init__(self) -> None:
        self.stack: list[MarkupKind] = []
        self.calls = 0
        self.keys = 0
        self.call_mentioned = False
        """Whether the value mentions the opener of a call in a sentence."""
        self.foreign_key = False
        """Whether the value contains a key opener of another format."""
        self.complete = False
        """Whether a call or a key was shown from opener to closer."""
        self.stray = False
        """Whether the value contains a closer that closed nothing."""

    def open(self, kind: MarkupKind) -> None:
        """Push an opener that is part of the value's text."""
        if len(self.stack) < MAX_OPENERS:
            self.stack.append(kind)
            self.calls += kind is MarkupKind.CALL
            self.keys += kind is MarkupKind.KEY

    @property
    def closes_shown_key(self) -> bool:
        """Whether the closer of a value would close a shown key."""
        return bool(self.stack) and self.stack[-1] is not MarkupKind.CALL

    @property
    def blocks(self) -> bool:
        """Whether a key opener here may belong to shown markup."""
        return self.calls + self.keys > 0

    @property
    def open_key(self) -> bool:
        """Whether a key is open outside any shown call."""
        return self.keys > 0 and not self.calls

    def close_key(self) -> None:
        """Record a value closer that is part of the value's text."""
        if not self.closes_shown_key:
            self.stray = True
        elif self._pop() is not MarkupKind.MENTION:
            self.complete = True

    def close_call(self) -> None:
        """Record the closer of a shown call, which also closes everything that is open inside it."""
        while self._pop() is not MarkupKind.CALL:
            pass
        self.complete = True

    def _pop(self) -> MarkupKind:
        kind = self.stack.pop()
        self.calls -= kind is MarkupKind.CALL
        self.keys -= kind is MarkupKind.KEY
        return kind
