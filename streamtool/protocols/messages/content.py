"""Reader for the messages of a request: text, images, calls, results and reasoning.

Oddities are accepted (null content, results without content, unknown types of blocks); meaningless input raises a
`RequestError` whose `param` names the invalid field. Two kinds of blocks are removed from a message's `raw` because the
origin rejects them: reasoning that streamtool signed because its upstream had sent no signature, and blank text from an
earlier reply.
"""

from collections.abc import Mapping
from typing import Final

from streamtool.core.conversation import MediaPart, Message, Part, TextPart, ToolCall, ToolResult
from streamtool.core.json_value import Fields, Json
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.fields import flag, list_of, media, object_at, refused, shown, string, words

SIGNATURE: Final = "streamtool"
"""Signature that is added to unsigned reasoning. A block with this signature is never sent to an upstream."""


def read_messages(value: Json) -> tuple[Message, ...]:
    """Return the messages of a request, one for each entry."""
    if not isinstance(value, list) or not value:
        raise refused("messages", "A non-empty list of messages is required.")
    messages: list[Message] = []
    names: dict[str, str] = {}  # names of the calls seen so far, by id
    for position, item in enumerate(value):
        place = f"messages[{position}]"
        fields = object_at(item, place)
        match fields.get("role"):
            case "user":
                message = _user(fields, place, names)
            case "assistant":
                message = _assistant(fields, place)
                names.update((call.id, call.name) for call in message.calls)
            case "system":
                message = Message("system", _parts(fields.get("content"), f"{place}.content"), raw=(fields,))
            case role:
                raise refused(
                    f"{place}.role", f"A message's role must be user, assistant or system, not {shown(role)}."
                )
        messages.append(message)
    return tuple(messages)


def read_system(value: Json) -> tuple[Message, ...]:
    """Return the message in `system`, or () if it has no content. The message's `raw` contains only that body field."""
    parts = _parts(value, "system") if value is not None else ()
    return (Message("system", parts, raw=({"system": value},)),) if parts else ()


def _user(fields: Fields, place: str, names: Mapping[str, str]) -> Message:
    content: list[Part] = []
    results: list[ToolResult] = []
    for block, inside in _blocks(fields.get("content"), f"{place}.content"):
        match block.get("type"):
            case "tool_result":
                results.append(_result(block, inside, names))
            case "tool_use":
                raise refused(f"{inside}.type", "A tool_use belongs in an assistant message.")
            case _:
                content += _part(block, inside)
    return Message("user", tuple(content), results=tuple(results), raw=(fields,))


def _assistant(fields: Fields, place: str) -> Message:
    content: list[Part] = []
    calls: list[ToolCall] = []
    reasoning: list[str] = []
    value = fields.get("content")
    for block, inside in _blocks(value, f"{place}.content") if value is not None else ():
        match block.get("type"):
            case "tool_use":
                calls.append(_call(block, inside))
            case "thinking":
                thought = block.get("thinking")
                reasoning.append(thought if isinstance(thought, str) else "")
            case "redacted_thinking":
                pass  # encrypted: only the origin can read it
            case "tool_result":
                raise refused(f"{inside}.type", "A tool_result belongs in a user message.")
            case _:
                content += _part(block, inside)
    return Message(
        "assistant", tuple(content), tuple(calls), reasoning="".join(reasoning), raw=_without_own_blocks(fields)
    )


def _without_own_blocks(fields: Fields) -> tuple[Fields, ...]:
    """Return the message without the blocks that must not be sent to the origin, or () if no other blocks remain."""
    content = fields.get("content")
    if isinstance(content, str):
        return (fields,) if content.strip() else ()
    if not isinstance(content, list):
        return (fields,) if content else ()
    kept = [block for block in content if not _is_own_block(block)]
    if len(kept) == len(content):
        return (fields,) if kept else ()
    return ({**fields, "content": kept},) if kept else ()


def _is_own_block(block: Json) -> bool:
    if isinstance(block, str):
        return not block.strip()
    if not isinstance(block, dict):
        return False
    kind, text = block.get("type"), block.get("text")
    return (kind == "thinking" and block.get("signature") == SIGNATURE) or (
        kind == "text" and isinstance(text, str) and not text.strip()
    )


