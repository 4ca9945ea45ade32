"""Reader for the request bodies of Ollama's `/api/chat` and `/api/generate`.

A message has one string of text, a separate list of images, and calls whose arguments are objects. Calls and results
usually have no ids: a result names its tool and answers the oldest unanswered call to that tool (`pairing`). Requests
to `/api/generate` have no tools, and their prompt becomes a user message. Fields that only a local server can honor
(`raw`, `suffix`, `template`) are dropped if the upstream speaks another protocol. The protocol has no tool choice.
Replies are streamed by default. Sources: the request types of ollama-python 0.6 and ollama-js 0.6, and the API
documentation.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from streamtool.core.conversation import (
    Conversation,
    MediaPart,
    Message,
    Options,
    OutputFormat,
    Part,
    TextPart,
    Tool,
    ToolCall,
    ToolResult,
)
from streamtool.core.json_value import Fields, Json
from streamtool.core.turns import unanswered_calls
from streamtool.protocols.options import reading
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.fields import (
    body_fields,
    check_spelling,
    check_tool_count,
    flag,
    list_of,
    model_name,
    object_at,
    read_options,
    refused,
    shown,
    string,
    tool_name,
    tool_schema,
    words,
)
from streamtool.protocols.shared.pairing import PairedCallIds
from streamtool.settings import LimitSettings

_OPTIONS: Final = reading("ollama")
_MAGIC: Final = (("iVBOR", "image/png"), ("/9j/", "image/jpeg"), ("R0lGOD", "image/gif"), ("UklGR", "image/webp"))
"""Base64 prefixes of image formats, which identify the format because images are sent without their type."""


def read_request(body: bytes, limits: LimitSettings) -> Conversation:
    """Return the conversation in `body`. Raises `RequestError` or `TooLargeError`, whose `param` names the invalid
    field.
    """
    raw = body_fields(body, limits)
    conversation = Conversation(
        protocol="ollama",
        model=model_name(raw),
        messages=_messages(raw.get("messages")),
        tools=_tools(raw, limits, len(body)),
        stream=flag(raw, "stream", default=True),
        options=_options(raw),
        raw=raw,
    )
    for call in unanswered_calls(conversation.messages):
        sentence = f"The call to {shown(call.name)} has no result: add a message with the role `tool`."
        raise refused("messages", sentence)
    return conversation


def read_generate(body: bytes, limits: LimitSettings) -> Conversation:
    """Return the conversation in the body of a request to `/api/generate`; see `read_request`."""
    raw = body_fields(body, limits)
    prompt = _content(raw, "prompt", "")
    if not prompt:
        raise refused("prompt", "`prompt` is required and must not be empty.")
    system = words(raw, "system")
    return Conversation(
        protocol="ollama",
        model=model_name(raw),
        messages=(*((Message("system", (TextPart(system),)),) if system else ()), Message("user", prompt)),
        stream=flag(raw, "stream", default=True),
        options=_options(raw),
        raw=raw,
    )


def read_unread(body: bytes, limits: LimitSettings) -> Conversation | None:
    """Return a conversation without messages for a body that `read_request` rejects, or None if the body involves
    tools.

    A request without tools is forwarded verbatim, because the upstream may understand it. An empty request loads or
    unloads a model.
    """
    raw = body_fields(body, limits)
    messages = raw.get("messages")
    said = [message for message in messages if isinstance(message, dict)] if isinstance(messages, list) else []
    if raw.get("tools") or any(message.get("role") == "tool" or message.get("tool_calls") for message in said):
        return None
    model = raw.get("model")
    name = model if isinstance(model, str) else ""
    return Conversation("ollama", name, (), stream=raw.get("stream") is not False, raw=raw)


# --- messages ---------------------------------------------------------------------------------------------------------


def _messages(value: Json) -> tuple[Message, ...]:
    """Return the messages of a request. Adjacent results become one message, whose `raw` contains all of them."""
    if not isinstance(value, list) or not value:
        raise refused("messages", "A non-empty list of messages is required.")
    given = [object_at(item, f"messages[{position}]") for position, item in enumerate(value)]
    ids = PairedCallIds(_given_ids(given))
    messages: list[Message] = []
    for position, fields in enumerate(given):
        place = f"messages[{position}]"
        match fields.get("role"):
            case "system" | "user" as role:
                message = Message(role, _content(fields, "content", place), raw=(fields,))
            case "assistant":
                message = _assistant(fields, place, ids)
            case "tool":
                message = Message("user", results=(_result(fields, place, ids),), raw=(fields,))
                last = messages[-1] if messages else None
                if last is not None and last.results:
                    messages.pop()
                    message = Message("user", results=last.results + message.results, raw=last.raw + message.raw)
            case role:
                raise refused(
                    f"{place}.role", f"A message's role must be system, user, assistant or tool, not {shown(role)}."
                )
        messages.append(message)
    return tuple(messages)


def _given_ids(messages: Sequence[Fields]) -> Iterator[str]:
    for message in messages:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict) and isinstance(call.get("id"), str):
                yield call["id"]


def _assistant(fields: Fields, place: str, ids: PairedCallIds) -> Message:
    calls: list[ToolCall] = []
    for i, item in enumerate(list_of(fields, "tool_calls", place)):
        inside = f"{place}.tool_calls[{i}]"
        call = object_at(item, inside)
        function = object_at(call.get("function"), f"{inside}.function")
        name = string(function, "name", f"{inside}.function")
        identity = ids.call(words(call, "id", inside) or None, name)
        calls.append(ToolCall(identity, name, _arguments(function.get("arguments"), f"{inside}.function.arguments")))
    content = _content(fields, "content", place)
    return Message("assistant", content, tuple(calls), reasoning=words(fields, "thinking", place), raw=(fields,))


def _arguments(value: Json, place: str) -> str:
    if isinstance(value, str):  # some clients send a string, as in other protocols
        return value if value.strip() else "{}"
    return "{}" if value is None else wire.encode(object_at(value, place, "Arguments must be an object.")).decode()


def _result(fields: Fields, place: str, ids: PairedCallIds) -> ToolResult:
    name = words(fields, "tool_name", place) or words(fields, "name", place)
    identity, called = ids.result(words(fields, "tool_call_id", place) or None, name or None)
    return ToolResult(identity, _content(fields, "content", place), name=called)


def _content(fields: Fields, key: str, place: str) -> tuple[Part, ...]:
    """Return the text under the key, and the images in the same object."""
    text = words(fields, key, place)
    images = list_of(fields, "images", place)
    if not all(isinstance(image, str) for image in images):
        raise refused(f"{place}.images".lstrip("."), "`images` must be a list of base64 strings.")
    return (*((TextPart(text),) if text else ()), *map(_image, images))


def _image(data: str) -> MediaPart:
    kind = next((kind for begin, kind in _MAGIC if data.startswith(begin)), "image/png")
    return MediaPart("image", {"images": [data]}, kind, data)


# --- tools and options ------------------------------------------------------------------------------------------------


def _tools(raw: Fields, limits: LimitSettings, size: int) -> tuple[Tool, ...]:
    given = list_of(raw, "tools")
    check_tool_count(len(given), limits, "tools")
    tools: dict[str, Tool] = {}
    for i, item in enumerate(given):
        place = f"tools[{i}]"
        function, inside = object_at(object_at(item, place).get("function"), f"{place}.function"), f"{place}.function"
        tool = Tool(
            tool_name(function, inside, limits),
            words(function, "description", inside),
            tool_schema(function, "parameters", inside, limits, size),
        )
        if tools.setdefault(tool.name, tool) != tool:
            raise refused(place, f"Two different tools are named {shown(tool.name)}.")
    check_spelling(tools, "tools")
    return tuple(tools.values())


def _options(raw: Fields) -> Options:
    given = raw.get("options")
    options: Mapping[str, Json] = {} if given is None else object_at(given, "options")
    think = raw.get("think")
    effort = {True: "medium", False: "none"}[think] if isinstance(think, bool) else think
    return Options(
        **read_options(options, _OPTIONS, "options"),
        effort=effort if isinstance(effort, str) and effort else None,
        thinking=think if isinstance(think, bool) else None,
        output=_output(raw.get("format")),
    )


def _output(value: Json) -> OutputFormat | None:
    if value in (None, ""):
        return None
    return (
        OutputFormat()
        if value == "json"
        else OutputFormat(object_at(value, "format", "`format` must be `json` or a JSON Schema."))
    )
