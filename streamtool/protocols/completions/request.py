"""Writer for legacy completions request bodies, in which the messages become one prompt.

The model's template (`ModelSettings.template`) marks the turns. If the conversation ends with an assistant message,
that turn is left open for the model to continue. The protocol has no tools. Other content that the protocol cannot
express is replaced with a placeholder such as `[image]`.
"""

from collections.abc import Sequence
from typing import Final

from streamtool.core.conversation import Conversation, Forcing, Message, Part, TextPart
from streamtool.core.errors import RequestError
from streamtool.core.json_value import Json
from streamtool.protocols.completions.templates import (
    TEMPLATES,
    Template,
    escape_marks,
    role_lines,
    special_tokens,
)
from streamtool.protocols.options import writing
from streamtool.protocols.shared import wire
from streamtool.settings import ModelSettings

HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = ()
"""Headers to send with every request."""
KEY_HEADER: Final = b"authorization"
"""Header that carries the API key."""
MODELS_PATH: Final = "/v1/models"

_OPTIONS: Final = writing("completions")
_STOPS: Final = 4
"""Number of stop sequences that every server accepts. The template's sequences take priority, because the exchange
itself applies the client's.
"""


def request_path(model: ModelSettings, *, stream: bool) -> str:  # noqa: ARG001  the path is constant
    """Return the request path."""
    return "/v1/completions"


def write_request(conversation: Conversation, model: ModelSettings, *, stream: bool) -> bytes:
    """Return the JSON body of the request for the next reply."""
    if not conversation.messages:
        raise RequestError("A request without messages cannot be converted to a prompt.", param="messages")
    if conversation.tools:
        raise RequestError("This upstream has no native tools; tools must be emulated.", param="tools")
    template = TEMPLATES[model.template]
    body: dict[str, Json] = {
        **model.fields,
        "model": model.name,
        "prompt": prompt(conversation.messages, template),
    }
    body.update(wire.write_options(conversation.options, _OPTIONS))
    if conversation.forcing is not None:
        body.update(_forcing(conversation.forcing))
    body["stop"] = list(dict.fromkeys((*template.stop, *conversation.options.stop)))[:_STOPS]
    body["stream"] = stream
    if stream and conversation.include_usage:
        body["stream_options"] = {"include_usage": True}
    return wire.encode_request(body)


_WORD: Final = 1
"""llama.cpp's number for the trigger type "word"."""


def _forcing(forcing: Forcing) -> dict[str, Json]:
    """Return the fields that force a call. A prefill requires no field, because it is already at the end of the prompt.

    Source: llama.cpp's server, which requires a trigger that is a single token to be a preserved token as well.
    """
    if forcing.way != "grammar" or not forcing.triggers:
        return wire.constraint(forcing)
    triggers = [{"type": _WORD, "value": word} for word in forcing.triggers]
    lazy = {"grammar_lazy": True, "grammar_triggers": triggers, "preserved_tokens": list(forcing.triggers)}
    return {**wire.constraint(forcing), **lazy}


def prompt(messages: Sequence[Message], template: Template) -> str:
    """Return the messages as one prompt that ends where the model's turn begins.

    The text of users and results cannot end a turn or begin another one: the template's special tokens in it get a
    backslash. A tokenizer would not read them as text in any case.
    """
    pieces: list[str] = []
    special = special_tokens(template)
    waiting = ""  # system text that has not been put into a user turn yet
    for message in messages:
        before, behind = getattr(template, message.role)
        text = _text(message, template)
        if message.role == "user":
            text = escape_marks(text, special)
        if message.role == "system" and template.inside:
            waiting += before + text + behind
            continue
        if waiting and message.role == "user":
            text, waiting = waiting + text, ""
        pieces += (before, text, behind)
    if waiting:
        pieces += (template.user[0], waiting.rstrip(), template.user[1])
    elif messages[-1].role == "assistant":
        return "".join(pieces[:-1])
    return "".join(pieces) + template.reply


def open_turn(text: str, template: Template) -> str:
    """Return the text of an assistant message that continues the model's turn after the template's `reply`, if the
    markers allow it: `prompt` writes the text after the marker of an assistant message.
    """
    before = template.assistant[0]
    whole = template.reply + text
    return whole.removeprefix(before) if text and whole.startswith(before) else text


def _text(message: Message, template: Template) -> str:
    """Return the message as text, with a placeholder for each part that is not text. No line of a result begins a
    turn.
    """
    lines = [_joined(result.content) for result in message.results]
    roles = role_lines(template) if lines else None
    if roles is not None:
        lines = [escape_marks(line, roles) for line in lines]
    if message.content or not (message.results or message.calls):
        lines.append(_joined(message.content))
    lines += [f"{call.name}({call.arguments})" for call in message.calls]
    return "\n".join(lines)


def _joined(parts: Sequence[Part]) -> str:
    return "\n".join(part.text if isinstance(part, TextPart) else f"[{part.kind}]" for part in parts)
