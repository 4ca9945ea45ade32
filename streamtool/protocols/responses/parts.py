"""Reader for the parts of an item: text, images, audio and files. The content of a text file becomes text."""

from base64 import b64decode
from typing import Final

from streamtool.core.conversation import MediaPart, Part, TextPart
from streamtool.core.json_value import Fields, Json
from streamtool.protocols.shared.fields import media, object_at, refused, string

_TEXTS: Final = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
    "summary_text": "text",
    "reasoning_text": "text",
}
"""Types of text parts, with the key that contains the text."""
_DOCUMENTS: Final = ("text/", "application/json", "application/xml")
"""Prefixes of the media types of text files."""


def content(fields: Fields, key: str, place: str, *, optional: bool = False) -> tuple[Part, ...]:
    """Return the parts under the key, whose value is a string or a list. If the key is absent and `optional`, return
    ().
    """
    value = fields.get(key)
    if isinstance(value, str):
        return (TextPart(value),) if value else ()
    if value is None and optional:
        return ()
    if not isinstance(value, list):
        raise refused(f"{place}.{key}", f"`{key}` must be a string or a list of parts.")
    return tuple(part(item, f"{place}.{key}[{i}]") for i, item in enumerate(value))


def part(value: Json, place: str) -> Part:
    """Return one part."""
    if isinstance(value, str):  # invalid at the origin, but unambiguous
        return TextPart(value)
    fields = object_at(value, place)
    kind = fields.get("type")
    if not isinstance(kind, str):
        raise refused(f"{place}.type", "A part must have a `type`: input_text, input_image, input_file …")
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
    """Return the part for a file. A text document becomes text that begins with the file's name."""
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
