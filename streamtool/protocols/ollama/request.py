"""Reads the body of a request to Ollama's `/api/chat` or `/api/generate` into a `Conversation`.

A message has one string of text, images beside it, and calls whose arguments are objects. Calls and results mostly bear
no ids: a result names its tool, and answers the first open call of it (`pairing`). `/api/generate` knows no tools; its
prompt is the message of a user, and what only a local server can do with it (`raw`, `suffix`, `template`) is left out
towards another protocol. There is no choice of tools here. The reply is streamed unless the request says otherwise.
Source: the request types of ollama-python 0.6 and ollama-js 0.6, and the API documentation.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from streamtool.conversation import (
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
from streamtool.errors import TooLargeError
from streamtool.protocols import wire
from streamtool.protocols.fields import (
    Fields,
    body_fields,
    flag,
    integer,
    list_of,
    model_name,
    number,
    object_at,
    refused,
    shown,
    string,
    strings,
    tool_name,
    tool_schema,
    words,
)
from streamtool.protocols.ollama.request_fields import REQUEST_FIELDS
from streamtool.protocols.pairing import CallIds
from streamtool.settings import LimitSettings
from streamtool.turns import unanswered

Json = Any  # a decoded JSON value

FIELDS: Final = frozenset(name for name, what in REQUEST_FIELDS.items() if "left out" not in what)
"""The fields of the body that are understood, or mean nothing where no model is loaded; others are lost on the way to
another protocol."""
_NO_LIMIT: Final = 0
"""Tokens; what is less (-1, -2) asks for a reply without a limit."""
_MAGIC: Final = (("iVBOR", "image/png"), ("/9j/", "image/jpeg"), ("R0lGOD", "image/gif"), ("UklGR", "image/webp"))
"""How images begin in base64: they come without their type."""


def read_request(body: bytes, limits: LimitSettings) -> Conversation:
    """The conversation that `body` asks for; raises `RequestError` or `TooLargeError`, `param` naming the place."""
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
    for call in unanswered(conversation.messages):
        sentence = f"The call of {shown(call.name)} has no result: answer it with a message of the role `tool`."
        raise refused("messages", sentence)
    return conversation


def read_generate(body: bytes, limits: LimitSettings) -> Conversation:
    """As `read_request`, of a body for `/api/generate`."""
    raw = body_fields(body, limits)
    prompt = _content(raw, "prompt", "")
    if not prompt:
        raise refused("prompt", "Say in `prompt` what the model is to answer.")
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
    """A conversation without messages for a body that `read_request` refuses; None if it has to do with tools.

    What has nothing to do with tools passes as it came: whoever answers it may know what it means. A body that asks for
    nothing loads a model, or unloads it.
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
    """The messages of a request. Neighbouring results become one message, whose `raw` holds all of them."""
    if not isinstance(value, list) or not value:
        raise refused("messages", "Give at least one message in a list.")
    given = [object_at(item, f"messages[{position}]") for position, item in enumerate(value)]
    ids = CallIds(_given_ids(given))
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
                    f"{place}.role", f"A message's role is system, user, assistant or tool, not {shown(role)}."
                )
        messages.append(message)
    return tuple(messages)


def _given_ids(messages: Sequence[Fields]) -> Iterator[str]:
    for message in messages:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict) and isinstance(call.get("id"), str):
                yield call["id"]


def _assistant(fields: Fields, place: str, ids: CallIds) -> Message:
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
    if isinstance(value, str):  # some clients send what other protocols have here
        return value if value.strip() else "{}"
    return "{}" if value is None else wire.encode(object_at(value, place, "Arguments are an object.")).decode()


def _result(fields: Fields, place: str, ids: CallIds) -> ToolResult:
    name = words(fields, "tool_name", place) or words(fields, "name", place)
    identity, called = ids.result(words(fields, "tool_call_id", place) or None, name or None)
    return ToolResult(identity, _content(fields, "content", place), name=called)


def _content(fields: Fields, key: str, place: str) -> tuple[Part, ...]:
    """The text under the key, and the images beside it."""
    text = words(fields, key, place)
    images = list_of(fields, "images", place)
    if not all(isinstance(image, str) for image in images):
        raise refused(f"{place}.images".lstrip("."), "`images` is a list of strings in base64.")
    return (*((TextPart(text),) if text else ()), *map(_image, images))


def _image(data: str) -> MediaPart:
    kind = next((kind for begin, kind in _MAGIC if data.startswith(begin)), "image/png")
    return MediaPart("image", {"images": [data]}, kind, data)


# --- tools and options ------------------------------------------------------------------------------------------------


def _tools(raw: Fields, limits: LimitSettings, size: int) -> tuple[Tool, ...]:
    given = list_of(raw, "tools")
    if len(given) > limits.tools:
        raise TooLargeError(
            f"More than {limits.tools} tools in one request (limits.tools).", param="tools", code="too_many_tools"
        )
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
    return tuple(tools.values())


def _options(raw: Fields) -> Options:
    given = raw.get("options")
    options: Mapping[str, Json] = {} if given is None else object_at(given, "options")
    most, think = number(options, "num_predict", "options"), raw.get("think")
    effort = {True: "medium", False: "none"}[think] if isinstance(think, bool) else think
    return Options(
        stop=strings(options, "stop"),
        max_tokens=integer(options, "num_predict", "options") if most is not None and most > _NO_LIMIT else None,
        temperature=number(options, "temperature", "options"),
        top_p=number(options, "top_p", "options"),
        top_k=integer(options, "top_k", "options"),
        seed=integer(options, "seed", "options", least=-(2**63)),
        presence_penalty=number(options, "presence_penalty", "options"),
        frequency_penalty=number(options, "frequency_penalty", "options"),
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
        else OutputFormat(object_at(value, "format", "`format` is a JSON Schema or `json`."))
    )
