"""Incremental reader for the JSON array that Gemini streams unless an event stream is requested."""

import re
from typing import Final

from streamtool.core.json_value import Json
from streamtool.protocols.shared import wire

_BETWEEN: Final = re.compile(rb'["{}\[\],]').search
_WITHIN: Final = re.compile(rb'["{}\[\]]').search
_STRING: Final = re.compile(rb'[^"\\]*+').match
_QUOTE: Final = ord('"')


class ArrayReader:
    """Incremental splitter of a JSON array into its elements.

    An element is decoded once it is complete. Until then, it is only scanned for strings and brackets, so that each
    byte is scanned once, even if the element is deeply nested. `broken` means that the input is not valid JSON; the
    elements before the error have already been returned.
    """

    __slots__ = ("_depth", "_escaped", "_pieces", "_string", "broken", "held")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # pieces of the open element, and any bytes before it
        self._depth = 0  # number of open brackets, including the array's own; -1 after the array
        self._string = False  # whether the position is inside a string
        self._escaped = False  # whether the next character of the string is escaped
        self.broken = False
        self.held = 0

    def feed(self, data: bytes, *, last: bool = False) -> list[Json]:
        """Return the elements completed by `data`; `last` means that no more data follows."""
        found: list[Json] = []
        at = begin = 0
        while at < len(data) and not self.broken and self._depth >= 0:
            if self._string:
                at = self._in_string(data, at)
                continue
            mark = (_BETWEEN if self._depth == 1 else _WITHIN)(data, at)
            if mark is None:
                break
            at, char = mark.end(), mark[0]
            if char == b'"':
                self._string = True
            elif char in b"{[":
                self._depth += 1
                begin = at if self._depth == 1 else begin
            else:
                self._depth -= char != b","
                if self._depth <= 1:
                    # a closing bracket belongs to its element, but a comma does not
                    self._element(data[begin : at - (self._depth == 0 or char == b",")], found)
                    begin = at
                    self._depth = self._depth or -1
        if self._depth < 0:  # nothing may follow the array
            self.broken = self.broken or bool(data[begin:].strip())
            return found
        self._pieces.append(data[begin:])
        self.held += len(data) - begin
        if last and self._depth == 1:
            self._element(b"", found)
        return found

    def _in_string(self, data: bytes, at: int) -> int:
        """Return the position after the string, or the end of `data`."""
        if not self._escaped:
            at = _STRING(data, at).end()  # type: ignore[union-attr]  # also matches an empty string
            if at == len(data):
                return at
            self._string = data[at] != _QUOTE
            self._escaped = self._string
        else:
            self._escaped = False
        return at + 1

    def _element(self, rest: bytes, found: list[Json]) -> None:
        """Decode the bytes between two commas, unless they are blank."""
        data = b"".join((*self._pieces, rest)).strip()
        self._pieces.clear()
        self.held = 0
        if data:
            try:
                found.append(wire.decode_tolerant(data))
            except ValueError:
                self.broken = True
