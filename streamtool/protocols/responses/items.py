"""Reads the items of a request's input into messages.

The input is one flat list: messages, reasoning, calls and results are items of their own. Neighbouring items of the
assistant become one message with its calls, neighbouring results one message of the user. Items without `type` that
have a role are messages. What only the origin's own tools leave behind (`web_search_call`), and what only the origin
can read (`compaction`), is left out and recorded; it does not part the items around it.
"""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import frozen

from streamtool.conversation import MediaPart, Message, Part, TextPart, ToolCall, ToolResult
from streamtool.protocols import wire
from streamtool.protocols.fields import Fields, list_of, media, object_at, refused, shown, string, words

Json = Any  # a decoded JSON value

_TEXTS: Final = {
    "input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal", "summary_text": "text",
    "reasoning_text": "text",
}  # fmt: skip
"""The kinds of parts that are text, and the key under which it stands."""
_DOCUMENTS: Final = ("text/", "application/json", "application/xml")
"""How the types of files begin that are text."""


@frozen
class Items:
    """What the items say."""

    messages: tuple[Message, ...]
    tools: tuple[tuple[str, list[Json]], ...]
    """The lists of tools among them, each with its place."""
    dropped: tuple[str, ...]
    """What was left out, for the log."""


class _Turns:
    """Makes messages of items; those of one turn are gathered until an item of another one comes."""

    __slots__ = ("_calls", "_content", "_names", "_raw", "_reasoning", "_results", "_said", "dropped", "messages",
                 "tools")  # fmt: skip

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.tools: list[tuple[str, list[Json]]] = []
        self.dropped: list[str] = []
        self._names: dict[str, str] = {}  # of the calls seen so far, by id
        self._raw: list[Fields] = []  # of the turn that is gathered: the assistant's, or results
        self._said = False
        self._content: list[Part] = []
        self._calls: list[ToolCall] = []
        self._reasoning: list[str] = []
        self._results: list[ToolResult] = []

    def add(self, fields: Fields, place: str) -> None:
        kind = fields.get("type") or ("message" if "role" in fields else None)
        match kind:
            case "message":
                self._message(fields, place)
            case "function_call" | "custom_tool_call":
                self._assistant(fields)
                call = _call(fields, place, custom=kind == "custom_tool_call")
                self._names[call.id] = call.name
                self._calls.append(call)
            case "function_call_output" | "custom_tool_call_output":
                if not self._results:
                    self.flush()
                self._raw.append(fields)
                identity = string(fields, "call_id", place)
                name = self._names.get(identity)
                output = _content(fields, "output", place, optional=True)
                cut = fields.get("status") in ("incomplete", "in_progress")
                self._results.append(ToolResult(identity, output, name=name, partial=cut))
            case "reasoning":
                self._assistant(fields)
                self._reasoning += _thoughts(fields)
            case "additional_tools":
                self.tools.append((f"{place}.tools", list_of(fields, "tools", place)))
            case str():
                self.dropped.append(f"input item of type {kind}")
            case _:
                raise refused(f"{place}.type", "An input item says what it is in `type`, or has a `role`.")

    def flush(self) -> None:
        """The turn that was gathered is over."""
        if self._results:
            self.messages.append(Message("user", results=tuple(self._results), raw=tuple(self._raw)))
        elif self._said or self._calls or self._reasoning:
            self.messages.append(
                Message(
                    "assistant",
                    tuple(self._content),
                    calls=tuple(self._calls),
                    reasoning="\n\n".join(self._reasoning),
                    raw=tuple(self._raw),
                )
            )
        for gathered in (self._results, self._content, self._calls, self._reasoning, self._raw):
            gathered.clear()
        self._said = False

    def _assistant(self, fields: Fields) -> None:
        if self._results:
            self.flush()
        self._raw.append(fields)

    def _message(self, fields: Fields, place: str) -> None:
        match fields.get("role"):
            case "assistant":
                self._assistant(fields)
                self._said = True
                self._content += _content(fields, "content", place, optional=True)
            case "user":
                self.flush()
                self.messages.append(Message("user", _content(fields, "content", place), raw=(fields,)))
            case "system" | "developer":
                self.flush()
                self.messages.append(Message("system", _content(fields, "content", place), raw=(fields,)))
            case role:
                known = "developer, system, user or assistant"
                raise refused(f"{place}.role", f"A message's role is {known}, not {shown(role)}.")


