"""Handling of data on the wire that the protocols share: damaged JSON, split characters, upstream errors, options.

`decode` is the fast, strict decoder for a JSON document. `decode_tolerant` is its fallback: it also accepts lone
surrogates, bytes that are not UTF-8, NaN and numbers of any size. Streamed text that it decodes must pass through a
`Joiner`, because a lone surrogate may be the first half of a character that the next piece completes.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from streamtool.core.conversation import Forcing, Options, ToolCall
from streamtool.core.errors import UpstreamError, UpstreamRefused
from streamtool.core.json_value import LINE_SEPARATORS, Json
from streamtool.core.reply import Usage
from streamtool.protocols.options import WriteRow

decode: Final = msgspec.json.Decoder().decode
"""Decoder of strict JSON; raises `UNREADABLE`."""
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_LONG: Final = 256 * 1024
"""Length in characters above which a string counts as long, and is encoded in pieces of this length."""
_BEFORE_VALUES: Final = (b",", b"[", b"{")
_LONE = re.compile("[\ud800-\udfff]")
_LINE_SEPARATORS: Final = tuple((char.encode(), f"\\u{ord(char):04x}".encode()) for char in LINE_SEPARATORS)
KEY_HEADERS: Final = frozenset((b"authorization", b"x-api-key", b"x-goog-api-key"))
"""Names of headers that contain an API key."""
_CALLERS_BUSINESS = {
    "invalid_request_error": 400,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "overloaded_error": 503,
}


def decode_tolerant(data: bytes) -> Json:
    """Return the decoded value, whose strings may contain lone surrogates. Raises ValueError if `data` is not JSON."""
    try:
        return decode(data)
    except UNREADABLE:
        pass
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def more_values(data: bytes, limit: int) -> bool:
    """Return whether a JSON document contains more than `limit` values, by counting commas and brackets instead of
    decoding it.
    """
    if len(data) <= limit:  # nearly always true
        return False
    found = begin = 0
    for sign in _BEFORE_VALUES:
        found += data.count(sign)
    if found <= limit:  # usually true, although commas and brackets in strings are counted too
        return False
    found = 0
    while found <= limit:
        quote = data.find(b'"', begin)
        end = len(data) if quote < 0 else quote
        found += sum(data.count(sign, begin, end) for sign in _BEFORE_VALUES)
        if quote < 0:
            break
        begin = _string_end(data, quote + 1)
    return found > limit


def _string_end(data: bytes, begin: int) -> int:
    """Return the index after the closing quote of the string whose content starts at `begin`."""
    while (quote := data.find(b'"', begin)) >= 0:
        slashes = quote - len(data[begin:quote].rstrip(b"\\")) - begin
        begin = quote + 1
        if slashes % 2 == 0:
            return begin
    return len(data)


def encode(value: Json) -> bytes:
    """Return compact JSON in UTF-8 on one line. Lone surrogates become U+FFFD."""
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:
        data = msgspec.json.encode(repaired(value))
    return data if data.isascii() else on_one_line(data)


def on_one_line(data: bytes) -> bytes:
    """Return JSON with the line separators outside ASCII escaped. Clients that split a stream into lines as `str` does
    would end a line at each of them.
    """
    for character, escape in _LINE_SEPARATORS:
        if character[-1:] in data and character in data:  # searching for one byte is much faster
            data = data.replace(character, escape)
    return data


def object_of(arguments: str) -> bytes:
    """Return a call's arguments as a JSON object on one line, but otherwise as the model wrote them.

    Arguments that are not an object become the `arguments` field of a new object.
    """
    text = repaired(arguments).strip() or "{}"
    try:
        value = decode(text)
        if isinstance(value, dict):
            line = text.replace("\n", " ").replace("\r", " ")  # line breaks inside strings are always escaped
            return on_one_line(line.encode())
    except UNREADABLE:
        value = _tolerant(text)
    return encode(value if isinstance(value, dict) else {"arguments": text})


def is_object(text: str) -> bool:
    """Return whether the text is one strict JSON object."""
    try:
        return isinstance(decode(text), dict)
    except UNREADABLE:
        return False


def arguments_of(call: ToolCall) -> Mapping[str, Json]:
    """Return a call's arguments as an object. Arguments that are not an object become a field of a new object."""
    if call.custom:
        return {"input": call.arguments}
    try:
        value = decode_tolerant(call.arguments.encode("utf-8", "replace")) if call.arguments.strip() else {}
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"arguments": call.arguments}


