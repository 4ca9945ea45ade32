"""Past calls and results as text, in the same form that the tool prompt shows.

Calls are written by `statemachine.write` in the taught format. Results are put into a frame; the default one is a
`<tool_response>` block, which the models of many families recognize. Each frame begins with distinctive text. If the
model writes that text itself, it is fabricating a result, and the reply is ended there.
"""

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from statemachine import Call as WrittenCall
from statemachine import write
from streamtool.core import conversation
from streamtool.core.bounded_cache import LruCache
from streamtool.core.conversation import MediaPart, TextPart, ToolResult
from streamtool.protocols.completions.templates import escape_marks
from streamtool.settings import ResultSettings

FRAMES = {
    "default": '<tool_response name="{name}">\n{content}\n</tool_response>',
    "tool_result": '<tool_result id="{id}">\n{content}\n</tool_result>',
    "doai": "[Tool Result]: {content}",
    "windlass": "Tool Result ({name}):\n{content}",
}
"""Predefined frame templates by name; any other frame setting is itself a template."""

INTERRUPTED = "(no result: interrupted)"
EMPTY = "(no output)"
PARTIAL = "(the call did not finish: this is a part of its output)"
LEFT_OUT = "(result left out)"

_FIELD = re.compile(r"\{(name|id|content)\}")
_TAG = re.compile(r"</?([A-Za-z][\w.-]*)")
_SHORTEST_CLOSER: Final = 3
"""Minimum length of a closer that is escaped wherever it occurs; a shorter one is escaped at the end of a line."""
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029\"<>]")


_MOST_KEPT: Final = 1024 * 1024
"""Maximum number of characters of past calls that are cached as text."""
_kept = LruCache[str](_MOST_KEPT)
"""The text of calls, keyed by format and calls. It is cached because each request repeats the calls of the conversation
so far.
"""


def calls_text(calls: Sequence[conversation.ToolCall], format: str) -> str:
    """Return the calls as the model would have written them in this format."""
    first = calls[0]
    key: tuple[Any, ...] = (format, first.name, first.arguments, first.custom)
    if len(calls) > 1:
        key += tuple([(call.name, call.arguments, call.custom) for call in calls[1:]])
    text = _kept.get(key)
    if text is None:
        text = write([WrittenCall(call.name, arguments_text(call)) for call in calls], format)
        _kept.put(key, text, 2 * len(text))
    return text


