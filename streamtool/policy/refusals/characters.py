"""Characters as phrases see them: what does not count is removed, and each is of one kind.

Letter case, accents and width do not count, nor do characters without width, nor emphasis (`**no**`). Typographic
apostrophes are apostrophes. All of it happens one character at a time, so it does not matter how a text is cut.
"""

import unicodedata
from functools import lru_cache

END = "\x03"
"""The end of the text, as a character."""

SPACE, LINE, STOP, PAUSE, OPEN, APOSTROPHE, HYPHEN, WORD, OTHER, OVER = "SLCPBAHWOE"
"""Kinds: white space, line end, end of a sentence, end of a clause, opening bracket, …, the end of the text.

They are capital letters, which folded text does not have: a kind is never mistaken for a character.
"""
WHITE = SPACE + LINE
CLAUSE = STOP + PAUSE + OPEN + LINE
"""After one of these a new clause begins."""
INSIDE = WORD + APOSTROPHE + HYPHEN
"""What a word is made of."""

_APOSTROPHES = frozenset("'’‘ʼ´′＇‛")
_EMPHASIS = frozenset("*_`")
_KINDS = {
    **dict.fromkeys("\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029", LINE),
    **dict.fromkeys(".!?。।", STOP),
    **dict.fromkeys(",;:、·—–―", PAUSE),
    **dict.fromkeys("([{<", OPEN),
    "'": APOSTROPHE,
    "-": HYPHEN,
    "‐": HYPHEN,
    END: OVER,
}
_INVISIBLE = ("Mn", "Me", "Cf")


@lru_cache(maxsize=4096)
def fold(char: str) -> str:
    """The characters that `char` stands for: none, one, or a few ("…" is three points)."""
    if char in _EMPHASIS or char == END:
        return ""
    if char in _APOSTROPHES:
        return "'"
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", char).casefold())
    return "".join("-" if c == "‐" else c for c in plain if unicodedata.category(c) not in _INVISIBLE)


@lru_cache(maxsize=4096)
def kind(char: str) -> str:
    """The kind of a folded character."""
    found = _KINDS.get(char)
    if found is None:
        found = WORD if char.isalnum() else SPACE if char.isspace() else OTHER
    return found


def folded(text: str) -> str:
    """The text as phrases see it."""
    return "".join(map(fold, text))
