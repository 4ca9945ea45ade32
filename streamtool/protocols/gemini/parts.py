"""Reader for the turns of a request: text, thoughts, media, calls and results.

Chat sessions of the SDKs send each chunk of a streamed reply back as a separate turn. Adjacent model turns therefore
become one message, and adjacent pieces of text in it are joined. Oddities are accepted (a turn without a role, a result
that is not an object); meaningless input raises a `RequestError` whose `param` names the invalid field.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from streamtool.core.conversation import MediaPart, Message, Part, TextPart, ToolCall, ToolResult
from streamtool.core.json_value import Fields, Json
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.fields import list_of, object_at, refused, shown, string, words
from streamtool.protocols.shared.pairing import PairedCallIds

_KINDS: Final = ("image", "audio", "video")
_RESULT_KEYS: Final = ("output", "result")
"""Keys that clients use for a function's return value."""


def camel_case_keys(fields: Mapping[str, Json]) -> dict[str, Json]:
    """Return the fields with their keys in camel case, because the API accepts snake case too. Nested keys are
    unchanged.
    """
    return {_camel(key) if "_" in key else key: value for key, value in fields.items()}


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest) if first else key


def _given_ids(turns: Iterable[Fields]) -> Iterator[str]:
    """Yield the call ids that the client sent in these turns."""
    for turn in turns:
        parts = turn.get("parts")
        for part in parts if isinstance(parts, list) else ():
            call = camel_case_keys(part).get("functionCall") if isinstance(part, dict) else None
            if isinstance(call, dict) and isinstance(call.get("id"), str):
                yield call["id"]


def read_system(value: Json) -> tuple[Message, ...]:
    """Return the message in `systemInstruction`, or () if it has no content. The message's `raw` contains only that
    body field.
    """
    if value is None:
        return ()
    place = "systemInstruction"
    fields = {"parts": [{"text": value}]} if isinstance(value, str) else camel_case_keys(object_at(value, place))
    content = tuple(part for item, inside in _parts(fields, place) for part in _part(item, inside))
    return (Message("system", content, raw=({place: value},)),) if content else ()


def read_contents(turns: Sequence[Fields]) -> Iterator[Message]:
    """Yield the messages in the turns."""
    ids = PairedCallIds(_given_ids(turns))
    placed = [(fields, f"contents[{position}]") for position, fields in enumerate(turns)]
    for role, run in groupby(placed, lambda one: _role(*one)):
        if role == "assistant":
            yield _model(list(run), ids)
        else:
            yield from (_user(fields, place, ids) for fields, place in run)


def _role(fields: Fields, place: str) -> str:
    match fields.get("role"):
        case "model":
            return "assistant"
        case None | "" | "user" | "function" | "tool":
            return "user"
        case role:
            raise refused(f"{place}.role", f"A turn's role must be user or model, not {shown(role)}.")


def _user(fields: Fields, place: str, ids: PairedCallIds) -> Message:
    content: list[Part] = []
    results: list[ToolResult] = []
    for part, inside in _parts(fields, place):
        if "functionCall" in part:
            raise refused(f"{inside}.functionCall", "A functionCall belongs in a model turn.")
        if "functionResponse" in part:
            results.append(_result(part["functionResponse"], f"{inside}.functionResponse", ids))
        else:
            content += _part(part, inside)
    return Message("user", tuple(content), results=tuple(results), raw=(fields,))


def _model(turns: Sequence[tuple[Fields, str]], ids: PairedCallIds) -> Message:
    """Return the message for adjacent model turns."""
    content: list[Part] = []
    pieces: list[str] = []  # pieces of the current text
    calls: list[ToolCall] = []
    reasoning: list[str] = []
    for part, inside in (found for fields, place in turns for found in _parts(fields, place)):
        if "functionResponse" in part:
            raise refused(f"{inside}.functionResponse", "A functionResponse belongs in a user turn.")
        if part.get("thought") is True:
            reasoning.append(words(part, "text", inside))
        elif isinstance(part.get("text"), str):
            pieces.append(part["text"])
        else:
            content += _text(pieces)
            pieces.clear()
            if "functionCall" in part:
                calls.append(_call(part, inside, ids))
            else:
                content += _part(part, inside)
    content += _text(pieces)
    raw = tuple(fields for fields, _ in turns)
    return Message("assistant", tuple(content), tuple(calls), reasoning="".join(reasoning), raw=raw)


def _text(pieces: Iterable[str]) -> tuple[TextPart, ...]:
    text = "".join(pieces)
    return (TextPart(text),) if text else ()


def _call(part: Fields, place: str, ids: PairedCallIds) -> ToolCall:
    inside = f"{place}.functionCall"
    call = object_at(part["functionCall"], inside)
    name = string(call, "name", inside)
    args = call.get("args")
    arguments = "{}" if args is None else wire.encode(object_at(args, f"{inside}.args")).decode()
    signature = words(part, "thoughtSignature", place) or None
    return ToolCall(ids.call(words(call, "id", inside) or None, name), name, arguments, signature=signature)


def _result(value: Json, place: str, ids: PairedCallIds) -> ToolResult:
    """Return a result. If the response has `output`, `result` or `error` as its only key, the text is the value of that
    key; if not, the text is the entire response as JSON.
    """
    fields = camel_case_keys(object_at(value, place))
    identity, name = ids.result(words(fields, "id", place) or None, string(fields, "name", place))
    response, error = fields.get("response"), False
    if isinstance(response, dict) and len(response) == 1:
        (key,) = response
        error = key == "error"
        if error or key in _RESULT_KEYS:
            response = response[key]
    text = response if isinstance(response, str) else "" if response is None else wire.encode(response).decode()
    media = tuple(part for item, inside in _parts(fields, place) for part in _part(item, inside))
    return ToolResult(identity, (*((TextPart(text),) if text else ()), *media), error=error, name=name)


# --- parts ------------------------------------------------------------------------------------------------------------


def _parts(fields: Fields, place: str) -> Iterator[tuple[Fields, str]]:
    """Yield the parts of a turn, each with its location in the request. A part may be a plain string."""
    for number, item in enumerate(list_of(fields, "parts", place)):
        inside = f"{place}.parts[{number}]"
        yield {"text": item} if isinstance(item, str) else camel_case_keys(object_at(item, inside)), inside


def _part(part: Fields, place: str) -> tuple[Part, ...]:
    """Return the content of a part that is neither a call nor a result, or () if the part is empty."""
    match part:
        case {"text": value} if value is not None:
            text = string(part, "text", place, empty=True)
            return (TextPart(text),) if text else ()
        case {"inlineData": dict(value)}:
            value = camel_case_keys(value)
            kind = words(value, "mimeType", f"{place}.inlineData")
            return (MediaPart(_kind(kind), part, kind, string(value, "data", f"{place}.inlineData")),)
        case {"fileData": dict(value)}:
            value = camel_case_keys(value)
            kind = words(value, "mimeType", f"{place}.fileData")
            return (MediaPart(_kind(kind), part, kind, url=string(value, "fileUri", f"{place}.fileData")),)
        case {"executableCode": {"code": str(code)}}:
            return (TextPart(code),)
        case {"codeExecutionResult": {"output": str(output)}}:
            return (TextPart(output),)
    return ()


def _kind(type_: str) -> str:
    kind = type_.partition("/")[0]
    return kind if kind in _KINDS else "file"
