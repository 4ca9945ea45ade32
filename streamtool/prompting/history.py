"""Past calls and results as text: what the model wrote, and what it got, in the same shapes that the tool prompt shows.

Calls are written by `statemachine.write`, in the format that is taught. Results get a frame; the default one is a
`<tool_response>` block, which the models of many families know. All frames begin with words that mark an invented
result when the model itself writes them, so that such a reply can be ended there.
"""

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from statemachine import Call as WrittenCall
from statemachine import write
from streamtool import conversation
from streamtool.conversation import MediaPart, TextPart, ToolResult
from streamtool.settings import ResultSettings

FRAMES = {
    "default": '<tool_response name="{name}">\n{content}\n</tool_response>',
    "tool_result": '<tool_result id="{id}">\n{content}\n</tool_result>',
    "doai": "[Tool Result]: {content}",
    "windlass": "Tool Result ({name}):\n{content}",
}
"""Name -> template; any other frame is a template itself."""

INTERRUPTED = "(no result: interrupted)"
EMPTY = "(no output)"
PARTIAL = "(the call did not finish: this is a part of its output)"
LEFT_OUT = "(result left out)"

_FIELD = re.compile(r"\{(name|id|content)\}")
_TAG = re.compile(r"</?([A-Za-z][\w.-]*)")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029\"<>]")


def calls_text(calls: Iterable[conversation.ToolCall], format: str) -> str:
    """The calls as the model would have written them in this format."""
    return write([WrittenCall(call.name, arguments_text(call)) for call in calls], format)


def arguments_text(call: conversation.ToolCall) -> str:
    """The arguments as the text of one JSON object, whatever stands in the history.

    An object is kept as it came (spelling of numbers, order of keys). Nothing is `{}`; an object in a string is taken
    out of it; the raw text of a custom tool becomes `{"input": …}`, and what is no object `{"arguments": …}`.
    """
    if call.custom:
        return json.dumps({"input": call.arguments}, ensure_ascii=False)
    text = call.arguments.strip() or "{}"
    value = _decode(text)
    if isinstance(value, str) and isinstance(_decode(value), dict):
        return value
    return text if isinstance(value, dict) else json.dumps({"arguments": call.arguments}, ensure_ascii=False)


def _decode(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def result_text(result: ToolResult, name: str, settings: ResultSettings) -> str:
    """The result of a call of `name`, in its frame. One that is empty, failed or partial says so; a cut shows where."""
    if settings.drop:
        return framed(LEFT_OUT, name, result.id, settings.frame)
    text = strip("\n".join(map(part_text, result.content)), settings.strip)
    whole = len(text)
    if 0 <= settings.max_length < whole:
        text = f"{text[: settings.max_length]}\n[cut: {settings.max_length} of {whole} characters are shown]"
    if not text.strip():
        text = EMPTY
    if result.error:
        text = f"The call failed:\n{text}"
    if result.partial:
        text = f"{text}\n{PARTIAL}"
    return framed(text, name, result.id, settings.frame)


def interrupted_text(call: conversation.ToolCall, settings: ResultSettings) -> str:
    """What stands in the place of a result that never came."""
    return framed(INTERRUPTED, call.name, call.id, settings.frame)


def orphan_text(result: ToolResult, settings: ResultSettings) -> str:
    """A result whose call is not in the conversation, as user text."""
    text = result_text(result, "", ResultSettings(settings.max_length, "{content}", settings.drop, settings.strip))
    return f"Result of an earlier call that is not shown:\n{text}"


def framed(content: str, name: str, id: str, frame: str) -> str:
    """The content in a frame: one of `FRAMES`, or a template.

    What would close this frame in the content, or open another one, gets a backslash (`<\\/tool_response>`), and one
    more if it has some already; nothing else is touched, so the content can be had back.
    """
    template = FRAMES.get(frame, frame)
    marks = _marks(template)
    if marks is not None:
        content = marks.sub(lambda mark: mark[0] + "\\", content)  # a function: others have their turns meanwhile
    values = {"name": _inert(name), "id": _inert(id), "content": content}
    return _FIELD.sub(lambda field: values[field[1]], template)


@lru_cache(maxsize=16)
def _marks(template: str) -> "re.Pattern[str] | None":
    """Where the marks of a frame begin in a content: behind the bracket of its tags, or where its first line begins."""
    tags = sorted({tag.lower() for tag in _TAG.findall(template)})
    if tags:
        return re.compile(rf"<(?=\\*[ \t]*/?[ \t]*(?:{'|'.join(map(re.escape, tags))})\b)", re.IGNORECASE)
    begin = template.partition("{")[0].strip()
    return re.compile(rf"^(?=\\*[ \t]*{re.escape(begin)})", re.IGNORECASE | re.MULTILINE) if begin else None


def _inert(name: str) -> str:
    """A name or an id without what could end the place in which it stands."""
    return _UNSAFE.sub(lambda char: f"\\u{ord(char[0]):04x}", name)


def media_of(result: ToolResult, settings: ResultSettings) -> Sequence[MediaPart]:
    """The parts of a result that travel beside its text."""
    return () if settings.drop else [part for part in result.content if isinstance(part, MediaPart)]


def strip(text: str, tags: Iterable[str]) -> str:
    """The text without the blocks of these tags (`<tag>…</tag>`); an opener without its closer is left as it is."""
    for tag in tags:
        opener, closer = f"<{tag}>", f"</{tag}>"
        kept, at = [], 0
        while (start := text.find(opener, at)) >= 0 and (end := text.find(closer, start)) >= 0:
            kept.append(text[at:start])
            at = end + len(closer)
        if kept:
            text = "".join([*kept, text[at:]]).strip("\n")
    return text


def part_text(part: TextPart | MediaPart) -> str:
    """The text of a part; what is no text is named."""
    return part.text if isinstance(part, TextPart) else f"[{part.kind}]"
