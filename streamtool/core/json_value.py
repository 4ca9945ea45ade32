"""The types of decoded JSON, shared by the data model and everything built on it, and lines of JSON."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

Json = Any
"""A decoded JSON value: dict, list, str, int, float, bool or None."""
JsonObject = dict[str, Json]
Fields = Mapping[str, Json]
"""A JSON object that is read but never modified."""
LINE_SEPARATORS: Final = "\x85\u2028\u2029"
"""The characters that end a line for `str.splitlines`, as for some clients, but that JSON does not escape."""
_ESCAPES: Final = {ord(char): f"\\u{ord(char):04x}" for char in LINE_SEPARATORS}


def json_line(value: Json, default: Callable[[Any], Any] | None = None) -> str:
    """Return JSON on one line, however a reader splits lines. `default` encodes values that JSON does not have."""
    return json.dumps(value, ensure_ascii=False, default=default).translate(_ESCAPES)
