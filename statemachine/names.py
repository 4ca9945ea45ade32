"""Names that are nearly right: which of several known names a model means by the one that it wrote.

A name that is known exactly is never replaced. Otherwise, case, separators and namespace prefixes are ignored or, if
the caller allows it, one character may differ. A name is only returned if it is the only one that fits, so a repair
never decides between two names.
"""

import re
from functools import lru_cache
from typing import Final

NAMESPACES: Final = (
    "functions",
    "function",
    "default_api",
    "default_functions",
    "tools",
    "tool",
    "tool_code",
    "tool_calls",
    "multi_tool_use",
    "api",
)
"""Prefixes that models write before the name of a tool, followed by one of `SEPARATORS`."""
SEPARATORS: Final = (".", "::", ":", "/")
MIN_EDITED: Final = 4
"""Minimum length, in characters, of a name in which one character may differ: with fewer, most names are near."""

namespace = re.compile(
    rf"(?:{'|'.join(map(re.escape, NAMESPACES))})[ \t]*+(?:{'|'.join(map(re.escape, SEPARATORS))})[ \t]*+",
    re.IGNORECASE,
).match
separator = re.compile(r"[\s_.:/-]++").sub


def without_namespace(name: str) -> str:
    """Return a name without the namespace prefixes before it."""
    at = 0
    while (found := namespace(name, at)) is not None and found.end() < len(name):
        at = found.end()
    return name[at:]


@lru_cache(maxsize=4096)
def spelling_of(name: str) -> str:
    """Return what the spellings of a name have in common: its letters in lower case and its digits, without the
    separators between words. Return "" for a name without letters.
    """
    folded = separator(joined, name.casefold())
    return folded if any(map(str.isalpha, folded)) else ""


def joined(found: re.Match[str]) -> str:
    """Return what remains of a separator: between two digits, it matters, because `v1_2` is not `v12`."""
    around = found.string[found.start() - 1 : found.start()] + found.string[found.end() : found.end() + 1]
    return "_" if len(around) == 2 and around.isdecimal() else ""


def is_spelling(name: str, known: str) -> bool:
    """Return whether a name differs from a known one only in case, separators and namespace prefixes."""
    return spelling_of(known) in (spelling_of(name), spelling_of(without_namespace(name)))


def differs_in_one(name: str, other: str) -> bool:
    """Return whether one edit turns a name into another: a letter is inserted, deleted or replaced, or two neighbors
    are transposed. Digits must not differ.
    """
    if abs(len(name) - len(other)) > 1 or min(len(name), len(other)) < MIN_EDITED:
        return False
    begin = 0
    while begin < min(len(name), len(other)) and name[begin] == other[begin]:
        begin += 1
    end = 0
    while end < min(len(name), len(other)) - begin and name[-1 - end] == other[-1 - end]:
        end += 1
    here, there = name[begin : len(name) - end], other[begin : len(other) - end]
    if any(map(str.isdigit, here + there)):
        return False
    return max(len(here), len(there)) == 1 or (len(here) == len(there) == 2 and here == there[::-1])
