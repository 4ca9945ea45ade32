"""Takes the raw text of a custom tool's call out of the JSON in which the model writes it, as it is written.

The model is shown one string parameter (`input`) and writes `{"input": "…"}` in whatever format it uses; the client
wants what stands between the quotes. Once the key is read the text flows, its escapes decoded. Arguments of any other
form wait for their end, and the text is looked for in the whole.
"""

import re
from typing import Final

import msgspec

from streamtool.json_string import JsonString

_OPENER: Final = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_OPENING: Final = re.compile(r'\s*(\{\s*("(i(n(p(u(t("\s*(:\s*)?)?)?)?)?)?)?)?)?')
"""What may still become the opener."""


class RawInput:
    """One call's text."""

    __slots__ = ("_flows", "_held", "_string")

    def __init__(self) -> None:
        self._held: list[str] = []
        self._flows: bool | None = None
        """None: not known yet; False: the whole has to be seen."""
        self._string = JsonString()

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
        return self._string.feed(arguments)[0]

    def close(self) -> str:
        """What is left at the end of a complete call."""
        return "" if self._flows else whole_input("".join(self._held))


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
