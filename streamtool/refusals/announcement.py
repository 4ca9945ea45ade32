"""Detection of an announced call in the last sentence of a reply that contains no call.

"Let me check the file." at the very end announces a call. The same words are not an announcement if an answer follows,
if they are in a list, a quotation or a question, or if they depend on a condition ("if you agree, …"). Only the last
sentence is examined, and only if it is not too long. A phrase may begin wherever a clause begins, and no later phrase
in the sentence may retract it.
"""

import re

from streamtool.refusals.characters import END, fold_text
from streamtool.refusals.phrases import Phrases, default_phrases

MAX_SENTENCE = 600
"""Number of characters to examine at the end of a reply. A longer sentence is never an announcement."""

_TRAILING = " \t\r\n\x0b\x0c\u200b\ufeff*_"
_ENDS = re.compile(r"(?:[.!?…]+[\"'”’»)\]*_]*(?=\s)|[。！？]|[\r\n])")
_NOT_PROSE = re.compile(r"\s*(?:[-+*•·]\s|\d+[.)]\s|[>|#]|```|~~~)")
"""Matches the beginning of a line that is not prose: a list, quotation, table, heading or code."""
_QUOTED = re.compile(r"\s*[\"'“”„«»「『‘`]")
_CLOSED = re.compile(r":\s*\S")


def find_announcement(text: str, phrases: Phrases | None = None) -> str | None:
    """Return the phrase that announces a call at the end of `text`, or None."""
    phrases = default_phrases() if phrases is None else phrases
    tail = text[-MAX_SENTENCE:].rstrip(_TRAILING)
    ends = [found.end() for found in _ENDS.finditer(tail) if found.end() < len(tail)]
    if not ends and len(text) > MAX_SENTENCE:
        return None
    sentence = tail[ends[-1] if ends else 0 :]
    line = tail[max(tail.rfind("\n"), tail.rfind("\r")) + 1 :]
    if sentence.endswith(("?", "？")) or _QUOTED.match(sentence) or _NOT_PROSE.match(line):
        return None
    return _announces(fold_text(sentence.lstrip()), phrases)


def _announces(sentence: str, phrases: Phrases) -> str | None:
    whole = sentence + END
    announced = phrases.announced.first_match(whole)
    # Hardly any reply announces a call, so the phrases that retract an announcement are rarely looked for.
    if announced is None or phrases.unannounced.first_match(whole) is not None:
        return None
    match, end = announced
    return None if _CLOSED.search(sentence, end) else match.phrase
