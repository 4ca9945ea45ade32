"""Reads the fields of a request's body: what every client protocol asks of them, and how it says that one is wrong.

Each function takes a place (`messages[2].content`), which an error names in its `param`. The reading is as tolerant as
real agents need: an absent field and null are the same, and a body with lone surrogates is mended.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from streamtool.conversation import MediaPart
from streamtool.errors import RequestError, TooLargeError
from streamtool.protocols import wire
from streamtool.settings import LimitSettings

Json = Any  # a decoded JSON value
Fields = Mapping[str, Json]

_NAME: Final = re.compile(r"[^\s\x00-\x1f\x7f\"'`<>{}\[\]()\\]+")
"""A tool's name. The origins take `[A-Za-z0-9_-]{1,64}`; tools of MCP servers have dots and slashes as well."""
_CONTAINERS: Final = (dict, list)


def body_fields(body: bytes, limits: LimitSettings) -> Fields:
    """The fields of a request's body, which must be a JSON object within the limits of size and depth."""
    if len(body) > limits.body:
        raise TooLargeError(
            f"The request body is larger than {limits.body} bytes (limits.body).", code="request_too_large"
        )
    if wire.more_values(body, limits.values):
        raise TooLargeError(
            f"The request body has more than {limits.values} JSON values (limits.values).", code="too_many_values"
        )
    sentence = f"The request body is not JSON, or is nested more than {limits.depth} deep (limits.depth)."
    try:
        value = wire.decode(body)
    except wire.UNREADABLE:
        try:
            value = wire.repaired(wire.decode_tolerant(body))
        except (ValueError, RecursionError):
            raise RequestError(sentence, code="invalid_json") from None
    if _deeper(value, limits.depth):
        raise RequestError(sentence, code="invalid_json")
    return object_at(value, None, "The request body must be a JSON object.")


def _deeper(value: Json, depth: int) -> bool:
    """Whether `value` is nested more than `depth` deep; level by level, so that no recursion is needed."""
    level = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(depth):
        if not level:
            return False
        children = (item for node in level for item in (node.values() if isinstance(node, dict) else node))
        level = [item for item in children if isinstance(item, _CONTAINERS)]
    return bool(level)


def object_at(value: Json, place: str | None, sentence: str = "This must be a JSON object.") -> Fields:
    """The value, which must be an object."""
    if not isinstance(value, dict):
        raise refused(place, sentence)
    return value


def list_of(fields: Fields, key: str, place: str = "") -> list[Json]:
    """The list under the key; empty if it is absent."""
    value = fields.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise refused(_at(place, key), f"`{key}` is a list.")
    return value


def string(fields: Fields, key: str, place: str = "", *, empty: bool = False) -> str:
    """The string under the key, which must be there; `empty` says that it may hold nothing."""
    value = fields.get(key)
    if not isinstance(value, str) or not (value or empty):
        raise refused(_at(place, key), f"`{key}` must be a string{'' if empty else ' that is not empty'}.")
    return value


def words(fields: Fields, key: str, place: str = "") -> str:
    """The string under the key; empty if it is absent."""
    return string(fields, key, place, empty=True) if fields.get(key) is not None else ""


def flag(fields: Fields, key: str, place: str = "", *, default: bool = False) -> bool:
    """The boolean under the key."""
    value = fields.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise refused(_at(place, key), f"`{key}` is true or false.")
    return value


def integer(fields: Fields, key: str, place: str = "", *, least: int = 0) -> int | None:
    """The whole number under the key; None if it is absent."""
    value = fields.get(key)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise refused(_at(place, key), f"`{key}` is a whole number, {least} or more.")
    return value


def number(fields: Fields, key: str, place: str = "") -> float | None:
    """The number under the key; None if it is absent."""
    value = fields.get(key)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise refused(_at(place, key), f"`{key}` is a number.")
    return value


def strings(fields: Fields, key: str, place: str = "") -> tuple[str, ...]:
    """The strings under the key, which is one string or a list of them; empty ones are left out."""
    value = fields.get(key)
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,) if value else ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise refused(_at(place, key), f"`{key}` is a string or a list of strings.")
    return tuple(item for item in value if item)


