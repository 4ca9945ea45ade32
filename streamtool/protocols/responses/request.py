"""Reader for Responses request bodies.

The reader accepts the oddities that real agents send. For anything that cannot be honored (such as a prompt stored at
the origin), it raises a `RequestError` whose `param` names the invalid field. If the request refers to earlier items,
the conversation's `raw["input"]` contains all items, beginning with the earlier ones; otherwise, `raw` is the body as
received. Sources: the OpenAI API reference and the request types of openai-python 3.52.
"""

from typing import Final

from streamtool.core.conversation import Conversation, Message, Options, OutputFormat, TextPart
from streamtool.core.json_value import Fields
from streamtool.protocols.interfaces import Recall
from streamtool.protocols.options import reading
from streamtool.protocols.responses.items import read_items
from streamtool.protocols.responses.memory import all_items
from streamtool.protocols.responses.tools import read_tools, with_choice
from streamtool.protocols.shared.fields import (
    body_fields,
    flag,
    list_of,
    model_name,
    object_at,
    read_options,
    refused,
    words,
)
from streamtool.settings import LimitSettings

_OPTIONS: Final = reading("responses")
_UNSUPPORTED: Final = {
    "prompt": "Prompts are not stored here: send the prompt's text in `instructions` and `input`.",
}
_NOT_FORWARDABLE: Final = (*_UNSUPPORTED, "background", "conversation", "previous_response_id")
"""Fields that make it impossible to forward a body verbatim."""
_HAS_NO_TOOLS: Final = frozenset({"message", "reasoning", None})
"""Types of items that do not involve tools."""


def _empty_store(_: str) -> None:
    """Return None for every id, as an empty store does."""


def read_request(body: bytes, limits: LimitSettings, recall: Recall = _empty_store) -> Conversation:
    """Return the conversation in `body`. Raises `RequestError` or `TooLargeError`, whose `param` names the invalid
    field.

    `recall` returns the value stored under the id of a response or an item.
    """
    raw = body_fields(body, limits)
    model = model_name(raw)
    for key, sentence in _UNSUPPORTED.items():
        if raw.get(key) not in (None, False):
            raise refused(key, sentence)
    background = flag(raw, "background")
    if background and raw.get("store") is False:
        raise refused("background", "A background response must be stored: omit `store`, or set it to true.")
    given = all_items(raw, recall, limits, len(body))
    if given.has_stored_items:
        raw = {**raw, "input": [item for _, item in given.items], "conversation": given.conversation}
    items = read_items(given.items)
    messages = items.messages
    instructions = words(raw, "instructions")
    if instructions:
        messages = (Message("system", (TextPart(instructions),)), *messages)
    if not messages:
        raise refused("input", "`input` must contain at least one message.")
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


def read_count(body: bytes, limits: LimitSettings, recall: Recall = _empty_store) -> Conversation:
    """Return the conversation whose tokens are to be counted. Raises the same errors as `read_request`."""
    return read_request(body, limits, recall)


def read_unread(body: bytes, limits: LimitSettings) -> Conversation | None:
    """Return a conversation without messages for a body that `read_request` rejects, or None if the body involves
    tools.

    A request without tools is forwarded verbatim, because the upstream may understand it. None is also returned for a
    body that refers to stored items, because these may involve tools.
    """
    raw = body_fields(body, limits)
    if any(raw.get(key) not in (None, False) for key in _NOT_FORWARDABLE):
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
    return Options(
        **read_options(raw, _OPTIONS),
        effort=effort if isinstance(effort, str) else None,
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
            return None  # a type that only some upstreams support, such as a grammar
        case _:
            raise refused("text.format", "`format` must be an object whose `type` is text, json_object or json_schema.")
