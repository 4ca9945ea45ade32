"""Runs: "until this pattern stops, what arrives flows".

A run is how most text is read. While one is set, a piece costs one regular expression and one event.
"""

import re
from collections.abc import Callable
from json.encoder import encode_basestring
from re import Match


class Run:
    """Text that flows until its pattern stops.

    `match` accepts text from an offset. The group that matched, if one did, is what must wait at the end of the text
    (it may be empty: nothing waits). A group n ≥ 2 says besides that the text went on into what `others[n]` reads: a
    string that began, or ended.
    `convert` makes arguments of the text (`QUOTE`: as the text of a JSON string; None: as it is). `search` is a cheaper
    question to ask first: None means that all of the text flows as it is, a group that all of it flows, converted.
    """

    __slots__ = ("_pattern", "convert", "match", "others", "search", "whole")

    def __init__(
        self,
        pattern: str,
        *,
        convert: Callable[[str], str] | None = None,
        search: Callable[[str], Match[str] | None] | None = None,
    ) -> None:
        self._pattern = pattern
        self.match: Callable[[str, int], Match[str] | None] = self._first_match
        self.whole: Callable[[str], Match[str] | None] = self._first_whole
        self.convert = convert
        self.search = search
        self.others: dict[int, Run] = {}

    def compile(self) -> None:
        """Makes the pattern ready to be matched; else that happens at its first use: many texts never come to it."""
        compiled = re.compile(self._pattern, re.DOTALL)
        self.match, self.whole = compiled.match, compiled.fullmatch

    def _first_match(self, text: str, at: int) -> Match[str] | None:
        self.compile()
        return self.match(text, at)

    def _first_whole(self, text: str) -> Match[str] | None:
        self.compile()
        return self.whole(text)


def quote(text: str) -> str:
    """The text as it stands in a JSON string, without the quotes."""
    return encode_basestring(text)[1:-1]
