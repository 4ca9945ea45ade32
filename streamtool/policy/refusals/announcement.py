"""Finds the announcement of a call in the last sentence of a reply that made none.

"Let me check the file." at the very end announces; the same words in front of an answer, in a list, a quotation, a
question or under a condition ("if you agree, …") do not. Only the last sentence counts, and of it a bounded tail. A
phrase may begin where a clause does, and the rest of the sentence must not take it back.
"""

import re

from streamtool.policy.refusals.characters import END, folded
from streamtool.policy.refusals.phrases import Phrases, default_phrases

TAIL = 600
"""Characters of the end that are looked at. A sentence that is longer announces nothing."""

_TRAILING = " \t\r\n\x0b\x0c\u200b\ufeff*_"
_ENDS = re.compile(r"(?:[.!?…]+[\"'”’»)\]*_]*(?=\s)|[。！？]|[\r\n])")
_NO_PROSE = re.compile(r"\s*(?:[-+*•·]\s|\d+[.)]\s|[>|#]|```|~~~)")
"""Lines that are no prose: lists, quotations, tables, headings, code."""
_QUOTED = re.compile(r"\s*[\"'“”„«»「『‘`]")
_CLOSED = re.compile(r":\s*\S")


def announced(text: str, phrases: Phrases | None = None) -> str | None:
    """The phrase by which the end of `text` announces a call; None if it announces none."""
    phrases = default_phrases() if phrases is None else phrases
    tail = text[-TAIL:].rstrip(_TRAILING)
    ends = [found.end() for found in _ENDS.finditer(tail) if found.end() < len(tail)]
    if not ends and len(text) > TAIL:
        return None
    sentence = tail[ends[-1] if ends else 0 :]
    line = tail[max(tail.rfind("\n"), tail.rfind("\r")) + 1 :]
    if sentence.endswith(("?", "？")) or _QUOTED.match(sentence) or _NO_PROSE.match(line):
        return None
    return _announces(folded(sentence.lstrip()), phrases)


def _announces(sentence: str, phrases: Phrases) -> str | None:
    found: str | None = None
    after = len(sentence)
    node, against = phrases.announced.start(), phrases.unannounced.start()
    for place, char in enumerate((*sentence, END)):
        vetoed = phrases.unannounced.step(against, char)
        if vetoed is None or vetoed.match is not None:
            return None
        against = vetoed
        if found is None:
            step = phrases.announced.step(node, char)
            if step is None:
                return None
            node = step
            if step.match is not None:
                found, after = step.match.phrase, place
    return None if _CLOSED.search(sentence, after) else found
