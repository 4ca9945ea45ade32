"""Text in a reply without calls that looks like a call, and the reason why it was not read as one.

The text is only examined if it contains something that resembles call syntax. It is then parsed again, each time with
one restriction lifted: if the parser now finds a call, that restriction is the reason. If it never does, no format
matches, and the most similar one is named. Nothing here runs while a reply streams, and
servers examine it in a worker thread.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, Final

from statemachine import FORMATS, OPT_IN, CallStart, Parser
from statemachine.formats.format import openers_of
from streamtool.exchange.record import NearCall, NearCallCause

EXAMINED: Final = 16 * 1024
"""Maximum number of characters to examine: each restriction costs a parse."""
EXCERPT: Final = 80
"""Maximum number of characters of an excerpt."""
_SHORTEST_OPENER: Final = 5
"""Minimum length of an opener that is recognized anywhere in text."""
_AROUND: Final = 400
"""Number of characters in which the name of a tool is searched."""
_SIMILAR: Final = 0.8
"""Minimum similarity of a word to the name of a tool."""
_NAMED: Final = 4
"""Minimum length of a word that may be a misspelled name."""
_ELEMENT: Final = re.compile(r"<([A-Za-z_][\w.:-]*)[^<>\n]{0,100}>[^<>]{0,60}</\1>")
_WORD: Final = re.compile(r"[A-Za-z_][\w-]*")
_MARKUP: Final = re.compile(
    r"""
      <\|?(?:tool|function|invoke|call|action|use_tool|mcp)[\w.:|-]{0,40}[^<>\n]{0,100}>
    | \[\s?(?:tool|function|call|action)[a-z_ ]{0,20}[:\]]
    | \{\s{0,20}"(?:name|tool|function|tool_name|action|function_name|tool_calls?|recipient_name)"\s?:
    | ^[ \t>*]{0,8}(?:action|tool|function|(?:tool|function)[ _]call)[*]{0,2}:[ \t]*\S
    | ```(?:tool|function)\w{0,20}
    """,
    re.VERBOSE | re.IGNORECASE | re.MULTILINE,
)
"""Matches text that resembles the beginning of a call, in no format in particular."""
_USE: Final = re.compile(
    r'(?<![\w.])(?:<(?P<tag>[A-Za-z_][\w-]{1,63})[\s/>]|(?P<name>[A-Za-z_][\w-]{1,63})"?\s?[({\[])'
)
"""Matches a name where a call might contain it. Whether it is that of a tool is checked afterwards."""


_SHAPES: Final = (
    (r"<[^>]{0,40}invoke", "invoke"),
    (r"<[^>]{0,40}function", "qwen3_coder"),
    (r"<", "tool_call"),
    (r"```", "fenced"),
    (r"\{", "object"),
    (r"\[?\s?[A-Za-z_][\w.-]*\s?\(", "pythonic"),
    (r"\[", "mistral"),
    (r"\W*(?i:action)", "react"),
    (r"", "labelled"),
)
"""Pattern for the beginning of a call → the most similar format. The first pattern that matches decides."""
_VAGUE: Final = frozenset(("object", "react", "labelled"))
"""Formats that ordinary text resembles, unless it names a tool."""


@cache
def _openers() -> Mapping[str, str]:
    """Return the beginnings of openers that are recognized anywhere in text → the first format that has them, or "" for
    a wrapper.
    """
    found: dict[str, str] = {}
    for name, markers in (
        *((form.name, form.openers) for form in FORMATS.values()),
        *(("", [opener for opener, _ in form.wrappers]) for form in FORMATS.values()),
    ):
        for begin in (marker.partition("{")[0] for marker in markers):
            if len(begin) >= _SHORTEST_OPENER and not begin.isalpha():
                found.setdefault(begin, name)
    return found


@cache
def openers_pattern() -> re.Pattern[str]:
    """Return a pattern for text that begins like a call in one of the formats."""
    return re.compile("|".join(map(re.escape, sorted(_openers(), key=len, reverse=True))))


def may_find_near_call(text: str, tools: Mapping[str, Any] | None) -> bool:
    """Return whether `find_near_call` has something to examine, which takes longer than this check."""
    return tools != {} and _suspicion(text[:EXAMINED], tools or {}) is not None


