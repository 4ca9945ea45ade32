"""`streamtool prompt`: print the exact text that the model would read for a request."""

from typing import Any

from streamtool.cli.common import Screen, print_error, read_settings, read_source
from streamtool.core.conversation import HOSTED, MediaPart, Part, TextPart
from streamtool.core.errors import SettingsError
from streamtool.prompting import project, stabilize
from streamtool.protocols.registry import CLIENTS, client_protocol
from streamtool.protocols.shared import wire
from streamtool.protocols.table import PROTOCOL_ALIASES
from streamtool.settings.readers import RESPONSE_TEMPLATE
from streamtool.upstream.chat_templates import ChatTemplates


def run(
    request: str, format_name: str | None, config: str | None, protocol: str | None = None, context: int | None = None
) -> None:
    """Print the projected messages, each below its role. Raises RequestError and SettingsError."""
    settings = read_settings(config, {"format": format_name, "context": context})
    body = read_source(request)
    protocol = PROTOCOL_ALIASES.get(protocol, protocol) if protocol else guess_protocol(body)
    if protocol not in CLIENTS:
        raise SettingsError(f'--protocol: "{protocol}" is not one of {", ".join(CLIENTS)}', param="protocol")
    conversation = client_protocol(protocol, address(protocol, body)).read_request(body, settings.limits)
    model = ChatTemplates(settings).inform(settings.for_model(conversation.model))
    if format_name not in (None, "auto", RESPONSE_TEMPLATE):
        model = model.teaching(settings.format, "by --format")
    if settings.stable_prefix:
        conversation = stabilize(conversation)
    projected = project(conversation, model, model.format)
    screen = Screen()
    for message in projected.messages:
        screen.line((f"── {message.role} ──", "bold cyan"))
        screen.line("\n".join(text_of(part) for part in message.content))
    print_error(f"format {model.format}: {model.training.reason}")
    for note in projected.dropped:
        hosted = note.startswith(HOSTED)
        print_error(f"left out: {note}, because only its vendor can run it" if hosted else f"note: {note}")


def guess_protocol(body: bytes) -> str:
    """Guess a request's protocol from its fields."""
    match fields_of(body):
        case {"input": _}:
            return "responses"
        case {"contents": _}:
            return "gemini"
        case {"prompt": _} | {"options": _} | {"keep_alive": _} | {"think": _} | {"format": _}:
            return "ollama"
        case {"system": _} | {"tools": [{"input_schema": _}, *_]}:
            return "messages"
    return "chat"


def address(protocol: str, body: bytes) -> str:
    """Return a URL path for a request with this body, or "" if the path makes no difference."""
    fields = fields_of(body)
    if protocol == "gemini":  # the path names the model
        return f"/v1beta/models/{fields.get('model') or 'default'}:generateContent"
    return "/api/generate" if protocol == "ollama" and "prompt" in fields else ""


def fields_of(body: bytes) -> dict[str, Any]:
    """Return the fields of a body, or an empty dict if it is not a JSON object (`read_request` reports that)."""
    try:
        fields = wire.decode_tolerant(body)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def text_of(part: Part) -> str:
    """Return a part as text. A media part is represented by its kind in brackets."""
    match part:
        case TextPart(text=text):
            return text
        case MediaPart(kind=kind):
            return f"[{kind}]"
