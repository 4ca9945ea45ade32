"""Readers for single fields of a request body, shared by the client protocols.

Each function takes a `place`, which is the location of a value in the request (`messages[2].content`) and becomes the
`param` of errors. The readers are tolerant: null is equivalent to an absent field, and lone surrogates in the body are
replaced.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final
from unicodedata import normalize

import msgspec

from streamtool.core.bounded_cache import LruCache, SharedList
from streamtool.core.conversation import MediaPart
from streamtool.core.errors import RequestError, TooLargeError
from streamtool.core.invisible import INVISIBLE
from streamtool.core.json_value import Fields, Json
from streamtool.protocols.options import OptionKind, ReadRow
from streamtool.protocols.shared import wire
from streamtool.settings import LimitSettings

_NAME: Final = re.compile(r"[^\s\x00-\x1f\x7f\"'`<>{}\[\]()\\]+")
"""Valid tool name. The origins accept `[A-Za-z0-9_-]{1,64}`; names of MCP tools may contain dots and slashes too."""
_CONTAINERS: Final = (dict, list)
_decode_top: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_WORTHWHILE: Final = 1024
"""Size in bytes of the smallest `tools` list worth caching."""
_LARGEST_KEPT: Final = 256 * 1024
"""Size in bytes of the largest `tools` list to cache."""
_BEGINNING: Final = 256
"""Number of bytes at the beginning of a `tools` list that identify the lists to compare with it."""
_ALIKE: Final = 4
"""Maximum number of lists to cache that begin alike."""
_MOST_ALIKE: Final = 10_000
"""Maximum number of brackets in them, apart from the latest."""
_MAX_PLACES: Final = 16
"""Maximum number of places in a body where the list is looked for."""
_KEY_OF_TOOLS: Final = b'"tools"'
_before_list: Final = re.compile(rb"[ \t\r\n]*+:[ \t\r\n]*+(?=\[)").match
_PLACEHOLDER: Final = 1.2345e-300
"""Number that stands for the list while the rest of the body is decoded."""
_known_tools = LruCache[tuple[tuple[bytes, SharedList], ...]](40_000)
"""JSON texts and decoded `tools` lists, the latest first, by the beginning of the text and the depth limit that they
were checked against. The number of brackets is the weight of an entry.
"""


def body_fields(body: bytes, limits: LimitSettings) -> Fields:
    """Return the fields of a request body, which must be a JSON object within the limits for size, values and depth."""
    if len(body) > limits.body:
        raise TooLargeError(
            f"The request body is larger than {limits.body} bytes (limits.body).", code="request_too_large"
        )
    if wire.more_values(body, limits.values):
        raise TooLargeError(
            f"The request body has more than {limits.values} JSON values (limits.values).", code="too_many_values"
        )
    known = _with_known_tools(body, limits.depth)
    if known is not None:
        return known
    sentence = f"The request body is not JSON, or is nested more than {limits.depth} levels deep (limits.depth)."
    try:
        value = wire.decode(body)
    except wire.UNREADABLE:
        try:
            value = wire.repaired(wire.decode_tolerant(body))
        except (ValueError, RecursionError):
            raise RequestError(sentence, code="invalid_json") from None
    # a body always contains at least as many brackets, including those in strings, as levels of nesting
    if _brackets(body) > limits.depth and _deeper(value, limits.depth):
        raise RequestError(sentence, code="invalid_json")
    fields = object_at(value, None, "The request body must be a JSON object.")
    if type(tools := fields.get("tools")) is list and (text := _tools_text(body)):
        shared = SharedList(tools)
        _keep_tools(text, limits.depth, shared)
        return {**fields, "tools": shared}
    return fields


def _with_known_tools(body: bytes, depth: int) -> Fields | None:
    """Return the fields of a body whose tools are cached, without decoding the tools again, or None if they are not
    cached.

    Agents send the same tools with each request, and the tools account for most of the request's bytes and objects.
    """
    if len(body) < _WORTHWHILE:
        return None
    end = 0
    for _ in range(_MAX_PLACES):
        key = body.find(_KEY_OF_TOOLS, end)  # a pattern that begins with the key would take twice as long
        if key < 0:
            break
        end = key + len(_KEY_OF_TOOLS)
        found = _before_list(body, end)
        if found is None:
            continue
        start = found.end()
        for text, tools in _known_tools.get((body[start : start + _BEGINNING], depth)) or ():
            if body.startswith(text, start):
                rest = b"%s%r%s" % (body[:start], _PLACEHOLDER, body[start + len(text) :])
                return _around(rest, tools, depth)
    return None


def _around(rest: bytes, tools: SharedList, depth: int) -> Fields | None:
    """Return the fields of a body in which the placeholder stands for these tools, or None if it cannot be decoded, or
    if the tools are not the field `tools` of the body.
    """
    try:
        fields = wire.decode(rest)
    except wire.UNREADABLE:
        return None
    if type(fields) is not dict or fields.get("tools") != _PLACEHOLDER:
        return None
    fields["tools"] = None
    if _brackets(rest) >= depth and _deeper(fields, depth):
        return None
    fields["tools"] = tools
    return fields


def _tools_text(body: bytes) -> bytes:
    """Return the JSON of the body's tools, or b"" if it is not worth caching."""
    try:
        text = bytes(_decode_top(body).get("tools", b""))
    except wire.UNREADABLE:
        return b""
    return text if _WORTHWHILE <= len(text) <= _LARGEST_KEPT else b""