def find_near_call(
    text: str, tools: Mapping[str, Any] | None, formats: Sequence[str] | None, *, read: bool = True
) -> NearCall | None:
    """Return the first text that looks like a call in a reply without calls, or None.

    `tools` are the schemas of the offered tools by name, or None if any name is accepted; `formats` are the names of
    the formats that were read, or None for the default ones. `read` means that the text was parsed at all.
    """
    text = text[:EXAMINED]
    at = None if tools is not None and not tools else _suspicion(text, tools or {})
    if at is None:
        return None
    for cause, options in _relaxations(text, tools, formats):
        found = _first_call(text, options, at)
        if found is None:
            continue
        if cause == "not read" and read:
            return None  # the call was found, and not delivered for a reason that the record contains
        place, name, form = found
        tool = name if tools is None or name in tools else _similar(name, tools)
        return NearCall(cause, place, _excerpt(text, place), form, name, tool)
    return _unmatched(text, at, tools or {})


def _suspicion(text: str, tools: Mapping[str, Any]) -> int | None:
    """Return the position of the first text that resembles a call, or None."""
    found = [match.start() for pattern in (openers_pattern(), _MARKUP) if (match := pattern.search(text))]
    used = next((match.start() for match in _USE.finditer(text) if (match["tag"] or match["name"]) in tools), None)
    return min((*found, *(() if used is None else (used,))), default=None)


def _relaxations(
    text: str, tools: Mapping[str, Any] | None, formats: Sequence[str] | None
) -> Iterator[tuple[NearCallCause, Mapping[str, Any]]]:
    """Yield the parser's options with one restriction lifted, and the cause if a call is found with them."""
    given = {"tools": tools, "formats": formats}
    yield "not read", given
    if formats is not None:
        yield "format", {"tools": tools}
    for name in sorted(OPT_IN.difference(formats or ())):
        if _may_contain(text, name):
            yield "format", {"tools": tools, "formats": (name,)}
    yield "fence", {**given, "in_fences": "calls"}
    yield "reasoning", {**given, "calls_in_reasoning": True}
    if tools is not None:
        yield "name", {"formats": formats}
        yield "name", {"in_fences": "calls", "calls_in_reasoning": True}


def _may_contain(text: str, name: str) -> bool:
    """Return whether the text contains the beginning of one of the format's openers, so far as it has a literal one."""
    form = FORMATS[name]
    begins = [opener.partition("{")[0] for variant in form.variants for opener in openers_of(form, variant)]
    return any(begin in text for begin in begins)


def _first_call(text: str, options: Mapping[str, Any], at: int) -> tuple[int, str, str] | None:
    """Return the position, the name and the format of the first call that is found with these options, or None."""
    given = dict(options)
    parser = Parser(given.pop("tools", None), **given, ledger=True)
    events = [*parser.feed(text), *parser.close()]
    start = next((event for event in events if isinstance(event, CallStart)), None)
    if start is None:
        return None
    spans = (
        span.start for span in parser.ledger if span.kind == "syntax" and start.name in text[span.start : span.end]
    )
    return next(spans, at), start.name, start.format


def _unmatched(text: str, at: int, tools: Mapping[str, Any]) -> NearCall | None:
    """Return what is known about text at this position that is a call in no format, or None if it is ordinary text."""
    name, tool = _named_tool(text[at : at + _AROUND], tools)
    opener = openers_pattern().match(text, at)
    known = "" if opener is None else _openers()[opener[0]]
    if known:
        return NearCall("unreadable", at, _excerpt(text, at), known, name, tool)
    begin = text[at : at + EXCERPT].lstrip()
    form = next(form for shape, form in _SHAPES if re.match(shape, begin))
    return None if form in _VAGUE and not tool else NearCall("no format", at, _excerpt(text, at), form, name, tool)


def _named_tool(text: str, tools: Mapping[str, Any]) -> tuple[str, str]:
    """Return the word that names a tool, exactly or nearly, and the tool's name; two empty strings if none does."""
    words = list(dict.fromkeys(_WORD.findall(text)))
    for word in words:
        if word in tools:
            return word, word
    for word in words:
        if len(word) >= _NAMED and (close := get_close_matches(word, tools, n=1, cutoff=_SIMILAR)):
            return word, close[0]
    return "", ""


def _similar(name: str, tools: Mapping[str, Any]) -> str:
    """Return the tool with the most similar name, or an empty string if none is similar."""
    lowered = {tool.lower(): tool for tool in tools}
    close = get_close_matches(name.lower(), lowered, n=1)
    return lowered[close[0]] if close else ""


def _excerpt(text: str, at: int) -> str:
    """Return the text at a position: an element, or the rest of the line, in at most `EXCERPT` characters."""
    element = _ELEMENT.match(text, at)
    cut = element[0] if element is not None else text[at : at + EXCERPT + 1].lstrip().partition("\n")[0]
    return cut if len(cut) <= EXCERPT else cut[: EXCERPT - 1] + "…"
