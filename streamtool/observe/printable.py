"""Words from outside in one printable line: names, and the messages of errors."""

import re
from typing import Final

from streamtool.core.errors import RequestError, StreamtoolError

_LENGTH: Final = 100
_WORD: Final = re.compile(r"[a-z][a-z_]{0,39}")
"""Matches a code that is a word; any other code might be part of a key."""


def printable(text: str, limit: int = _LENGTH) -> str:
    """Return the text as one line of at most `limit` printable characters."""
    cut = text[: limit + 1]
    if not cut.isprintable():
        cut = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in cut)
    return cut if len(cut) <= limit else cut[: limit - 1] + "…"


def loggable_message(error: StreamtoolError, *, contents: bool) -> str:
    """Return an error's message, or just its code if the message may quote contents that the settings do not allow."""
    if contents or not (error.quotes or isinstance(error, RequestError)):
        return printable(error.message, 1000 if contents else 300)
    return f"{error.status} {code_word(error.code) or code_word(error.kind) or 'error'}"


def code_word(code: str | None) -> str | None:
    """Return a code if it is a word, or None."""
    return code if code is not None and _WORD.fullmatch(code) else None
