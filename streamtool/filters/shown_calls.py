"""The calls that results contain, in any format. The model may repeat such a call in another format, with other
whitespace, keys in another order or numbers in another form, or alone out of a list. Its text then differs from the
result (see `quotations`), but the call is the same.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from attrs import evolve

from statemachine import FORMATS, OPT_IN, parse
from streamtool.core.conversation import Conversation, Message, Tool
from streamtool.core.invisible import INVISIBLE
from streamtool.core.json_value import Json
from streamtool.filters.quoted_sources import quotation_sources
from streamtool.protocols.shared import wire

LONGEST: Final = 256 * 1024
"""Maximum number of characters in which to look for calls, beginning with the latest text that may contain one."""
_FORMATS: Final = (*(name for name in FORMATS if name not in OPT_IN), "action_object")
"""The formats to recognize, apart from those whose markers occur in ordinary text."""
_CODE: Final = re.compile(r"^[ \t>]+|[`~]+", re.MULTILINE)
"""Matches what makes text code or a block quote, in which the parser finds no calls."""

_ShownCall = tuple[str, object]


def shown_calls(conversation: Conversation) -> frozenset[_ShownCall]:
    """Return the calls in the conversation's results that no user's message contains, in the form of `comparable_call`.

    Takes time linear in the length of the results, and parses at most `LONGEST` characters of them.
    """
    results = (Message("user", results=message.results) for message in conversation.messages if message.results)
    found = _calls_in(results, conversation)
    if not found:
        return frozenset()
    users = (evolve(message, results=()) for message in conversation.messages if message.role == "user")
    return frozenset(found - _calls_in(users, conversation))


def comparable_call(name: str, arguments: str) -> _ShownCall | None:
    """Return the call in a form that does not depend on how it is written. Return None if it has no arguments, since
    every mention of its name would be such a call, or if they are not a JSON object.
    """
    try:
        value = wire.decode(arguments)
        return (name, _comparable(value)) if isinstance(value, dict) and value else None
    except (ValueError, RecursionError):
        return None


def _calls_in(messages: Iterable[Message], conversation: Conversation) -> set[_ShownCall]:
    """Return the calls in these messages."""
    tools = conversation.tools
    sources = quotation_sources(evolve(conversation, messages=tuple(messages)), [tool.name for tool in tools])
    if sources is None:
        return set()
    room = LONGEST
    found: set[_ShownCall] = set()
    for text in dict.fromkeys(part for reading in sources.readings for part in reversed(reading.parts)):
        if room <= 0:
            break
        found.update(_calls_of(text[-room:], tools))
        room -= len(text)
    return found


def _calls_of(text: str, tools: Iterable[Tool]) -> Iterator[_ShownCall]:
    schemas = {tool.name: tool.parameters for tool in tools}
    for reading in dict.fromkeys((text, _CODE.sub("", text))):
        _, calls = parse(reading, schemas, formats=_FORMATS, in_fences="calls", calls_in_reasoning=True)
        for call in calls:
            known = comparable_call(call.name, call.arguments) if call.complete else None
            if known is not None:
                yield known


def _comparable(value: Json) -> object:
    """Return a JSON value in a hashable form: strings without whitespace and invisible characters, numbers as strings,
    and objects without an order.
    """
    match value:
        case bool() | None:
            return value
        case int() | float():
            return str(int(value)) if value == value // 1 else str(value)
        case str():
            return "".join(INVISIBLE.sub("", value).split())
        case list():
            return tuple(map(_comparable, value))
        case _:
            return frozenset((key, _comparable(item)) for key, item in value.items())