def _call(block: Fields, place: str) -> ToolCall:
    value = block.get("input")
    if value is None:
        arguments = "{}"
    elif isinstance(value, str):  # invalid at the origin, but unambiguous
        arguments = value if value.strip() else "{}"
    else:
        arguments = wire.encode(object_at(value, f"{place}.input", "A tool's input must be an object.")).decode()
    toolset = words(block, "toolset_name", place)
    name = string(block, "name", place)
    return ToolCall(string(block, "id", place), f"{toolset}.{name}" if toolset else name, arguments)


def _result(block: Fields, place: str, names: Mapping[str, str]) -> ToolResult:
    identity = string(block, "tool_use_id", place)
    value = block.get("content")
    content = _parts(value, f"{place}.content") if value is not None else ()
    return ToolResult(identity, content, error=flag(block, "is_error", place), name=names.get(identity))


# --- parts ------------------------------------------------------------------------------------------------------------


def _blocks(value: Json, place: str) -> list[tuple[Fields, str]]:
    """Return the content's blocks, each with its location in the request. A string becomes one text block."""
    if isinstance(value, str):
        return [({"type": "text", "text": value}, place)]
    if isinstance(value, Mapping):  # one block without a list
        return [(value, place)]
    if not isinstance(value, list):
        raise refused(place, "Content must be a string or a list of blocks.")
    found: list[tuple[Fields, str]] = []
    for number, item in enumerate(value):
        inside = f"{place}[{number}]"
        block = {"type": "text", "text": item} if isinstance(item, str) else object_at(item, inside)
        if not isinstance(block.get("type"), str):
            raise refused(f"{inside}.type", "A block must have a `type`: text, image, tool_use, tool_result …")
        found.append((block, inside))
    return found


def _parts(value: Json, place: str) -> tuple[Part, ...]:
    return tuple(part for block, inside in _blocks(value, place) for part in _part(block, inside))


def _part(block: Fields, place: str) -> tuple[Part, ...]:
    """Return the content of a block: usually one part, no part if the block is empty, or several parts if it contains
    other blocks.
    """
    match block.get("type"):
        case "text":
            text = string(block, "text", place, empty=True)
            return (TextPart(text),) if text else ()
        case "image":
            return (_source("image", block, block.get("source")),)
        case "document":
            return _document(block, place)
        case "search_result":
            head = "\n".join(word for word in (block.get("title"), block.get("source")) if isinstance(word, str))
            found = "\n".join(
                part.text
                for part in _parts(list_of(block, "content", place), f"{place}.content")
                if isinstance(part, TextPart)
            )
            return (TextPart("\n\n".join(filter(None, (head, found)))),)
        case "tool_reference":
            return (TextPart(f"[tool {shown(block.get('tool_name'))}]"),)
        case "compaction":
            summary = words(block, "content", place)
            return (TextPart(f"[What was said before, in short]\n{summary}"),) if summary else ()
        case "browser_state":
            return (TextPart(_browser_state(block, place)),)
        case kind:
            return (MediaPart(str(kind), block),)


def _browser_state(block: Fields, place: str) -> str:
    """Return a browser's tabs and state changes, one per line."""
    lines = []
    for i, item in enumerate(list_of(block, "tabs", place)):
        tab = object_at(item, f"{place}.tabs[{i}]")
        active = " (active)" if tab.get("active") is True else ""
        lines.append(f"tab {tab.get('tab_id')}{active}: {tab.get('title')} {tab.get('url')}".rstrip())
    for i, item in enumerate(list_of(block, "state_changes", place)):
        change = object_at(item, f"{place}.state_changes[{i}]")
        lines.append(" ".join(str(value) for value in change.values()))
    return "\n".join(lines) or "no tab is open"


def _document(block: Fields, place: str) -> tuple[Part, ...]:
    """Return the parts of a document; a text document becomes text, preceded by its title and context."""
    heading = [word for word in (block.get("title"), block.get("context")) if isinstance(word, str) and word]
    head = [TextPart("\n".join(heading))] if heading else []
    match block.get("source"):
        case {"type": "text", "data": str(text)}:
            return (TextPart("\n\n".join(filter(None, ("\n".join(heading), text)))),)
        case {"type": "content", "content": content}:
            return (*head, *_parts(content, f"{place}.source.content"))
        case source:
            return (_source("file", block, source),)


def _source(kind: str, block: Fields, source: Json) -> MediaPart:
    title = block.get("title")
    name = title if isinstance(title, str) else ""
    match source:
        case {"data": str(data), "media_type": str(type_)}:
            return MediaPart(kind, block, type_, data, name=name)
        case {"url": str(url)}:
            return media(kind, block, url, name)
    return MediaPart(kind, block, name=name)