def _keep_tools(text: bytes, depth: int, tools: SharedList) -> None:
    """Cache these tools, and the last ones that begin alike."""
    key = (text[:_BEGINNING], depth)
    alike = (_known_tools.get(key) or ())[: _ALIKE - 1]
    weights = [_brackets(known) for known, _ in alike]
    if sum(weights) > _MOST_ALIKE:
        alike, weights = (), []
    _known_tools.put(key, ((text, tools), *alike), _brackets(text) + sum(weights))


def _brackets(data: bytes) -> int:
    """Return the number of opening brackets in JSON, including those in strings."""
    return len(data) - len(data.translate(None, b"[{"))


def _deeper(value: Json, depth: int) -> bool:
    """Return whether `value` is nested more than `depth` levels deep, without recursion."""
    level = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(depth):
        if not level:
            return False
        level = [
            item
            for node in level
            for item in (node.values() if type(node) is dict else node)
            if isinstance(item, _CONTAINERS)
        ]
    return bool(level)


def object_at(value: Json, place: str | None, sentence: str = "The value must be a JSON object.") -> Fields:
    """Return the value, which must be an object. Raises RequestError."""
    if not isinstance(value, dict):
        raise refused(place, sentence)
    return value


def list_of(fields: Fields, key: str, place: str = "") -> list[Json]:
    """Return the list under the key, or an empty list if the key is absent."""
    value = fields.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise refused(_at(place, key), f"`{key}` must be a list.")
    return value


def string(fields: Fields, key: str, place: str = "", *, empty: bool = False) -> str:
    """Return the required string under the key. `empty` means that the string may be empty."""
    value = fields.get(key)
    if not isinstance(value, str) or not (value or empty):
        raise refused(_at(place, key), f"`{key}` must be a {'' if empty else 'non-empty '}string.")
    return value


def words(fields: Fields, key: str, place: str = "") -> str:
    """Return the string under the key, or an empty string if the key is absent."""
    return string(fields, key, place, empty=True) if fields.get(key) is not None else ""


def flag(fields: Fields, key: str, place: str = "", *, default: bool = False) -> bool:
    """Return the boolean under the key, or the default if the key is absent."""
    value = fields.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise refused(_at(place, key), f"`{key}` must be true or false.")
    return value


def strings(fields: Fields, key: str, place: str = "") -> tuple[str, ...]:
    """Return the strings under the key, whose value is a string or a list of strings. Empty strings are omitted."""
    value = fields.get(key)
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,) if value else ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise refused(_at(place, key), f"`{key}` must be a string or a list of strings.")
    return tuple(item for item in value if item)


def read_options(fields: Fields, rows: Sequence[ReadRow], place: str = "") -> dict[str, Json]:
    """Return the options found in the fields, as keyword arguments for `Options` (including `sampling`).

    `rows` come from `options.reading`. Because this function runs for every request, it is a single loop that calls no
    other function for plain numbers and text.
    """
    sampling: dict[str, float] = {}
    given: dict[str, Json] = {"sampling": sampling}
    for row in rows:
        name, kind = row.name, row.kind
        found: dict[str, Json] = sampling if row.sampling else given
        holder = fields.get(row.parent) if row.parent else fields
        if name in found or not isinstance(holder, dict):
            continue
        value = holder.get(row.key)
        if value is None:
            continue
        if kind is OptionKind.TEXT:
            if isinstance(value, str) and value:
                found[name] = value
            continue
        if kind is OptionKind.TEXTS:
            found[name] = strings(holder, row.key, place)
            continue
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise _not_in_range(row, place)
        if row.convert is not None:
            value = row.convert(value)
            if value is None:
                continue
        if kind is OptionKind.WHOLE:
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if not isinstance(value, int) or value < row.least or (row.most is not None and value > row.most):
                raise _not_in_range(row, place)
        found[name] = value
    return given


