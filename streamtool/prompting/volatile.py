"""Volatile text: text that a client changes with each request of a conversation, ahead of everything that stays.

Servers reuse the work for an earlier prompt only up to its first difference from the next prompt. A time of day at the
top of the system text therefore costs the whole prompt in each turn. `stabilize` omits such text, or moves it after
the last message, where it becomes a turn instruction. A date without a time is stable enough and keeps its position, as
do the times in messages that the client repeats unchanged (the `environment_details` of Cline and Roo Code, the
`<environment_context>` of Codex).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from attrs import evolve, frozen

from streamtool.core.conversation import Conversation, Message, Part, TextPart
from streamtool.core.json_value import Json

Position = Literal["start", "system", "user"]
"""Where volatile text occurs: at the start of a part of the leading system text, anywhere in the leading system text,
or in a user message before the last message.
"""


@frozen
class VolatileText:
    """Text that known clients change with each request."""

    clients: str
    pattern: re.Pattern[str]
    place: Position
    action: Literal["drop", "move"]
    """`move`: the text follows the last message."""
    sentence: bool = False
    """Whether the pattern matches only a part of the sentence to move."""


_CLOCK: Final = re.compile(r":(?:[0-5]\d(?!\d)|[ ]?1[5-9]\d{8})")
"""A hint of a time: begins with a literal, so that the search for it is fast."""
_IDENTIFIER: Final = re.compile(r"[iI][dD](?:[\"'*`]{0,2}[ \t]{0,2}[:=]|>)")
"""A hint of a labelled identifier."""
_BILLING: Final = "x-anthropic-billing-header:"
_INFO: Final = "<info-msg>"

_TIME: Final = r"(?:date|time|datetime|timestamp|uhrzeit|zeit|heure|hora|ora)"
_NOW: Final = rf"""(?:
    (?<![a-z]) (?: current(?:ly)? | present | local | system | server | utc | today(?:['’]s)? | right\ now | now
                 | aktuelle[sr]? | jetzige | attuale )
    [\s_-]{{0,2}} (?: [a-z]{{1,12}} [\s_-] ){{0,3}} {_TIME} (?![a-z])
  | (?<![a-z]) (?: {_TIME} [\s_-] (?: is\ )? now | it\ is\ (?:currently|now) | now\ is | now: | today\ is
                 | the\ time\ is | timestamp[ ]?[:=] | heure\ actuelle | hora\ actual | ora\ attuale | es\ ist\ jetzt )
  | ^[^\w\n]{{0,8}} (?: (?:date[ ]?(?:and|&|/)[ ]?)? (?:date)?time | date | timestamp ) [^\w\n]{{0,4}} [:=]
    (?=[^\n]{{0,40}}20\d\d)
  | 当前(?:的)?(?:日期和|日期)?时间 | 现在(?:的)?(?:时间|是) | 当前日期 | 現在(?:の)?(?:日時|時刻|日付)
  | 현재\ ?(?:날짜|시간|시각)
)"""
_DAYTIME: Final = r"(?: (?<!\d)\d{1,2}:[0-5]\d(?!\d) | (?<!\d)1[5-9]\d{8}(?:\d{3})?(?!\d) )"
"""A time of day, or the seconds or milliseconds since 1970."""
_TIME_TAG: Final = r"(?:current|local|system)?[_-]?(?:date)?[_-]?(?:time|now|timestamp)(?:[_-][a-z]{1,12})?"
_FLAGS: Final = re.VERBOSE | re.IGNORECASE | re.MULTILINE

VOLATILE: Final = (
    VolatileText(
        "Claude Code",
        re.compile(_BILLING + r"(?:[ \t]{0,9}[\w.-]{1,99}=[^;\s]{0,999};?)*+[ \t]*+\n?"),
        "start",
        "drop",
    ),
    VolatileText(
        "goose", re.compile(r"<info-msg>\nIt is currently (?:[^<]|<(?!/?info-msg>))*+</info-msg>\n?"), "user", "move"
    ),
    VolatileText(
        "OpenHands and other clients that use tags",
        re.compile(
            rf"<({_TIME_TAG})> [^<>]{{0,200}}? {_DAYTIME} [^<>]{{0,200}} </\1> \n?"
            r"| <((?:request|trace)[_-]?id)> \s{0,9} [^\s<>]{6,128} \s{0,9} </\2> \n?",
            _FLAGS,
        ),
        "system",
        "move",
    ),
    VolatileText(
        "nanobot and other clients that use headings",
        re.compile(
            rf"^[\#*]{{0,6}} [ ]? {_NOW} [^\n]{{0,20}} \n{{1,2}} [^\n]{{0,60}}? {_DAYTIME} [^\n]{{0,100}} (?:\n|\Z)",
            _FLAGS,
        ),
        "system",
        "move",
    ),
    VolatileText(
        "Home Assistant, goose, pi, Hermes, Letta and other clients that write a sentence or a line",
        re.compile(rf"{_NOW} [^\n]{{0,60}}? {_DAYTIME} (?: (?::\d\d)? [ ]? [ap]\.m\. )?", _FLAGS),
        "system",
        "move",
        sentence=True,
    ),
    VolatileText(
        "gateways that label their requests",
        re.compile(
            r"""^[ \t>*-]{0,8} (?:x-)? (?:request|trace|correlation|invocation|message|turn) [ _-]? id
            ["'*`]{0,2} [ ]{0,2} [:=] [ \t"'*`]{0,4} (?=[^\s\d]{0,64}\d) [^\s]{6,128} [ \t]* (?:\n|\Z)""",
            _FLAGS,
        ),
        "system",
        "move",
    ),
)
"""All known volatile text. Sources: issues and pull requests of the clients and of the servers that suffer."""

