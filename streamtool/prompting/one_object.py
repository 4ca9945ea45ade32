"""Formats in which the entire reply is one object: a final answer has a distinct form, and text is a field of the
object.

In all other formats, text is written as plain text. The table of formats defines which formats use one object, and
which keys contain text: such formats have an envelope with a `final` key (and a `thought` key).
"""

import json
from functools import lru_cache

from statemachine.formats import Envelope, find_format

MAX_THOUGHT = 200
"""Maximum length of a thought, as the protocol defines it."""


@lru_cache(maxsize=256)
def _envelope(format: str) -> Envelope | None:
    bodies = [variant.body for variant in find_format(format).variants]
    return next((body for body in bodies if isinstance(body, Envelope) and body.final), None)


def is_one_object(format: str) -> bool:
    """Return whether a reply in this format is one object and nothing else."""
    return _envelope(format) is not None


def answer_text(text: str, format: str) -> str:
    """Return a final answer as this format writes it."""
    envelope = _envelope(format)
    if envelope is None:
        return text
    written = json.dumps(text, ensure_ascii=False)
    for key in reversed(envelope.final):
        written = f"{{{json.dumps(key)}: {written}}}"
    return written


def join_text_and_calls(text: str, calls: str, format: str) -> str:
    """Return text and the calls that follow it as one reply in this format. If the entire reply is one object, the text
    becomes the object's thought.
    """
    envelope = _envelope(format)
    if not text:
        return calls
    if envelope is None:
        return f"{text}\n{calls}"
    thought = json.dumps(text[:MAX_THOUGHT], ensure_ascii=False)
    blank = f'{{{json.dumps(envelope.thought)}: ""'
    return f"{blank[:-2]}{thought}{calls.removeprefix(blank)}" if calls.startswith(blank) else calls
