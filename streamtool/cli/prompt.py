"""`streamtool prompt`: the exact text that the model would read for a request."""

from streamtool.cli.common import Screen, complain, read_settings, read_source
from streamtool.conversation import HOSTED, MediaPart, Part, TextPart
from streamtool.errors import SettingsError
from streamtool.http.templates import ChatTemplates
from streamtool.prompting import project
from streamtool.protocols import wire
from streamtool.protocols.registry import CLIENTS


def run(request: str, format_name: str | None, config: str | None, protocol: str | None = None) -> None:
    """Print the projected messages, each below its role. Raises RequestError and SettingsError."""
    settings = read_settings(config, {"format": format_name})
    body = read_source(request)
    protocol = protocol or guess(body)
    if protocol not in CLIENTS:
        raise SettingsError(f'--protocol: "{protocol}" is none of {", ".join(CLIENTS)}', param="protocol")
    conversation = CLIENTS[protocol].read_request(body, settings.limits)
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
    try:
        fields = wire.decode_tolerant(body)
    except ValueError:
        return "chat"  # which says what is wrong
    match fields:
        case {"input": _}:
            return "responses"
        case {"system": _} | {"tools": [{"input_schema": _}, *_]}:
            return "messages"
    return "chat"


def shown(part: Part) -> str:
    """A part as text; what is no text by its kind."""
    match part:
        case TextPart(text=text):
            return text
        case MediaPart(kind=kind):
            return f"[{kind}]"