_BEFORE: Final = 160
"""Maximum number of characters between the beginning of a sentence and the match in it."""
_BEGINNING: Final = re.compile(r"\n|[.!?>][ \t]+|。")
"""The end of whatever precedes a sentence."""
_END: Final = re.compile(r"[^\n]{0,160}?(?:[.!?](?=\s|\Z)|。|(?=\n)|\Z)")
_RULE: Final = re.compile(
    r"\b(?:if|when|whenever|after|before|between|until|unless|while|example|e\.g\.|every|each|format|such as)\b",
    re.IGNORECASE,
)
"""Words of sentences about times in general, which do not change."""


def stabilize(conversation: Conversation) -> Conversation:
    """Return the conversation without volatile text in its stable part; text that was moved is in `volatile`.

    A conversation without such text is returned unchanged. If it ends with an assistant message, which the reply
    continues, no text is moved.
    """
    messages = conversation.messages
    moves = bool(messages) and messages[-1].role != "assistant"
    changed: dict[int, Message] = {}
    moved: list[str] = []
    leading = True
    for place, message in enumerate(messages):
        role = message.role
        leading = leading and role == "system"
        if role == "assistant" or not (leading or role == "user") or (message is messages[-1] and not leading):
            continue
        texts: dict[str, str] = {}
        for part in message.content:
            if type(part) is not TextPart:
                continue
            text = part.text
            if leading:
                if text.startswith(_BILLING) or _CLOCK.search(text) or _IDENTIFIER.search(text):
                    stabilized = _without(text, ("start", "system"), moved if moves else None)
                    if stabilized != text:
                        texts[text] = stabilized
            elif moves and _INFO in text:
                stabilized = _without(text, ("user",), moved)
                if stabilized != text:
                    texts[text] = stabilized
        if texts:
            changed[place] = _with_texts(message, texts)
    if not changed:
        return conversation
    kept = [changed.get(place, message) for place, message in enumerate(messages)]
    kept = [message for message in kept if message.content or message.results or message.calls]
    return evolve(conversation, messages=tuple(kept), volatile="\n".join(moved))


def _without(text: str, places: Iterable[Position], moved: list[str] | None) -> str:
    """Return the text without its volatile parts, and add those to `moved`; if that is None, they stay."""
    for row in VOLATILE:
        if row.place not in places or (row.action == "move" and moved is None):
            continue
        if row.place == "start":
            found = row.pattern.match(text)
            text = text if found is None else text[found.end() :]
            continue
        pieces: list[str] = []
        end = 0
        for found in row.pattern.finditer(text):
            if found.start() < end:
                continue
            span = _sentence(text, end, found.start(), found.end()) if row.sentence else found.span()
            if span is None:
                continue
            pieces.append(text[end : span[0]])
            if row.action == "move" and moved is not None:
                moved.append(text[span[0] : span[1]].strip())
            end = span[1]
        if end:
            text = "".join([*pieces, text[end:]])
    return text


def _sentence(text: str, least: int, start: int, end: int) -> tuple[int, int] | None:
    """Return the span of the sentence around a match, or None if it is too long or a rule about times.

    The span begins at `least` or later. If the sentence is a whole line, the span includes its line feed.
    """
    first = max(least, start - _BEFORE)
    beginnings = [found.end() for found in _BEGINNING.finditer(text, first, start)]
    if not beginnings and first > least:
        return None
    first = beginnings[-1] if beginnings else first
    rest = _END.match(text, end)
    if rest is None or _RULE.search(text, first, rest.end()):
        return None
    last = rest.end()
    alone = first == 0 or text[first - 1] == "\n"
    return first, last + (text[last : last + 1] in ((" ", "\n") if alone else (" ",)))


def _with_texts(message: Message, texts: Mapping[str, str]) -> Message:
    """Return the message with these texts replaced, also in `raw`. A part without text is left out."""
    content: list[Part] = []
    for part in message.content:
        if not isinstance(part, TextPart) or part.text not in texts:
            content.append(part)
        elif texts[part.text].strip():
            content.append(TextPart(texts[part.text]))
    raw = tuple(_replaced(fields, texts) for fields in message.raw)
    return evolve(message, content=tuple(content), raw=() if raw == message.raw else raw)


def _replaced(value: Json, texts: Mapping[str, str]) -> Json:
    """Return a JSON value in which each string that is a key of `texts` is replaced."""
    if isinstance(value, str):
        return texts.get(value, value)
    if isinstance(value, list):
        return [_replaced(item, texts) for item in value if not _is_emptied(item, texts)]
    if isinstance(value, Mapping):
        return {key: _replaced(item, texts) for key, item in value.items()}
    return value


def _is_emptied(item: Json, texts: Mapping[str, str]) -> bool:
    """Return whether an item of a message's content has no text left."""
    text = item.get("text") if isinstance(item, Mapping) else None
    return isinstance(text, str) and text in texts and not texts[text].strip()