def read_items(items: Sequence[tuple[str, Json]]) -> Items:
    """The messages of the items, each of which comes with its place; raises RequestError."""
    turns = _Turns()
    for place, item in items:
        turns.add(object_at(item, place), place)
    turns.flush()
    _no_open_calls(turns.messages)
    return Items(tuple(turns.messages), tuple(turns.tools), tuple(dict.fromkeys(turns.dropped)))


def _no_open_calls(messages: Sequence[Message]) -> None:
    """Refuse a conversation that ends while a call waits for its result: there is nothing that could be answered."""
    answered: set[str] = set()
    for message in reversed(messages):
        if message.calls:
            for call in message.calls:
                if call.id not in answered:
                    raise refused(
                        "input",
                        f"No tool output found for function call {shown(call.id)} of {shown(call.name)}: "
                        "answer it with an item of type `function_call_output` before asking for the next reply.",
                    )
            return
        if not message.results:
            return
        answered.update(result.id for result in message.results)


# --- single items -----------------------------------------------------------------------------------------------------


def _call(fields: Fields, place: str, *, custom: bool) -> ToolCall:
    identity = string(fields, "call_id", place)
    name = string(fields, "name", place)
    namespace = words(fields, "namespace", place)
    if namespace:
        name = f"{namespace}.{name}"
    if custom:
        return ToolCall(identity, name, words(fields, "input", place), custom=True)
    arguments = fields.get("arguments")
    if isinstance(arguments, Mapping):  # some agents send the object itself
        arguments = wire.encode(arguments).decode()
    elif arguments is not None and not isinstance(arguments, str):
        raise refused(f"{place}.arguments", "Arguments are a string that holds a JSON object.")
    return ToolCall(identity, name, arguments if arguments and arguments.strip() else "{}")


def _thoughts(fields: Fields) -> list[str]:
    """The pieces of text of a reasoning item: its content, else its summary."""
    for key in ("content", "summary"):
        value = fields.get(key)
        parts = value if isinstance(value, list) else ()
        found = [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
        if any(found):
            return [text for text in found if text]
    return []


def _content(fields: Fields, key: str, place: str, *, optional: bool = False) -> tuple[Part, ...]:
    value = fields.get(key)
    if isinstance(value, str):
        return (TextPart(value),) if value else ()
    if value is None and optional:
        return ()
    if not isinstance(value, list):
        raise refused(f"{place}.{key}", f"`{key}` is a string or a list of parts.")
    return tuple(_part(item, f"{place}.{key}[{i}]") for i, item in enumerate(value))


def _part(value: Json, place: str) -> Part:
    if isinstance(value, str):  # not legal at the origin, but its meaning is plain
        return TextPart(value)
    fields = object_at(value, place)
    kind = fields.get("type")
    if not isinstance(kind, str):
        raise refused(f"{place}.type", "A part says what it is in `type`: input_text, input_image, input_file …")
    if kind in _TEXTS:
        return TextPart(string(fields, _TEXTS[kind], place, empty=True))
    match kind, fields:
        case "input_image" | "computer_screenshot", {"image_url": str(url) | {"url": str(url)}}:
            return media("image", fields, url)
        case "input_image", _:
            return MediaPart("image", fields)
        case "input_audio", {"input_audio": {"data": str(data), "format": str(format_)}}:
            return MediaPart("audio", fields, f"audio/{format_}", data)
        case "input_audio", _:
            return MediaPart("audio", fields)
        case "input_file", _:
            return _file(fields)
    return MediaPart(kind, fields)


def _file(fields: Fields) -> Part:
    """The file; a document that is text becomes text under its name."""
    data, url, name = (fields.get(key) for key in ("file_data", "file_url", "filename"))
    name = name if isinstance(name, str) else ""
    if not isinstance(data, str):
        return media("file", fields, url if isinstance(url, str) else "", name)
    if data[:5].lower() != "data:":
        kind = "application/pdf" if name.lower().endswith(".pdf") else "application/octet-stream"
        return MediaPart("file", fields, kind, data, name=name)
    file = media("file", fields, data, name)
    if file.type.startswith(_DOCUMENTS):
        try:
            text = b64decode(file.data).decode()
        except ValueError:  # not base64, or not UTF-8
            return file
        return TextPart(f"{name}:\n{text}" if name else text)
    return file
