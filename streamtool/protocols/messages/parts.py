"""Writer for message parts as blocks. A part that this protocol cannot express becomes a placeholder (`[audio]`)."""

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Final

from streamtool.core.conversation import MediaPart, Part, TextPart
from streamtool.core.json_value import Json

Block = Mapping[str, Json]

_IMAGES: Final = ("image/jpeg", "image/png", "image/gif", "image/webp")


def blocks_of(parts: Iterable[Part], *, same: bool, text_only: bool = False) -> list[Block]:
    """Return the parts as blocks. Blank text is omitted, because the origin rejects it.

    `same` means that the parts were read from this protocol. `text_only` means that images and files are not allowed.
    """
    return [block for part in parts if (block := block_of(part, same=same, text_only=text_only)) is not None]


def block_of(part: Part, *, same: bool, text_only: bool = False) -> Block | None:
    """Return the part as a block, or None if it is blank."""
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text} if part.text.strip() else None
    if same and not (text_only and part.kind in ("image", "file")):
        return part.raw
    block = None if text_only else _media(part)
    return block or {"type": "text", "text": f"[{part.kind}]"}


def _media(part: MediaPart) -> Block | None:
    if part.kind == "image":
        return _sourced("image", part) if part.url or part.type in _IMAGES else None
    if part.kind != "file":
        return None
    if part.url or part.type == "application/pdf":
        return _sourced("document", part)
    text = _text(part) if part.type.startswith("text/") or part.type == "application/json" else None
    if text is None:
        return None
    source = {"type": "text", "media_type": "text/plain", "data": text}
    return {"type": "document", "source": source, **_title(part)}


def _sourced(kind: str, part: MediaPart) -> Block | None:
    title = _title(part) if kind == "document" else {}
    if part.data:
        return {"type": kind, "source": {"type": "base64", "media_type": part.type, "data": part.data}, **title}
    if part.url.startswith(("http://", "https://")):
        return {"type": kind, "source": {"type": "url", "url": part.url}, **title}
    return None


def _title(part: MediaPart) -> dict[str, Json]:
    return {"title": part.name} if part.name else {}


def _text(part: MediaPart) -> str | None:
    try:
        return base64.b64decode(part.data, validate=True).decode("utf-8", "replace") or None
    except (binascii.Error, ValueError):
        return None
