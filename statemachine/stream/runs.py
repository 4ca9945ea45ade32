"""Runs: text that flows to one destination until a pattern stops it.

Most text is read this way. While a run is armed, a piece costs one regular expression match and one event.
"""

import re
from collections.abc import Callable
from json.encoder import encode_basestring
from re import Match


class Run:
    """Text that flows until a pattern stops it.

    `match` accepts text from an offset on; `fullmatch` accepts a complete piece. If a group matched, it is the text at
    the end that must wait (if it is empty, nothing waits). A group n ≥ 2 also means that the text continues in
    `others[n]`: for example, because a string has begun or ended.

    `convert` turns the text into arguments (`json_escape` produces the text of a JSON string; None leaves the text
    unchanged). `search` is a cheaper test to try first. No match means that all of the text flows unchanged; a match
    with a group means that all of it flows, but converted.
    """

    __slots__ = ("_pattern", "convert", "fullmatch", "match", "next_runs", "search")

    def __init__(
        self,
        pattern: str,
        *,
        convert: Callable[[str], str] | None = None,
        search: Callable[[str], Match[str] | None] | None = None,
    ) -> None:
        self._pattern = pattern
        self.match: Callable[[str, int], Match[str] | None] = self._first_match
        self.fullmatch: Callable[[str], Match[str] | None] = self._first_fullmatch
        self.convert = convert
        self.search = search
        self.next_runs: dict[int, Run] = {}

    def compile(self) -> None:
        """Compile the pattern. Without this call, it is compiled on first use, since many replies never need it."""
        compiled = re.compile(self._pattern, re.DOTALL)
        self.match, self.fullmatch = compiled.match, compiled.fullmatch

    def _first_match(self, text: str, at: int) -> Match[str] | None:
        self.compile()
        return self.match(text, at)

    def _first_fullmatch(self, text: str) -> Match[str] | None:
        self.compile()
        return self.fullmatch(text)


def json_escape(text: str) -> str:
    """Return the text in its JSON string form, without the quotes."""
    return encode_basestring(text)[1:-1]
