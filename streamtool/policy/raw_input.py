"""Takes the raw text of a custom tool's call out of the JSON in which the model writes it, as it is written.

The model is shown one string parameter (`input`) and writes `{"input": "…"}` in whatever format it uses; the client
wants what stands between the quotes. Once the key is read the text flows, its escapes decoded. Arguments of any other
form wait for their end, and the text is looked for in the whole.
"""

import re
from typing import Final

import msgspec

_OPENER: Final = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_OPENING: Final = re.compile(r'\s*(\{\s*("(i(n(p(u(t("\s*(:\s*)?)?)?)?)?)?)?)?)?')
"""What may still become the opener."""
_RUN: Final = re.compile(r'[^"\\]*')
_ESCAPE: Final = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|u[0-9a-fA-F]{4}|[^u])", re.DOTALL)
_LONGEST: Final = 12  # characters of an escape: two halves of a surrogate pair
_SIMPLE: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class RawInput:
    """One call's text."""

    __slots__ = ("_done", "_flows", "_held")

    def __init__(self) -> None:
        self._held: list[str] = []
        self._flows: bool | None = None
        """None: not known yet; False: the whole has to be seen."""
        self._done = False

    def feed(self, arguments: str) -> str:
        """The text that this piece of the arguments brings."""
        if self._flows is None:
            self._held.append(arguments)
            arguments = "".join(self._held)  # some ten characters and white space
            opener = _OPENER.match(arguments)
            if opener is None:
                if _OPENING.fullmatch(arguments) is None:
                    self._flows = False
                else:
                    self._held = [arguments]
                return ""
            self._flows = True
            self._held.clear()
            arguments = arguments[opener.end() :]
        if not self._flows:
            self._held.append(arguments)
            return ""
        return "" if self._done else self._string(arguments)

    def close(self) -> str:
        """What is left at the end of a complete call."""
        return "" if self._flows else whole_input("".join(self._held))

    def _string(self, text: str) -> str:
        if self._held:
            text = self._held.pop() + text
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
                self._done = True
                break
            escape = _ESCAPE.match(text, at)
            if escape is None or (_is_high(escape[0]) and at + _LONGEST > len(text)):
                self._held.append(text[at:])  # not whole yet, or the other half of a character may follow
                break
            out.append(_decoded(escape[0]))
            at = escape.end()
        return "".join(out)


def _is_high(escape: str) -> bool:
    return len(escape) == 6 and escape[2] in "dD" and escape[3] in "89abAB"


def _decoded(escape: str) -> str:
    if escape[1] != "u":
        return _SIMPLE.get(escape[1], escape[1])
    halves = bytes.fromhex(escape.replace("\\u", ""))
    return halves.decode("utf-16-be", "replace")


def whole_input(arguments: str) -> str:
    """The raw text of a custom tool's call, out of the JSON object that the model wrote around it."""
    try:
        value = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return arguments
    if isinstance(value, dict):
        if isinstance(value.get("input"), str):
            return str(value["input"])
        if len(value) == 1 and isinstance(only := next(iter(value.values())), str):
            return only
    return arguments
