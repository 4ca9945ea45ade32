"""The prompt that a model read, as text, with what streamtool added marked in it; and what of it a cache keeps.

Made of request bodies as any protocol has them, so that it is the same for a recording.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import define

import statemachine
from streamtool.conversation import Json
from streamtool.prompting.history import FRAMES
from streamtool.protocols.wire import encode

SYSTEM: Final = ("system", "instructions", "systemInstruction", "system_instruction")
"""Where system texts stand that are no message."""
LONG_ENOUGH: Final = 2
"""Characters of the shortest text of a client that is looked for in the prompt."""


Prompt = Sequence[tuple[str, str]]
"""Roles and texts."""


@define
class PromptMessage:
    """A message as the model reads it: `marks` are [start, end, what], in order."""

    role: str
    text: str
    marks: list[tuple[int, int, str]]


def messages_of(body: Json) -> list[tuple[str, str]]:
    """Role and text of each message of a request body, in any protocol."""
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
    """The text in a message, a part or a list of parts; what is none is JSON."""
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
    """The prompt of an attempt (`body`), marked by what the client asked (`request`)."""
    given = [(role, text) for role, text in messages_of(request) if role not in ("assistant", "tool")]
    frames = frames_of(frame)
    found = messages_of(body)
    return [
        PromptMessage(
            role,
            text,
            calls_in(text, format)
            if role == "assistant"
            else added(text, given, frames if place else None, "the reply's instructions" if place else "the tools"),
        )
        for place, (role, text) in enumerate(found)
    ]


def frames_of(frame: str) -> "re.Pattern[str] | None":
    """What finds results in their frame."""
    template = FRAMES.get(frame, frame)
    if "{content}" not in template or template.startswith("{content}"):
        return None
    before, _, after = template.partition("{content}")
    ends = re.escape(after) if after else r"(?=\n\n|\Z)"
    begins = re.sub(r"\\\{(?:name|id)\\\}", r"[^\\n<>]*", re.escape(before))
    return re.compile(f"{begins}.*?{ends}", re.DOTALL)


def calls_in(text: str, format: str) -> list[tuple[int, int, str]]:
    """The calls in what the model has written before."""
    try:
        parser = statemachine.Parser(formats=[format] if format in statemachine.FORMATS else None, ledger=True)
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


def added(
    text: str, given: Iterable[tuple[str, str]], frames: "re.Pattern[str] | None", what: str
) -> list[tuple[int, int, str]]:
    """Results, and what the client has not written."""
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
    """Where these stand in the text, each once."""
    found: list[tuple[int, int]] = []
    for part in sorted({part.strip() for part in parts}, key=len, reverse=True):
        at = text.find(part) if len(part) >= LONG_ENOUGH else -1
        if at >= 0 and not any(start < at + len(part) and at < end for start, end in found):
            found.append((at, at + len(part)))
    return found


def common(earlier: Prompt, later: Prompt) -> int:
    """How many characters two prompts have in common at their beginning, which a prefix cache keeps."""
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
    """Characters of a prompt."""
    return sum(len(text) for _, text in messages)


def best_before(later: Prompt, earlier: Iterable[tuple[str, Prompt]]) -> Json:
    """Of earlier prompts (by id) the one of which a cache keeps most: `{"id", "kept", "of"}`; None without any."""
    found = [(common(messages, later), id) for id, messages in earlier]
    kept, id = max(found, default=(0, ""), key=lambda one: one[0])
    return {"id": id, "kept": kept, "of": size(later)} if kept else None


def last_prompts(
    exchanges: Iterable[tuple[str, Iterator[Mapping[str, Json]]]],
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The last prompt of each exchange, with the reply behind it, as the next turn may hold it."""
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


def removed(earlier: Prompt, later: Prompt) -> int:
    """How many characters of the earlier prompt stand behind what the two have in common."""
    return size(earlier) - common(earlier, later)
