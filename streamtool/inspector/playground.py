"""A text of one's own through the parser, as the page shows it."""

from collections.abc import Iterator, Mapping
from typing import Final

import statemachine
from streamtool.conversation import Json
from streamtool.errors import RequestError
from streamtool.inspector.timeline import ReplyTimeline

PACE: Final = 0.04
"""Seconds between two pieces: what a model takes that writes 25 a second."""
LARGEST: Final = 512 * 1024
"""Characters of a text."""
MOST: Final = 50_000
"""Pieces of a text."""


def played(asked: Json) -> Json:
    """The timeline of a text (`text`) that arrives in pieces (`cut` characters; 0: whole), and what became of it.

    `tools` are a list of tools as clients write them, schemas by name, or null: any name is a tool. `formats` are
    names, or null: those that are on. Raises RequestError, which says what to do.
    """
    if not isinstance(asked, Mapping) or not isinstance(asked.get("text"), str):
        raise RequestError("send an object with a `text`", param="text")
    text, cut = asked["text"], asked.get("cut", 4)
    if len(text) > LARGEST:
        raise RequestError(f"the text has {len(text)} characters; at most {LARGEST} are read here", param="text")
    if not isinstance(cut, int) or isinstance(cut, bool) or cut < 0 or (cut and len(text) / cut > MOST):
        raise RequestError(f"`cut` is a number of characters that leaves at most {MOST} pieces", param="cut")
    timeline = ReplyTimeline(0, 0, 1, parser_of(asked))
    seconds = 0.0
    for piece in pieces(text, cut):
        timeline.feed(seconds, piece)
        seconds = round(seconds + PACE, 6)
    timeline.close(seconds, asked.get("reason"))
    return {"replies": [timeline.as_json()]}


def parser_of(asked: Mapping[str, Json]) -> statemachine.Parser:
    """The parser that reads it. Raises RequestError."""
    formats, tools = asked.get("formats"), asked.get("tools")
    if formats is not None and not (isinstance(formats, list) and all(isinstance(name, str) for name in formats)):
        raise RequestError("`formats` is a list of names, or null", param="formats")
    if not isinstance(tools, list | Mapping | None):
        raise RequestError("`tools` is a list of tools, an object of schemas by name, or null", param="tools")
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
    """The text in pieces of `cut` characters; 0: whole."""
    step = cut or len(text) or 1
    for at in range(0, len(text), step):
        yield text[at : at + step]
