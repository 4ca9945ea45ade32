"""Formats in which the whole reply is one object: a final answer has a form of its own, and text has a place in it.

In every other format text is text. Which formats these are, and under which keys text stands in them, says the table
of formats: an envelope with a `final` key (and a `thought`).
"""

import json
from functools import lru_cache

from statemachine import FORMATS
from statemachine.formats import Envelope

THOUGHT_LENGTH = 200
"""Characters of a thought, by the rules of the protocol."""


@lru_cache(maxsize=256)
def _envelope(format: str) -> Envelope | None:
    bodies = [variant.body for variant in FORMATS[format].variants]
    return next((body for body in bodies if isinstance(body, Envelope) and body.final), None)


def is_whole(format: str) -> bool:
    """True if a reply in this format is one object and nothing else."""
    return _envelope(format) is not None


def answer_text(text: str, format: str) -> str:
    """A final answer as the format has it."""
    envelope = _envelope(format)
    if envelope is None:
        return text
    written = json.dumps(text, ensure_ascii=False)
    for key in reversed(envelope.final):
        written = f"{{{json.dumps(key)}: {written}}}"
    return written


def with_text(text: str, calls: str, format: str) -> str:
    """Text and the calls that follow it, as one reply of the format; in one object the text is its thought."""
    envelope = _envelope(format)
    if not text:
        return calls
    if envelope is None:
        return f"{text}\n{calls}"
    thought = json.dumps(text[:THOUGHT_LENGTH], ensure_ascii=False)
    blank = f'{{{json.dumps(envelope.thought)}: ""'
    return f"{blank[:-2]}{thought}{calls.removeprefix(blank)}" if calls.startswith(blank) else calls
