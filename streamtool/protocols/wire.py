"""What the protocols share on the wire: JSON that may be damaged, characters that may be cut, errors of upstreams.

`decode` is the fast and strict reading of a JSON document, `decode_tolerant` the one to fall back to: it also takes
lone surrogates, bytes that are not UTF-8, NaN and numbers of any size. Text that came through it goes through a
`Joiner`, because a lone surrogate may be half of a character whose other half comes with the next piece.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from streamtool.conversation import Forcing
from streamtool.errors import UpstreamError, UpstreamRefused
from streamtool.reply import Usage

Json = Any  # a decoded JSON value

decode: Final = msgspec.json.Decoder().decode
"""The value of strict JSON; raises `UNREADABLE`."""
UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_LONG: Final = 256 * 1024
"""Characters of a string that is long."""
_BEFORE_VALUES: Final = (b",", b"[", b"{")
_LONE = re.compile("[\ud800-\udfff]")
KEY_HEADERS: Final = frozenset((b"authorization", b"x-api-key", b"x-goog-api-key"))
"""The headers in which keys travel."""
_CALLERS_BUSINESS = {
    "invalid_request_error": 400,
    "not_found_error": 404,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "overloaded_error": 503,
}


def decode_tolerant(data: bytes) -> Json:
    """The value of `data`, its strings perhaps with lone surrogates; raises ValueError if it is no JSON at all."""
    try:
        return decode(data)
    except UNREADABLE:
        pass
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def more_values(data: bytes, limit: int) -> bool:
    """Whether a JSON document has more than `limit` values behind the first one of what holds them. Reads no value."""
    found = begin = 0
    for sign in _BEFORE_VALUES:
        found += data.count(sign)
    if found <= limit:  # those in strings included: nearly always it ends here
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
    """Behind the quote that ends the string which begins here."""
    while (quote := data.find(b'"', begin)) >= 0:
        slashes = quote - len(data[begin:quote].rstrip(b"\\")) - begin
        begin = quote + 1
        if slashes % 2 == 0:
            return begin
    return len(data)


def encode(value: Json) -> bytes:
    """Compact JSON, UTF-8; lone surrogates become U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(repaired(value))


def object_of(arguments: str) -> bytes:
    """The arguments of a call as a JSON object on one line, spelled as they came; what is none stands in a field."""
    text = repaired(arguments).strip() or "{}"
    try:
        value = decode(text)
        if isinstance(value, dict):
            return text.replace("\n", " ").replace("\r", " ").encode()  # which strings have as escapes only
    except UNREADABLE:
        value = _tolerant(text)
    return encode(value if isinstance(value, dict) else {"arguments": text})


def _tolerant(text: str) -> Json:
    try:
        return decode_tolerant(text.encode())
    except ValueError:
        return None


def encode_request(fields: Json) -> bytes:
    """As `encode`, long strings in pieces: in a worker thread, others have their turns in between."""
    return b"{" + b",".join(encode(key) + b":" + _in_turns(value) for key, value in fields.items()) + b"}"


def _in_turns(value: Json) -> bytes:
    if not _is_long(value):
        return encode(value)
    if isinstance(value, list):
        return b"[" + b",".join(map(_in_turns, value)) + b"]"
    if isinstance(value, str):
        text = _mend(value)
        pieces = [encode(text[at : at + _LONG])[1:-1] for at in range(0, len(text), _LONG)]
        return b'"' + b"".join(pieces) + b'"'
    return b"{" + b",".join(encode(key) + b":" + _in_turns(item) for key, item in value.items()) + b"}"


def _is_long(value: Json) -> bool:
    """Whether a long string stands in it."""
    if isinstance(value, str):
        return len(value) > _LONG
    if isinstance(value, dict):
        return any(map(_is_long, value.values()))
    return isinstance(value, list) and any(map(_is_long, value))


