"""Closers of calls that an upstream leaves in the text although it has moved the call itself to its own field.

Text that consists of such closers is held back at the beginning of a reply and after each native call. It is markup if
a native call precedes or follows it; if other text follows, it is text.
"""

import re
from collections.abc import Iterator
from typing import Final

from statemachine.formats import FORMATS


def _closers() -> Iterator[str]:
    """Yield the closers of calls and of wrappers, without placeholders."""
    for form in FORMATS.values():
        for close in (form.close, *(close for _, close in form.wrappers)):
            text = re.sub(r"\{[^}]*\}", "", close or "")
            if re.search("tool|call|function|invoke", text, re.IGNORECASE):
                yield text


_CLOSERS: Final = sorted(set(_closers()), reverse=True)
_PREFIXES: Final = frozenset(closer[:size] for closer in _CLOSERS for size in range(1, len(closer)))
_leading_closers = re.compile(rf"\s*+(?:(?:{'|'.join(map(re.escape, _CLOSERS))})\s*+)*+").match


class StrayClosers:
    """A buffer for closers at the beginning of the text. `watching` means that no other text has followed."""

    __slots__ = ("text", "watching")

    def __init__(self, *, watching: bool) -> None:
        self.watching = watching
        self.text = ""
        """The buffered text."""

    def restart(self, *, watching: bool) -> str:
        """Begin again, and return the text that was buffered."""
        self.watching = watching
        text, self.text = self.text, ""
        return text

    def holds(self, text: str) -> bool:
        """Buffer a piece of text if there is nothing but closers so far, and return whether it has been buffered."""
        joined = self.text + text
        rest = _after_closers(joined)
        if not joined.isspace() and (not rest or rest in _PREFIXES):
            self.text = joined
            return True
        self.watching = joined.isspace()
        return False


def only_closers(text: str) -> bool:
    """Return whether the text consists of complete closers."""
    return not _after_closers(text)


def _after_closers(text: str) -> str:
    found = _leading_closers(text)
    return text if found is None else text[found.end() :]