def arguments_text(call: conversation.ToolCall) -> str:
    """Return the arguments as the text of one JSON object, regardless of the form that they have in the history.

    An object is kept verbatim (spelling of numbers, order of keys). Empty arguments become `{}`, and an object inside a
    string is extracted. The raw text of a custom tool becomes `{"input": …}`; anything else that is not an object
    becomes `{"arguments": …}`.
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


def result_text(result: ToolResult, name: str, settings: ResultSettings, guard: "re.Pattern[str] | None" = None) -> str:
    """Return the result of a call to `name` in its frame, marked if it is empty, failed, partial or truncated. What
    `guard` matches in it is escaped with a backslash.
    """
    if settings.drop:
        return frame_content(LEFT_OUT, name, result.id, settings.frame)
    parts = result.content
    text = parts[0].text if len(parts) == 1 and type(parts[0]) is TextPart else "\n".join(map(part_text, parts))
    if settings.strip:
        text = strip_tags(text, settings.strip)
    if guard is not None:
        text = escape_marks(text, guard)
    whole = len(text)
    if 0 <= settings.max_length < whole:
        text = f"{text[: settings.max_length]}\n[cut: {settings.max_length} of {whole} characters are shown]"
    if not text.strip():
        text = EMPTY
    if result.error:
        text = f"The call failed:\n{text}"
    if result.partial:
        text = f"{text}\n{PARTIAL}"
    return frame_content(text, name, result.id, settings.frame)


def interrupted_text(call: conversation.ToolCall, settings: ResultSettings) -> str:
    """Return the text that replaces a result that never arrived."""
    return frame_content(INTERRUPTED, call.name, call.id, settings.frame)


def orphan_text(result: ToolResult, settings: ResultSettings, guard: "re.Pattern[str] | None" = None) -> str:
    """Return the text for a result whose call is not in the conversation; it becomes user text."""
    unframed = ResultSettings(settings.max_length, "{content}", settings.drop, settings.strip)
    text = result_text(result, "", unframed, guard)
    return f"Result of an earlier call that is not shown:\n{text}"


def frame_content(content: str, name: str, id: str, frame: str) -> str:
    r"""Put the content into a frame: one of `FRAMES`, or a template.

    Text in the content that would close this frame, or open another one, is escaped with a backslash
    (`<\/tool_response>`), in addition to any that it already contains. Nothing else is changed, so the original content
    can be recovered.
    """
    marks, fields, pattern = _compiled(frame)
    if marks is not None and marks.search(content):
        content = escape_marks(content, marks)
    values = {"content": content}
    for field, value in (("name", name), ("id", id)):
        if field in fields:
            values[field] = _UNSAFE.sub(_escaped, value) if _UNSAFE.search(value) else value
    return pattern % values


@lru_cache(maxsize=16)
def _compiled(frame: str) -> "tuple[re.Pattern[str] | None, frozenset[str], str]":
    """Return the pattern for the positions to escape, a frame's fields, and its template in `%` syntax."""
    template = FRAMES.get(frame, frame)
    fields = frozenset(_FIELD.findall(template))
    return _escape_pattern(template), fields, _FIELD.sub(r"%(\1)s", template.replace("%", "%%"))


def _escape_pattern(template: str) -> "re.Pattern[str] | None":
    """Return a pattern for the positions to escape: after the opening bracket of the frame's tags, before each line
    that begins like one of the frame's lines, and before the text that follows the content on its line.
    """
    tags = sorted({tag.lower() for tag in _TAG.findall(template)})
    patterns = [rf"<(?=\\*[ \t]*/?[ \t]*(?:{'|'.join(map(re.escape, tags))})\b)"] if tags else []
    begins = []
    for line in template.split("\n"):
        before, content, after = line.partition("{content}")
        literals = [part.strip() for part in _FIELD.split(before)[::2]]  # the odd ones are names of fields
        literal = next(filter(None, literals), "")
        if literal and not (tags and _TAG.search(line)):
            words = r"[ \t]*".join(map(re.escape, literal.split()))
            begins.append(words if literals[0] else rf"\S*?[ \t]*{words}")
        after = _FIELD.split(after)[0].strip() if content else ""
        if after and not _TAG.search(after):
            end = r"[ \t]*$" if len(after) < _SHORTEST_CLOSER else ""
            patterns.append(rf"(?<!\\)(?=\\*{re.escape(after)}{end})")
    if begins:
        patterns.append(rf"^(?=\\*+[ \t]*+(?:{'|'.join(dict.fromkeys(begins))}))")
    return re.compile("|".join(patterns), re.IGNORECASE | re.MULTILINE) if patterns else None


def _escaped(char: re.Match[str]) -> str:
    """Return the escape for a character that could end a name or an id in a frame."""
    return f"\\u{ord(char[0]):04x}"


def media_of(result: ToolResult, settings: ResultSettings) -> Sequence[MediaPart]:
    """Return the media parts of a result, which are sent with the result's text."""
    return () if settings.drop else [part for part in result.content if isinstance(part, MediaPart)]


def strip_tags(text: str, tags: Iterable[str]) -> str:
    """Remove the elements with these tags (`<tag>…</tag>`) from the text. An opening tag without a closing tag is left
    unchanged.
    """
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
    """Return a part's text; a part without text is represented by its kind."""
    return part.text if isinstance(part, TextPart) else f"[{part.kind}]"