def _not_in_range(row: ReadRow, place: str) -> RequestError:
    """Return the error for a value that has the wrong type or is outside the row's limits."""
    limits = f", {row.least} or more" if row.most is None else f" from {row.least} to {row.most}"
    if row.kind is OptionKind.NUMBER:
        limits = ""
    return refused(_at(place, row.key), f"`{row.key}` must be {row.kind.value}{limits}.")


def model_name(raw: Fields) -> str:
    """Return the name of the requested model."""
    model = raw.get("model")
    if not isinstance(model, str) or not model:
        raise refused("model", "`model` must be the name of a model.")
    return model


def check_tool_count(count: int, limits: LimitSettings, place: str) -> None:
    """Raise TooLargeError if there are more tools than the limit allows."""
    if count > limits.tools:
        raise TooLargeError(
            f"The request has more than {limits.tools} tools (limits.tools).", param=place, code="too_many_tools"
        )


def tool_name(fields: Fields, place: str, limits: LimitSettings) -> str:
    """Return the name of an offered tool."""
    name = string(fields, "name", place)
    if len(name) > limits.name:
        raise refused(
            _at(place, "name"),
            f"A tool's name must not exceed {limits.name} characters (limits.name).",
            code="name_too_long",
        )
    if not is_visible_name(name):
        sentence = f"A tool's name must not contain spaces, quotes, brackets or invisible characters: {shown(name)}."
        raise refused(_at(place, "name"), sentence)
    return name


def is_visible_name(name: str) -> bool:
    """Return whether a tool may have this name: all of its characters are visible, and none of them is part of
    markup.
    """
    return bool(_NAME.fullmatch(name)) and name.isprintable() and (name.isascii() or INVISIBLE.search(name) is None)


def same_spelling(names: Iterable[str]) -> tuple[str, str] | None:
    """Return two different names that are canonically equivalent, such as `é` as one character and as two, or None.

    Names that differ in case are different names.
    """
    known: dict[str, str] = {}
    for name in names:
        if not name.isascii() and (other := known.setdefault(normalize("NFC", name), name)) != name:
            return other, name
    return None


def check_spelling(names: Iterable[str], place: str) -> None:
    """Raise RequestError if two tools have names that look the same."""
    found = same_spelling(names)
    if found is not None:
        codes = " and ".join(ascii(name) for name in found)
        raise refused(place, f"Two tools are named {shown(found[1])}, spelled with different characters: {codes}.")


def tool_schema(fields: Fields, key: str, place: str, limits: LimitSettings, size: int) -> Fields | None:
    """Return the JSON Schema under the key, or None if the key is absent. `size` is the size of the request body."""
    schema = fields.get(key)
    if schema is None:
        return None
    if not isinstance(schema, dict):
        raise refused(_at(place, key), "Parameters must be a JSON Schema object.")
    # A schema is never much larger than the body that contains it, so most schemas can be accepted without encoding
    # them.
    if size > limits.schema and len(wire.encode(schema)) > limits.schema:
        sentence = f"The schema is larger than {limits.schema} bytes (limits.schema)."
        raise TooLargeError(sentence, param=_at(place, key), code="schema_too_large")
    return schema


def media(kind: str, raw: Fields, url: str, name: str = "") -> MediaPart:
    """Return the media part for a URL. A data URL (`data:image/png;base64,…`) is split into its media type and data."""
    head, comma, data = url.partition(",")
    if comma and head[:5].lower() == "data:" and head.endswith(";base64"):
        return MediaPart(kind, raw, head[5:-7].partition(";")[0], data, name=name)
    return MediaPart(kind, raw, url=url, name=name)


def custom_description(fields: Fields, place: str) -> str:
    """Return a custom tool's description, including the grammar of its input, which the model sees nowhere else."""
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
    """Return an error whose `param` is `place`."""
    return RequestError(sentence, param=place, code=code)


def shown(value: Json) -> str:
    """Return the value in quotes for an error message, truncated to 80 characters."""
    text = value if isinstance(value, str) else wire.encode(value).decode()
    return f"`{text[:80]}`"


def _at(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


_EXAMPLES: Final = 3
"""Maximum number of examples to read for a tool."""


def examples(fields: Fields, key: str) -> tuple[Fields, ...]:
    """Return the first few examples of a tool's arguments, if the client sent any."""
    given = fields.get(key)
    return tuple(one for one in given if isinstance(one, dict))[:_EXAMPLES] if isinstance(given, list) else ()


def for_code_only(fields: Fields) -> bool:
    """Return whether only programs may call the tool; such a tool is unusable here, because only the origin can run
    programs.
    """
    callers = fields.get("allowed_callers")
    return isinstance(callers, list) and bool(callers) and "direct" not in callers
