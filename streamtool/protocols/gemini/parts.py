"""Reads the turns of a request: texts, thoughts, media, calls, results.

Chats of SDKs send each chunk of a streamed reply back as a turn of its own, so neighbouring turns of the model are one
message, and neighbouring texts in it one text. What is merely odd is taken (a turn without a role, a result that is no
object), what has no meaning is a `RequestError` whose `param` names the place.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from streamtool.conversation import MediaPart, Message, Part, TextPart, ToolCall, ToolResult
from streamtool.protocols import wire
from streamtool.protocols.fields import Fields, list_of, object_at, refused, shown, string, words
from streamtool.protocols.pairing import CallIds

Json = Any  # a decoded JSON value

_KINDS: Final = ("image", "audio", "video")
_WORDS: Final = ("output", "result")
"""The keys of a result under which clients put what a function returned."""


def camel(fields: Mapping[str, Json]) -> dict[str, Json]:
    """The fields with their keys in camel case; the API takes snake case as well. What they hold stays as it is."""
    return {_camel(key) if "_" in key else key: value for key, value in fields.items()}


def _camel(key: str) -> str:
    first, *rest = key.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest) if first else key


def _given_ids(turns: Iterable[Fields]) -> Iterator[str]:
    """The ids that calls of these turns bear."""
    for turn in turns:
        parts = turn.get("parts")
        for part in parts if isinstance(parts, list) else ():
            call = camel(part).get("functionCall") if isinstance(part, dict) else None
            if isinstance(call, dict) and isinstance(call.get("id"), str):
                yield call["id"]


def read_system(value: Json) -> tuple[Message, ...]:
    """The message that `systemInstruction` is, if it says anything. Its `raw` is that field of the body, alone."""
    if value is None:
        return ()
    place = "systemInstruction"
    fields = {"parts": [{"text": value}]} if isinstance(value, str) else camel(object_at(value, place))
    content = tuple(part for item, inside in _parts(fields, place) for part in _part(item, inside))
    return (Message("system", content, raw=({place: value},)),) if content else ()


def read_contents(turns: Sequence[Fields]) -> Iterator[Message]:
    """The messages that the turns are."""
    ids = CallIds(_given_ids(turns))
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
            raise refused(f"{place}.role", f"A turn's role is user or model, not {shown(role)}.")


def _user(fields: Fields, place: str, ids: CallIds) -> Message:
    content: list[Part] = []
    results: list[ToolResult] = []
    for part, inside in _parts(fields, place):
        if "functionCall" in part:
            raise refused(f"{inside}.functionCall", "A functionCall stands in a turn of the model.")
        if "functionResponse" in part:
            results.append(_result(part["functionResponse"], f"{inside}.functionResponse", ids))
        else:
            content += _part(part, inside)
    return Message("user", tuple(content), results=tuple(results), raw=(fields,))


def _model(turns: Sequence[tuple[Fields, str]], ids: CallIds) -> Message:
    """Neighbouring turns of the model."""
    content: list[Part] = []
    pieces: list[str] = []  # of the text that is being said
    calls: list[ToolCall] = []
    reasoning: list[str] = []
    for part, inside in (found for fields, place in turns for found in _parts(fields, place)):
        if "functionResponse" in part:
            raise refused(f"{inside}.functionResponse", "A functionResponse stands in a turn of the user.")
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


def _call(part: Fields, place: str, ids: CallIds) -> ToolCall:
    inside = f"{place}.functionCall"
    call = object_at(part["functionCall"], inside)
    name = string(call, "name", inside)
    args = call.get("args")
    arguments = "{}" if args is None else wire.encode(object_at(args, f"{inside}.args")).decode()
    signature = words(part, "thoughtSignature", place) or None
    return ToolCall(ids.call(words(call, "id", inside) or None, name), name, arguments, signature=signature)


def _result(value: Json, place: str, ids: CallIds) -> ToolResult:
    """A result: what stands under `output`, `result` or `error` alone, else the whole object as JSON."""
    fields = camel(object_at(value, place))
    identity, name = ids.result(words(fields, "id", place) or None, string(fields, "name", place))
    response, error = fields.get("response"), False
    if isinstance(response, dict) and len(response) == 1:
        (key,) = response
        error = key == "error"
        if error or key in _WORDS:
            response = response[key]
    text = response if isinstance(response, str) else "" if response is None else wire.encode(response).decode()
    media = tuple(part for item, inside in _parts(fields, place) for part in _part(item, inside))
    return ToolResult(identity, (*((TextPart(text),) if text else ()), *media), error=error, name=name)


# --- parts ------------------------------------------------------------------------------------------------------------


def _parts(fields: Fields, place: str) -> Iterator[tuple[Fields, str]]:
    """The parts of a turn, each with its place; a text may stand for a part."""
    for number, item in enumerate(list_of(fields, "parts", place)):
        inside = f"{place}.parts[{number}]"
        yield {"text": item} if isinstance(item, str) else camel(object_at(item, inside)), inside


def _part(part: Fields, place: str) -> tuple[Part, ...]:
    """What a part says that is no call and no result; none if it is empty."""
    match part:
        case {"text": value} if value is not None:
            text = string(part, "text", place, empty=True)
            return (TextPart(text),) if text else ()
        case {"inlineData": dict(value)}:
            value = camel(value)
            kind = words(value, "mimeType", f"{place}.inlineData")
            return (MediaPart(_kind(kind), part, kind, string(value, "data", f"{place}.inlineData")),)
        case {"fileData": dict(value)}:
            value = camel(value)
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
