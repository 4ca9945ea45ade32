"""The playground, which parses text that the user enters."""

from collections.abc import Iterator, Mapping
from typing import Final

import statemachine
from streamtool.core.errors import RequestError
from streamtool.core.json_value import Json
from streamtool.inspector.timeline import ReplyTimeline
from streamtool.observe.verdicts import verdict_of_text

PACE: Final = 0.04
"""Seconds between pieces: the pace of a model that emits 25 pieces per second."""
MAX_TEXT: Final = 512 * 1024
"""Maximum length of the text, in characters."""
MAX_PIECES: Final = 50_000
"""Maximum number of pieces of the text."""


def play(asked: Json) -> Json:
    """Parse `text` in pieces of `cut` characters (0: in one piece) and return the timeline and the verdict.

    `tools` is a list of tools in a client's format, an object that maps names to schemas, or null to accept any name.
    `formats` is a list of names, or null for the default formats. Raises RequestError.
    """
    if not isinstance(asked, Mapping) or not isinstance(asked.get("text"), str):
        raise RequestError("send an object that contains `text`", param="text")
    text, cut = asked["text"], asked.get("cut", 4)
    if len(text) > MAX_TEXT:
        raise RequestError(f"the text has {len(text)} characters; the limit is {MAX_TEXT}", param="text")
    if not isinstance(cut, int) or isinstance(cut, bool) or cut < 0 or (cut and len(text) / cut > MAX_PIECES):
        raise RequestError(f"`cut` must be a number of characters that yields at most {MAX_PIECES} pieces", param="cut")
    timeline = ReplyTimeline(0, 0, 1, parser_of(asked))
    seconds = 0.0
    for piece in pieces(text, cut):
        timeline.feed(seconds, piece)
        seconds = round(seconds + PACE, 6)
    timeline.close(seconds, asked.get("reason"))
    offered, formats = statemachine.tools_of(asked.get("tools")), asked.get("formats") or None
    found = verdict_of_text(text, timeline.events, offered, formats)
    return {"replies": [timeline.as_json()], "verdict": found.as_json()}


def parser_of(asked: Mapping[str, Json]) -> statemachine.Parser:
    """Return a parser with the requested options. Raises RequestError."""
    formats, tools = asked.get("formats"), asked.get("tools")
    if formats is not None and not (isinstance(formats, list) and all(isinstance(name, str) for name in formats)):
        raise RequestError("`formats` must be a list of names, or null", param="formats")
    if not isinstance(tools, list | Mapping | None):
        raise RequestError("`tools` must be a list of tools, an object with schemas by name, or null", param="tools")
    try:
        return statemachine.Parser(
            tools,
            formats=formats or None,
            prefix=str(asked.get("prefix") or ""),
            calls_in_reasoning=bool(asked.get("calls_in_reasoning")),
            ledger=True,
        )
    except (TypeError, ValueError) as error:
        raise RequestError(f"`tools` or `formats`: {error}") from None


def pieces(text: str, cut: int) -> Iterator[str]:
    """Yield the text in pieces of `cut` characters, or in one piece if `cut` is 0."""
    step = cut or len(text) or 1
    for at in range(0, len(text), step):
        yield text[at : at + step]
