"""Takes apart the JSON array in which Gemini streams its chunks when nobody asked for an event stream."""

import re
from typing import Any, Final

from streamtool.protocols import wire

Json = Any  # a decoded JSON value

_BETWEEN: Final = re.compile(rb'["{}\[\],]').search
_WITHIN: Final = re.compile(rb'["{}\[\]]').search
_STRING: Final = re.compile(rb'[^"\\]*+').match
_QUOTE: Final = ord('"')


class ArrayReader:
    """The elements of a JSON array that comes in pieces.

    Only strings and brackets are looked at until an element is whole; so no byte is looked at twice, and nothing is
    built of what is nested without end. `broken` says that what came is no JSON; the elements before were returned.
    """

    __slots__ = ("_depth", "_escaped", "_pieces", "_string", "broken", "held")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of the element that is open, and what stands before it
        self._depth = 0  # brackets that are open, that of the array included; -1: the array is over
        self._string = False  # a string is open
        self._escaped = False  # its next character is escaped
        self.broken = False
        self.held = 0

    def feed(self, data: bytes, *, last: bool = False) -> list[Json]:
        """The elements that end in `data`; `last` says that nothing follows."""
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
                    # what closes an element belongs to it, what stands behind one does not
                    self._element(data[begin : at - (self._depth == 0 or char == b",")], found)
                    begin = at
                    self._depth = self._depth or -1
        if self._depth < 0:  # nothing stands behind the array
            self.broken = self.broken or bool(data[begin:].strip())
            return found
        self._pieces.append(data[begin:])
        self.held += len(data) - begin
        if last and self._depth == 1:
            self._element(b"", found)
        return found

    def _in_string(self, data: bytes, at: int) -> int:
        """The place behind the string, or the end of `data`."""
        if not self._escaped:
            at = _STRING(data, at).end()  # type: ignore[union-attr]  # it matches nothing as well
            if at == len(data):
                return at
            self._string = data[at] != _QUOTE
            self._escaped = self._string
        else:
            self._escaped = False
        return at + 1

    def _element(self, rest: bytes, found: list[Json]) -> None:
        """Whatever stands between two commas; nothing is nothing."""
        data = b"".join((*self._pieces, rest)).strip()
        self._pieces.clear()
        self.held = 0
        if data:
            try:
                found.append(wire.decode_tolerant(data))
            except ValueError:
                self.broken = True
