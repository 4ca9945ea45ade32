"""`streamtool prompt`: the exact text that the model would read for a request."""

from typing import Any

from streamtool.cli.common import Screen, complain, read_settings, read_source
from streamtool.conversation import HOSTED, MediaPart, Part, TextPart
from streamtool.errors import SettingsError
from streamtool.http.templates import ChatTemplates
from streamtool.prompting import project
from streamtool.protocols import wire
from streamtool.protocols.registry import CLIENTS, client_protocol


def run(request: str, format_name: str | None, config: str | None, protocol: str | None = None) -> None:
    """Print the projected messages, each below its role. Raises RequestError and SettingsError."""
    settings = read_settings(config, {"format": format_name})
    body = read_source(request)
    protocol = protocol or guess(body)
    if protocol not in CLIENTS:
        raise SettingsError(f'--protocol: "{protocol}" is none of {", ".join(CLIENTS)}', param="protocol")
    conversation = client_protocol(protocol, address(protocol, body)).read_request(body, settings.limits)
    model = settings.for_model(conversation.model)
    model = model.with_template(ChatTemplates(settings).of(model))
    if format_name is not None and format_name != "auto":
        model = model.taught(format_name, "by --format")
    projected = project(conversation, model, model.format)
    screen = Screen()
    for message in projected.messages:
        screen.line((f"── {message.role} ──", "bold cyan"))
        screen.line("\n".join(shown(part) for part in message.content))
    complain(f"format {model.format}: {model.training.reason}")
    for note in projected.dropped:
        hosted = note.startswith(HOSTED)
        complain(f"left out: {note}, because only its origin can run it" if hosted else f"note: {note}")


def guess(body: bytes) -> str:
    """The protocol that a request looks like."""
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
    """A path at which such a request is made; "" where it makes no difference."""
    fields = fields_of(body)
    if protocol == "gemini":  # whose path names the model
        return f"/v1beta/models/{fields.get('model') or 'default'}:generateContent"
    return "/api/generate" if protocol == "ollama" and "prompt" in fields else ""


def fields_of(body: bytes) -> dict[str, Any]:
    """The fields of a body; none if it is no object: whoever reads it says what is wrong."""
    try:
        fields = wire.decode_tolerant(body)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def shown(part: Part) -> str:
    """A part as text; what is no text by its kind."""
    match part:
        case TextPart(text=text):
            return text
        case MediaPart(kind=kind):
            return f"[{kind}]"