def repaired(value: Json) -> Json:
    """`value` with each lone surrogate in it replaced by U+FFFD; a copy."""
    if isinstance(value, str):
        return _mend(value)
    if isinstance(value, Mapping):
        return {_mend(key): repaired(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [repaired(item) for item in value]
    return value


def _mend(text: str) -> str:
    if text.isascii() or not _LONE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class Joiner:
    """Makes whole characters of text that was cut between the two halves of a surrogate pair.

    A high surrogate at the end of a piece is held until the next piece. A half without its other half becomes U+FFFD.
    """

    __slots__ = ("_high",)

    def __init__(self) -> None:
        self._high = ""

    def feed(self, text: str) -> str:
        """`text` with what was held before it."""
        if not self._high and (text.isascii() or not _LONE.search(text)):
            return text
        text = self._high + text
        self._high = ""
        if "\ud800" <= text[-1:] <= "\udbff":
            self._high = text[-1]
            text = text[:-1]
        return _mend(text)

    @property
    def holds(self) -> bool:
        """Whether half a character is held."""
        return bool(self._high)

    def close(self) -> str:
        """U+FFFD if half a character is held, else nothing."""
        text = "\ufffd" if self._high else ""
        self._high = ""
        return text


def with_key(headers: list[tuple[bytes, bytes]], header: bytes) -> list[tuple[bytes, bytes]]:
    """The headers (names in lower case) with the key that they bear, under whatever name, in `header` instead."""
    found = {name: value for name, value in headers if name in KEY_HEADERS}
    rest = [pair for pair in headers if pair[0] not in KEY_HEADERS]
    scheme, _, bearer = found.get(b"authorization", b"").partition(b" ")
    key = found.get(b"x-api-key") or found.get(b"x-goog-api-key")
    if header == b"authorization":
        shown = found.get(b"authorization") or (key and b"Bearer " + key)
    else:
        shown = key or (bearer.strip() if scheme.lower() == b"bearer" else b"")
    return [*rest, (header, shown)] if shown else rest


def upstream_error(error: Json, *, status: int | None = None) -> UpstreamError:
    """What an upstream's error says, in any of the shapes that are in use.

    `error` is the error object, its message, or a whole body that holds one of them under `error`. `status` is the
    HTTP status; None: the error came in a stream of status 200, and its status is read from its code or its type.
    An authentication error is ours and not the caller's: it becomes a plain `UpstreamError`.
    """
    if isinstance(error, Mapping) and error.get("error"):
        error = error["error"]
    fields: Mapping[str, Json] = error if isinstance(error, Mapping) else {}
    message = error if isinstance(error, str) else fields.get("message") or fields.get("detail")
    if isinstance(message, list):  # FastAPI's: what is wrong in each field
        message = "; ".join(_wrong_field(item) for item in message if isinstance(item, dict))
    if not isinstance(message, str) or not message.strip():
        message = "The upstream reported an error without saying which."
    message = _mend(message)
    code, kind, param = (fields.get(key) for key in ("code", "type", "param"))
    kind = _mend(kind) if isinstance(kind, str) and kind else None
    word = _mend(code) if isinstance(code, str) and code else None
    if status is None:
        status = _status(code, fields.get("status"), kind, word)
    if status is None or status in (401, 403):
        return UpstreamError(message, code=word).quoting()
    return UpstreamRefused(
        message,
        status=status,
        kind=kind or ("upstream_error" if status >= 500 else "invalid_request_error"),
        param=_mend(param) if isinstance(param, str) else None,
        code=word,
    ).quoting()


def _wrong_field(item: Mapping[str, Json]) -> str:
    """What FastAPI says of one field, and which it is."""
    place = [str(name) for name in item.get("loc") or () if name != "body"] if isinstance(item.get("loc"), list) else []
    return ": ".join((".".join(place), str(item.get("msg")))) if place else str(item.get("msg"))


def _status(*candidates: Json) -> int | None:
    for value in candidates:
        if isinstance(value, str) and value.isdecimal() and len(value) == 3:
            value = int(value)  # noqa: PLW2901 — the same value, read
        if isinstance(value, int) and 400 <= value < 600:
            return value
        if isinstance(value, str) and value in _CALLERS_BUSINESS:
            return _CALLERS_BUSINESS[value]
    return None


def page_title(data: bytes) -> str:
    """The title of an HTML page, at most 100 characters; "" if it has none."""
    found = re.search(rb"<title[^>]*>([^<]{1,400})", data[:8192], re.IGNORECASE)
    return " ".join(found[1].decode("utf-8", "replace").split())[:100] if found else ""


def own_counts(usage: Usage) -> dict[str, Json]:
    """The field of ours that stands beside the counts of tokens: whether they are estimated, what retries have cost."""
    own: dict[str, Json] = {}
    if usage.estimated:
        own["estimated"] = True
    if usage.retried is not None:
        own["retried"] = {"input_tokens": usage.retried.input, "output_tokens": usage.retried.output}
    return {"streamtool": own} if own else {}


def constraint(forcing: Forcing) -> dict[str, Json]:
    """The field of a request that holds the model to a call, in OpenAI's protocols; each server has its own.

    Sources: vLLM's documentation of structured outputs, the request models of SGLang, the server of llama.cpp.
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
            return {}


def count_in(body: bytes, key: str) -> int | None:
    """The number of tokens that an upstream tells under the key; None if it does not."""
    try:
        value = decode_tolerant(body)
    except ValueError:
        return None
    tokens = value.get(key) if isinstance(value, dict) else None
    return tokens if isinstance(tokens, int) and not isinstance(tokens, bool) and tokens >= 0 else None