def model_name(raw: Fields) -> str:
    """The model that the request asks for."""
    model = raw.get("model")
    if not isinstance(model, str) or not model:
        raise refused("model", "Name the model to use as a string.")
    return model


def tool_name(fields: Fields, place: str, limits: LimitSettings) -> str:
    """The name of a tool that is offered."""
    name = string(fields, "name", place)
    if len(name) > limits.name:
        raise refused(
            _at(place, "name"),
            f"A tool's name has at most {limits.name} characters (limits.name).",
            code="name_too_long",
        )
    if not (_NAME.fullmatch(name) and name.isprintable()):
        sentence = f"A tool's name has no spaces, quotes, brackets or invisible characters: {shown(name)}."
        raise refused(_at(place, "name"), sentence)
    return name


def tool_schema(fields: Fields, key: str, place: str, limits: LimitSettings, size: int) -> Fields | None:
    """The JSON Schema under the key; None if it is absent. `size` is that of the body that it came in."""
    schema = fields.get(key)
    if schema is None:
        return None
    schema = object_at(schema, _at(place, key), "Parameters are a JSON Schema, which is an object.")
    # a schema is never much larger than the body that it came in
    if size > limits.schema and len(wire.encode(schema)) > limits.schema:
        sentence = f"The schema is larger than {limits.schema} bytes (limits.schema)."
        raise TooLargeError(sentence, param=_at(place, key), code="schema_too_large")
    return schema


def media(kind: str, raw: Fields, url: str, name: str = "") -> MediaPart:
    """The part behind an address; an address that holds the data itself (`data:image/png;base64,…`) is taken apart."""
    head, comma, data = url.partition(",")
    if comma and head[:5].lower() == "data:" and head.endswith(";base64"):
        return MediaPart(kind, raw, head[5:-7].partition(";")[0], data, name=name)
    return MediaPart(kind, raw, url=url, name=name)


def custom_description(fields: Fields, place: str) -> str:
    """The description of a custom tool; the grammar of its input is a part of it, or the model would not know it."""
    about = words(fields, "description", place)
    match fields.get("format"):
        case {"type": "grammar", "grammar": {"definition": str(definition), **rest}} if definition:
            pass
        case {"type": "grammar", "definition": str(definition), **rest} if definition:
            pass
        case _:
            return about
    syntax = rest.get("syntax")
    grammar = f"{syntax} grammar" if isinstance(syntax, str) and syntax != "regex" else "regular expression"
    return f"{about}\nThe input must match this {grammar}:\n{definition}".lstrip()


def refused(place: str | None, sentence: str, *, code: str | None = None) -> RequestError:
    """The error that names a place in the request."""
    return RequestError(sentence, param=place, code=code)


def shown(value: Json) -> str:
    """The value in a sentence, cut."""
    text = value if isinstance(value, str) else wire.encode(value).decode()
    return f"`{text[:80]}`"


def _at(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


PASSED: Final = "goes to an upstream of the same protocol; for others it is left out, and noted"
"""What becomes of a field that means something to its own origin only."""
SAME: Final = "goes to an upstream of the same protocol; others have no place for it"
"""What becomes of a part of a field that is read."""
NATIVE: Final = "goes to an upstream that gets the tools natively"
"""What becomes of a field of a tool that the model does not read as text."""
_EXAMPLES: Final = 3
"""Examples of a tool's arguments that are read."""


def examples(fields: Fields, key: str) -> tuple[Fields, ...]:
    """The first arguments of a tool that its owner gives as examples."""
    given = fields.get(key)
    return tuple(one for one in given if isinstance(one, dict))[:_EXAMPLES] if isinstance(given, list) else ()


def for_code_only(fields: Fields) -> bool:
    """Whether a tool may be called by programs alone, which only the origin runs."""
    callers = fields.get("allowed_callers")
    return isinstance(callers, list) and bool(callers) and "direct" not in callers
