"""Writes a `Conversation` as the body of a legacy completions request: the messages become one prompt.

The model's template (`ModelSettings.template`) marks the turns. A conversation that ends with the assistant's words is
left open, for the model to go on. This protocol has no tools of its own; what else it cannot say is named in the text.
"""

from collections.abc import Sequence
from typing import Any, Final

from streamtool.conversation import Conversation, Forcing, Message, Options, Part, TextPart
from streamtool.errors import RequestError
from streamtool.protocols import wire
from streamtool.protocols.completions.templates import TEMPLATES, Template
from streamtool.settings import ModelSettings

Json = Any  # a decoded JSON value

HEADERS: Final[tuple[tuple[bytes, bytes], ...]] = ()
"""What every request bears."""
KEY_HEADER: Final = b"authorization"
"""The header that bears the key."""
MODELS_PATH: Final = "/v1/models"

_TOKENS: Final = 4096
"""The limit if the client names none: the protocol's own default is 16."""
_STOPS: Final = 4
"""Stop sequences that every server takes; the template's come first, and the exchange looks for the caller's itself."""


def request_path(model: ModelSettings, *, stream: bool) -> str:  # noqa: ARG001  other protocols name both in the path
    """Where requests go."""
    return "/v1/completions"


def write_request(conversation: Conversation, model: ModelSettings, *, stream: bool) -> bytes:
    """The JSON body that asks the model of the upstream for the next reply."""
    if not conversation.messages:
        raise RequestError("A request without messages cannot be written as a prompt.", param="messages")
    if conversation.tools:
        raise RequestError("This upstream has no tools of its own; they have to be emulated.", param="tools")
    template = TEMPLATES[model.template]
    body: dict[str, Json] = {"model": model.name, "prompt": prompt(conversation.messages, template)}
    body.update(_options(conversation.options))
    if conversation.forcing is not None:
        body.update(_forcing(conversation.forcing))
    if conversation.options.n > 1:
        body["n"] = conversation.options.n
    body["stop"] = list(dict.fromkeys((*template.stop, *conversation.options.stop)))[:_STOPS]
    body["stream"] = stream
    if stream and conversation.include_usage:
        body["stream_options"] = {"include_usage": True}
    return wire.encode_request(body)


def _options(options: Options) -> dict[str, Json]:
    fields = {
        "max_tokens": _TOKENS if options.max_tokens is None else options.max_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "seed": options.seed,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
    }
    return {key: value for key, value in fields.items() if value is not None}


_WORD: Final = 1
"""The type of a trigger that is a word, as llama.cpp numbers them."""


def _forcing(forcing: Forcing) -> dict[str, Json]:
    """What holds the model to a call; a beginning of the reply stands at the end of the prompt already.

    Source: the server of llama.cpp: a trigger that is one token has to be among the preserved ones.
    """
    if forcing.way == "prefill":
        return {}
    if forcing.way != "grammar" or not forcing.triggers:
        return wire.constraint(forcing)
    triggers = [{"type": _WORD, "value": word} for word in forcing.triggers]
    lazy = {"grammar_lazy": True, "grammar_triggers": triggers, "preserved_tokens": list(forcing.triggers)}
    return {**wire.constraint(forcing), **lazy}


def prompt(messages: Sequence[Message], template: Template) -> str:
    """The messages as one text, up to where the model speaks next."""
    pieces: list[str] = []
    waiting = ""  # what the system has said and no turn of the user has taken up
    for message in messages:
        before, behind = getattr(template, message.role)
        text = _text(message)
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


def _text(message: Message) -> str:
    """What the message says, with everything named that is no text."""
    lines = [_joined(result.content) for result in message.results]
    if message.content or not (message.results or message.calls):
        lines.append(_joined(message.content))
    lines += [f"{call.name}({call.arguments})" for call in message.calls]
    return "\n".join(lines)


def _joined(parts: Sequence[Part]) -> str:
    return "\n".join(part.text if isinstance(part, TextPart) else f"[{part.kind}]" for part in parts)
