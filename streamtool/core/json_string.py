"""A decoder for one JSON string that is still being written.

Text is emitted immediately, except for an incomplete escape, and the first half of a surrogate pair while the second
half may still follow. A backslash that does not begin a JSON escape is treated as text.
"""

import re
from typing import Final

from attrs import define, field

_RUN: Final = re.compile(r'[^"\\]*')
_ESCAPE: Final = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|u[0-9a-fA-F]{4}|[^u])", re.DOTALL)
_LONGEST: Final = 12  # length of the longest escape, a surrogate pair
_SIMPLE: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


@define(eq=False)
class JsonStringDecoder:
    """A decoder for one string, starting after its opening quote."""

    _pending: str = field(default="", init=False)
    done: bool = field(default=False, init=False)
    """Whether the closing quote has been read."""

    def feed(self, text: str) -> tuple[str, str]:
        """Decode a piece of input. Return the text that it adds, and the input after the closing quote."""
        if self.done:
            return "", text
        text, self._pending = self._pending + text, ""
        out: list[str] = []
        at = 0
        while True:
            run = _RUN.match(text, at)
            assert run is not None  # noqa: S101  the pattern also matches the empty string
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
                    self._pending = text[at:]
                    break
                out.append("\\")  # not an escape: a literal backslash
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
