"""The prompt of an attempt as text, with marks for the parts that streamtool added, and its common prefix with earlier
prompts.

All of this is derived from request bodies, in any protocol, so it works for recordings too.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import define

import statemachine
from statemachine.formats import is_format
from streamtool.core.json_value import Json
from streamtool.prompting.history import FRAMES
from streamtool.protocols.shared.wire import encode

SYSTEM: Final = ("system", "instructions", "systemInstruction", "system_instruction")
"""Keys for system prompts that are not messages."""
LONG_ENOUGH: Final = 2
"""Minimum length, in characters, of a client's text that is searched for in the prompt."""


Prompt = Sequence[tuple[str, str]]
"""The role and text of each message."""


@define
class PromptMessage:
    """A message as the model reads it. Each mark is a tuple (start, end, kind); marks are in order."""

    role: str
    text: str
    marks: list[tuple[int, int, str]]


def messages_of(body: Json) -> list[tuple[str, str]]:
    """Return the role and text of each message in a request body, in any protocol."""
    if not isinstance(body, Mapping):
        return []
    found = [("system", text_of(body[key])) for key in SYSTEM if body.get(key)]
    if isinstance(body.get("prompt"), str):
        found.append(("prompt", body["prompt"]))
    listed = next((body[key] for key in ("messages", "input", "contents") if body.get(key)), ())
    if isinstance(listed, str):
        return [*found, ("user", listed)]
    for item in listed if isinstance(listed, list) else ():
        if isinstance(item, Mapping):
            role = item.get("role") or item.get("type") or "user"
            found.append(({"model": "assistant", "developer": "system"}.get(role, str(role)), text_of(item)))
    return found


def text_of(value: Json) -> str:
    """Return the text of a message, a part or a list of parts. Any other value is returned as JSON."""
    match value:
        case None:
            return ""
        case str():
            return value
        case list():
            return "\n".join(filter(None, map(text_of, value)))
        case {"parts": parts}:
            return text_of(parts)
        case {"type": "thinking" | "reasoning"}:
            return ""
        case {"content": content, **rest}:
            calls = [rest[key] for key in ("tool_calls", "function_call") if rest.get(key)]
            return "\n".join(filter(None, (text_of(content), *map(_json, calls))))
        case {"text": str() as text}:
            return text
        case Mapping():
            return _json({key: item for key, item in value.items() if key != "role"})
        case _:
            return _json(value)


def _json(value: Json) -> str:
    return encode(value).decode()


def prompt(body: Json, request: Json, *, format: str, frame: str) -> list[PromptMessage]:
    """Return the prompt of an attempt (`body`), with marks for all text that is not in the client's `request`."""
    given = [(role, text) for role, text in messages_of(request) if role not in ("assistant", "tool")]
    frames = frames_of(frame)
    found = messages_of(body)
    return [
        PromptMessage(
            role,
            text,
            calls_in(text, format)
            if role == "assistant"
            else marks_of_additions(
                text, given, frames if place else None, "the reply's instructions" if place else "the tools"
            ),
        )
        for place, (role, text) in enumerate(found)
    ]


def frames_of(frame: str) -> "re.Pattern[str] | None":
    """Return a pattern that finds framed results, or None if the frame has no text before the content."""
    template = FRAMES.get(frame, frame)
    if "{content}" not in template or template.startswith("{content}"):
        return None
    before, _, after = template.partition("{content}")
    ends = re.escape(after) if after else r"(?=\n\n|\Z)"
    begins = re.sub(r"\\\{(?:name|id)\\\}", r"[^\\n<>]*", re.escape(before))
    return re.compile(f"{begins}.*?{ends}", re.DOTALL)


def calls_in(text: str, format: str) -> list[tuple[int, int, str]]:
    """Return marks for the calls in one of the model's earlier replies."""
    try:
        parser = statemachine.Parser(formats=[format] if is_format(format) else None, ledger=True)
    except ValueError:
        return []
    parser.feed(text)
    parser.close()
    marks: list[tuple[int, int, str]] = []
    for span in parser.ledger:
        if span.kind in ("text", "reasoning"):
            continue
        if marks and marks[-1][1] == span.start:
            marks[-1] = (marks[-1][0], span.end, "call")
        else:
            marks.append((span.start, span.end, "call"))
    return [mark for mark in marks if text[mark[0] : mark[1]].strip()]


def marks_of_additions(
    text: str, given: Iterable[tuple[str, str]], frames: "re.Pattern[str] | None", what: str
) -> list[tuple[int, int, str]]:
    """Return marks for results, and marks of the kind `what` for text that the client did not send."""
    theirs = _spans_of(text, [part for _, part in given])
    results = [(found.start(), found.end()) for found in frames.finditer(text)] if frames else []
    marks = [(start, end, "result") for start, end in results]
    at = 0
    for start, end in sorted([*theirs, *results]):
        if text[at:start].strip():
            marks.append((at, start, what))
        at = max(at, end)
    if text[at:].strip():
        marks.append((at, len(text), what))
    return sorted(marks)


def _spans_of(text: str, parts: Sequence[str]) -> list[tuple[int, int]]:
    """Return the span of the first occurrence of each part in the text. Spans do not overlap; longer parts take
    precedence.
    """
    found: list[tuple[int, int]] = []
    for part in sorted({part.strip() for part in parts}, key=len, reverse=True):
        at = text.find(part) if len(part) >= LONG_ENOUGH else -1
        if at >= 0 and not any(start < at + len(part) and at < end for start, end in found):
            found.append((at, at + len(part)))
    return found


def common_prefix(earlier: Prompt, later: Prompt) -> int:
    """Return the length of the common prefix of two prompts, which a prefix cache can reuse."""
    kept = 0
    for (role, before), (other, now) in zip(earlier, later, strict=False):
        if role != other:
            break
        same = _common(before, now)
        kept += same
        if same < max(len(before), len(now)):
            break
    return kept


def _common(before: str, now: str) -> int:
    length = min(len(before), len(now))
    if before[:length] == now[:length]:
        return length
    low, high = 0, length
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if before[:middle] == now[:middle] else (low, middle - 1)
    return low


def size(messages: Prompt) -> int:
    """Return the length of a prompt, in characters."""
    return sum(len(text) for _, text in messages)


def best_before(later: Prompt, earlier: Iterable[tuple[str, Prompt]]) -> Json:
    """Return the earlier prompt that has the longest common prefix with the later one, as `{"id", "kept", "of"}`, or
    None if none has a common prefix. `kept` is the length of the prefix, and `of` the length of the later prompt.
    """
    found = [(common_prefix(messages, later), id) for id, messages in earlier]
    kept, id = max(found, default=(0, ""), key=lambda one: one[0])
    return {"id": id, "kept": kept, "of": size(later)} if kept else None


def last_prompts(
    exchanges: Iterable[tuple[str, Iterator[Mapping[str, Json]]]],
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the id of each exchange and its last prompt, followed by the reply, because the next turn's prompt may
    contain both.
    """
    for id, lines in exchanges:
        body: Json = None
        reply: list[str] = []
        for line in lines:
            if line["type"] == "attempt":
                body, reply = line.get("body"), []
            elif line["type"] == "text":
                reply.append(line["text"])
        if body is not None:
            yield id, [*messages_of(body), ("assistant", "".join(reply))]


def removed_characters(earlier: Prompt, later: Prompt) -> int:
    """Return the number of characters of the earlier prompt that are not in the common prefix."""
    return size(earlier) - common_prefix(earlier, later)
