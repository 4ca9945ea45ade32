"""Reads the body of a Responses request into a `Conversation`.

The reading is as tolerant as real agents need and as strict as honesty needs: what is merely odd is taken, what cannot
be honoured (a reply in the background, a conversation or prompt that the origin keeps) is a `RequestError` whose
`param` names the place. Where the request refers to what was said before, `raw["input"]` of the conversation holds all
items, the earlier ones first; `raw` is otherwise the body as it came.
Source: the OpenAI API reference and the request types of openai-python 3.52.
"""

from typing import Any, Final

from streamtool.conversation import Conversation, Message, Options, OutputFormat, TextPart
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
    words,
)
from streamtool.protocols.responses.items import read_items
from streamtool.protocols.responses.memory import Recall, all_items
from streamtool.protocols.responses.request_fields import REQUEST_FIELDS
from streamtool.protocols.responses.tools import read_tools, with_choice
from streamtool.settings import LimitSettings

Json = Any  # a decoded JSON value

FIELDS: Final = frozenset(name for name, what in REQUEST_FIELDS.items() if "left out" not in what)
"""The fields of the body that are understood; the others mean nothing to an upstream of another protocol."""
_CANNOT: Final = {
    "prompt": "Prompts are not stored here: send the text in `instructions` and `input`.",
}
_NOT_ALONE: Final = (*_CANNOT, "background", "conversation", "previous_response_id")
"""Fields with which a body cannot pass as it came."""
_HAS_NO_TOOLS: Final = frozenset({"message", "reasoning", None})
"""Types of items that have nothing to do with tools."""


def _nothing(_: str) -> None:
    """Nothing is remembered."""


def read_request(body: bytes, limits: LimitSettings, recall: Recall = _nothing) -> Conversation:
    """The conversation that `body` asks for; raises `RequestError` or `TooLargeError`, `param` naming the place.

    `recall` gives what was remembered under the id of a response or an item.
    """
    raw = body_fields(body, limits)
    model = model_name(raw)
    for key, sentence in _CANNOT.items():
        if raw.get(key) not in (None, False):
            raise refused(key, sentence)
    background = flag(raw, "background")
    if background and raw.get("store") is False:
        raise refused("background", "A response in the background is stored: leave `store` out, or set it to true.")
    given = all_items(raw, recall, limits, len(body))
    if given.changed:
        raw = {**raw, "input": [item for _, item in given.items], "conversation": given.conversation}
    items = read_items(given.items)
    messages = items.messages
    instructions = words(raw, "instructions")
    if instructions:
        messages = (Message("system", (TextPart(instructions),)), *messages)
    if not messages:
        raise refused("input", "Give at least one message in `input`.")
    known = {call.name for message in items.messages for call in message.calls}
    if isinstance(choice := raw.get("tool_choice"), dict):
        known.add(str(choice.get("name")))
    offer = read_tools(list_of(raw, "tools"), items.tools, limits, given.size, known=known)
    conversation = Conversation(
        protocol="responses",
        model=model,
        messages=messages,
        tools=offer.tools,
        stream=flag(raw, "stream") or background,
        background=background,
        options=_options(raw),
        dropped=(*offer.dropped, *given.dropped, *items.dropped),
        raw=raw,
    )
    return with_choice(conversation, raw, hosted=bool(offer.dropped))


def read_count(body: bytes, limits: LimitSettings, recall: Recall = _nothing) -> Conversation:
    """The conversation whose tokens are to be counted; raises as `read_request` does."""
    return read_request(body, limits, recall)


def read_unread(body: bytes, limits: LimitSettings) -> Conversation | None:
    """A conversation without messages for a body that `read_request` refuses; None if it has to do with tools.

    What has nothing to do with tools passes as it came: whoever answers it may know what it means. A body that refers
    to what it does not hold may have to do with tools, and so has no such conversation.
    """
    raw = body_fields(body, limits)
    if any(raw.get(key) not in (None, False) for key in _NOT_ALONE):
        return None
    if raw.get("tools") not in (None, []) or raw.get("tool_choice") not in (None, "auto", "none"):
        return None
    items = raw.get("input")
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict):
            kind = item.get("type")
            if not (kind is None or isinstance(kind, str)) or kind not in _HAS_NO_TOOLS:
                return None
            if kind is None and "role" not in item:
                return None
    model = raw.get("model")
    name = model if isinstance(model, str) else ""
    return Conversation("responses", name, (), stream=raw.get("stream") is True, raw=raw)


# --- single values ----------------------------------------------------------------------------------------------------


def _options(raw: Fields) -> Options:
    reasoning = raw.get("reasoning")
    effort = None if reasoning is None else object_at(reasoning, "reasoning").get("effort")
    user = raw.get("user") or raw.get("safety_identifier")
    return Options(
        max_tokens=integer(raw, "max_output_tokens"),
        temperature=number(raw, "temperature"),
        top_p=number(raw, "top_p"),
        effort=effort if isinstance(effort, str) else None,
        user=user if isinstance(user, str) else None,
        output=_output(raw),
    )


def _output(raw: Fields) -> OutputFormat | None:
    text = raw.get("text")
    match None if text is None else object_at(text, "text").get("format"):
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return OutputFormat()
        case {"type": "json_schema", "schema": dict(schema), **rest}:
            return OutputFormat(schema, str(rest.get("name") or "answer"), strict=rest.get("strict") is True)
        case {"type": "json_schema"}:
            return OutputFormat()
        case {"type": str()}:
            return None  # of a kind that only some upstreams know (a grammar)
        case _:
            raise refused("text.format", "`format` is an object with a `type`: text, json_object or json_schema.")
