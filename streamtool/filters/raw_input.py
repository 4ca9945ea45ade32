"""Streaming extraction of a custom tool's raw text from the JSON that the model writes as arguments.

The tool prompt shows the model one string parameter (`input`), so the model writes `{"input": "…"}`, in any call
format; the client wants the text between the quotes. Once the key has been read, the text is streamed with its escapes
decoded. Arguments of any other form are buffered until the call ends, and are then decoded all at once.
"""

import re
from typing import Final

import msgspec

from streamtool.core.json_string import JsonStringDecoder

_OPENER: Final = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_OPENING: Final = re.compile(r'\s*(\{\s*("(i(n(p(u(t("\s*(:\s*)?)?)?)?)?)?)?)?)?')
"""Matches text that may still become the opener."""


class RawInput:
    """An extractor for the raw text of one call."""

    __slots__ = ("_held", "_streams", "_string")

    def __init__(self) -> None:
        self._held: list[str] = []
        self._streams: bool | None = None
        """Whether the text is streamed. None if that is not known yet; False if decoding requires the complete
        arguments.
        """
        self._string = JsonStringDecoder()

    def feed(self, arguments: str) -> str:
        """Process a piece of the arguments, and return the decoded text that is ready."""
        if self._streams is None:
            self._held.append(arguments)
            arguments = "".join(self._held)  # about ten characters, plus whitespace
            opener = _OPENER.match(arguments)
            if opener is None:
                if _OPENING.fullmatch(arguments) is None:
                    self._streams = False
                else:
                    self._held = [arguments]
                return ""
            self._streams = True
            self._held.clear()
            arguments = arguments[opener.end() :]
        if not self._streams:
            self._held.append(arguments)
            return ""
        return self._string.feed(arguments)[0]

    def close(self) -> str:
        """Return the remaining text at the end of a complete call."""
        return "" if self._streams else extract_input("".join(self._held))


def extract_input(arguments: str) -> str:
    """Return the raw text in the JSON object that the model wrote, or the arguments unchanged if it is not found."""
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