def _tolerant(text: str) -> Json:
    try:
        return decode_tolerant(text.encode())
    except ValueError:
        return None


def encode_request(fields: Json) -> bytes:
    """Return the same bytes as `encode`, but encode long strings in pieces, so that a worker thread can release the GIL
    in between.
    """
    return _in_turns(fields)


def _in_turns(value: Json) -> bytes:
    if not _is_long(value):
        return encode(value)
    if isinstance(value, list):
        return b"[" + b",".join(map(_in_turns, value)) + b"]"
    if isinstance(value, str):
        text = repaired_text(value)
        pieces = [encode(text[at : at + _LONG])[1:-1] for at in range(0, len(text), _LONG)]
        return b'"' + b"".join(pieces) + b'"'
    return b"{" + b",".join(encode(key) + b":" + _in_turns(item) for key, item in value.items()) + b"}"


def _is_long(value: Json) -> bool:
    """Return whether the value contains a long string."""
    level = [value]
    while level:
        deeper: list[Json] = []
        for item in level:
            kind = type(item)
            if kind is str:
                if len(item) > _LONG:
                    return True
            elif kind is dict:
                deeper += item.values()
            elif isinstance(item, list):
                deeper += item
        level = deeper
    return False


def repaired(value: Json) -> Json:
    """Return a copy of `value` with U+FFFD for each lone surrogate."""
    if isinstance(value, str):
        return repaired_text(value)
    if isinstance(value, Mapping):
        return {repaired_text(key): repaired(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [repaired(item) for item in value]
    return value


def repaired_text(text: str) -> str:
    """Return the text with U+FFFD for each lone surrogate."""
    if text.isascii() or not _LONE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class Joiner:
    """Joiner for surrogate pairs that are split between two pieces of text.

    A high surrogate at the end of a piece is buffered until the next piece. An unpaired surrogate becomes U+FFFD.
    """

    __slots__ = ("_high",)

    def __init__(self) -> None:
        self._high = ""

    def feed(self, text: str) -> str:
        """Return `text`, preceded by the buffered surrogate if there is one. A high surrogate at the end of `text` is
        buffered.
        """
        if not self._high and (text.isascii() or not _LONE.search(text)):
            return text
        text = self._high + text
        self._high = ""
        if "\ud800" <= text[-1:] <= "\udbff":
            self._high = text[-1]
            text = text[:-1]
        return repaired_text(text)

    @property
    def holds(self) -> bool:
        """Whether a surrogate is buffered."""
        return bool(self._high)

    def close(self) -> str:
        """Return U+FFFD if a surrogate is buffered, or an empty string if not."""
        text = "\ufffd" if self._high else ""
        self._high = ""
        return text


def with_key(headers: list[tuple[bytes, bytes]], header: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers with the API key, if there is one, moved to `header`. All names are in lower case."""
    found = {name: value for name, value in headers if name in KEY_HEADERS}
    rest = [pair for pair in headers if pair[0] not in KEY_HEADERS]
    scheme, _, bearer = found.get(b"authorization", b"").partition(b" ")
    key = found.get(b"x-api-key") or found.get(b"x-goog-api-key")
    if header == b"authorization":
        shown = found.get(b"authorization") or (key and b"Bearer " + key)
    else:
        shown = key or (bearer.strip() if scheme.lower() == b"bearer" else b"")
    return [*rest, (header, shown)] if shown else rest


NO_MESSAGE: Final = "The upstream reported an error without a message."


_KINDS: Final = {
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Types of errors that the upstream reports without a type, by status."""


def upstream_error(error: Json, *, status: int | None = None) -> UpstreamError:
    """Return the error that an upstream reported, in any of the formats in use.

    `error` is the error object, its message, or an entire body that contains one of these under `error`. `status` is
    the HTTP status, or None for an error in a stream, whose HTTP status is 200; the status is then derived from the
    error's code or type. An authentication error is our fault and not the client's, so it becomes a plain
    `UpstreamError`.
    """
    if isinstance(error, Mapping) and error.get("error"):
        error = error["error"]
    fields: Mapping[str, Json] = error if isinstance(error, Mapping) else {}
    message = error if isinstance(error, str) else fields.get("message") or fields.get("detail")
    if isinstance(message, list):  # FastAPI: one error for each field
        message = "; ".join(_wrong_field(item) for item in message if isinstance(item, dict))
    if not isinstance(message, str) or not message.strip():
        message = NO_MESSAGE
    message = repaired_text(message)
    code, kind, param = (fields.get(key) for key in ("code", "type", "param"))
    kind = repaired_text(kind) if isinstance(kind, str) and kind else None
    word = repaired_text(code) if isinstance(code, str) and code else None
    if status is None:
        status = _status(code, fields.get("status"), kind, word)
    if status is None or status in (401, 403):
        return UpstreamError(message, code=word).quoting()
    return UpstreamRefused(
        message,
        status=status,
        kind=kind or _KINDS.get(status) or ("upstream_error" if status >= 500 else "invalid_request_error"),
        param=repaired_text(param) if isinstance(param, str) else None,
        code=word,
    ).quoting()


def _wrong_field(item: Mapping[str, Json]) -> str:
    """Return FastAPI's message about one field, preceded by the field's name."""
    place = [str(name) for name in item.get("loc") or () if name != "body"] if isinstance(item.get("loc"), list) else []
    return ": ".join((".".join(place), str(item.get("msg")))) if place else str(item.get("msg"))


def _status(*candidates: Json) -> int | None:
    for value in candidates:
        if isinstance(value, str) and value.isdecimal() and len(value) == 3:
            value = int(value)  # noqa: PLW2901  the same value, as a number
        if isinstance(value, int) and 400 <= value < 600:
            return value
        if isinstance(value, str) and value in _CALLERS_BUSINESS:
            return _CALLERS_BUSINESS[value]
    return None


def page_title(data: bytes) -> str:
    """Return the title of an HTML page, truncated to 100 characters, or "" if the page has no title."""
    found = re.search(rb"<title[^>]*>([^<]{1,400})", data[:8192], re.IGNORECASE)
    return " ".join(found[1].decode("utf-8", "replace").split())[:100] if found else ""


def own_counts(usage: Usage) -> dict[str, Json]:
    """Return our additional field in the usage object, which states whether the usage is estimated and how many tokens
    rejected attempts used.
    """
    own: dict[str, Json] = {}
    if usage.estimated:
        own["estimated"] = True
    if usage.retried is not None:
        own["retried"] = {"input_tokens": usage.retried.input, "output_tokens": usage.retried.output}
    return {"streamtool": own} if own else {}


def constraint(forcing: Forcing) -> dict[str, Json]:
    """Return the request field that constrains the model's output to a call, for OpenAI's protocols.

    Each server has its own field. Sources: vLLM's documentation of structured outputs, SGLang's request models,
    llama.cpp's server.
    """
    match forcing.way:
        case "schema":
            schema = {"name": "call", "schema": forcing.value}
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        case "guided":
            return {"structured_outputs": {"json": forcing.value}}
        case "structural_tag":
            return {"response_format": forcing.value}
        case "grammar":
            return {"grammar": forcing.value}
        case "prefill":
            return {"grammar": forcing.grammar} if forcing.grammar else {}


def write_options(options: Options, rows: Sequence[WriteRow]) -> dict[str, Json]:
    """Return the fields that contain the options. `rows` (from `options.writing`) determine their locations."""
    fields: dict[str, Json] = {}
    sampling = options.sampling
    for row in rows:
        value = sampling.get(row.name) if row.sampling else getattr(options, row.name)
        if value is not None:
            if row.fits is not None and not row.fits(options):
                continue
            if row.convert is not None:
                value = row.convert(value)
        if value is None:
            value = row.fallback
        if value is None:
            continue
        if row.parent:
            fields.setdefault(row.parent, {})[row.key] = value
        else:
            fields[row.key] = value
    return fields


def count_in(body: bytes, key: str) -> int | None:
    """Return the number of tokens under the key in an upstream's reply, or None if the reply does not contain it."""
    try:
        value = decode_tolerant(body)
    except ValueError:
        return None
    tokens = value.get(key) if isinstance(value, dict) else None
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0 else None
