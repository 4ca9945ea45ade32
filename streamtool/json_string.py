"""The text of one JSON string, its escapes decoded, while the string is still being written.

All of it flows but an escape that is not whole, and half a surrogate pair, whose other half may follow. A backslash
that begins no escape of JSON is text.
"""

import re
from typing import Final

_RUN: Final = re.compile(r'[^"\\]*')
_ESCAPE: Final = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|u[0-9a-fA-F]{4}|[^u])", re.DOTALL)
_LONGEST: Final = 12  # characters of an escape: two halves of a surrogate pair
_SIMPLE: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class JsonString:
    """One string, from behind its first quote on."""

    __slots__ = ("_held", "done")

    def __init__(self) -> None:
        self._held = ""
        self.done = False
        """Its last quote was read."""

    def feed(self, text: str) -> tuple[str, str]:
        """The text that this piece brings, and what stands behind the string's last quote."""
        if self.done:
            return "", text
        text, self._held = self._held + text, ""
        out: list[str] = []
        at = 0
        while True:
            run = _RUN.match(text, at)
            assert run is not None  # noqa: S101  it matches nothing as well
            out.append(run[0])
            at = run.end()
            if at == len(text):
                break
            if text[at] == '"':
                self.done = True
                return "".join(out), text[at + 1 :]
            escape = _ESCAPE.match(text, at)
            if escape is None or (_is_high(escape[0]) and at + _LONGEST > len(text)):
                if len(text) - at < _LONGEST:
                    self._held = text[at:]
                    break
                out.append("\\")  # no escape at all: it stands for itself
                at += 1
                continue
            out.append(_decoded(escape[0]))
            at = escape.end()
        return "".join(out), ""


def _is_high(escape: str) -> bool:
    return len(escape) == 6 and escape[2] in "dD" and escape[3] in "89abAB"


def _decoded(escape: str) -> str:
    if escape[1] != "u":
        return _SIMPLE.get(escape[1], escape[1])
    halves = bytes.fromhex(escape.replace("\\u", ""))
    return halves.decode("utf-16-be", "replace")
