"""Finds the line of a settings file that an error is about."""

import re
import tomllib
from typing import Any, Final

_LINES: Final = 500
"""Maximum number of lines in which a place is searched: each of them is parsed with all lines before it."""
_SYNTAX: Final = re.compile(r"\(at line (\d+), column \d+\)")
_AT_END: Final = "(at end of document)"
_INDEX: Final = re.compile(r"\[(\d+)\](?:\.|(?=\[)|$)")


def line_of(text: str, path: str) -> int | None:
    """Return the number of the line on which the setting at this path begins or, if the file does not contain it, the
    table that should. None if the file contains neither.
    """
    lines = text.splitlines(keepends=True)
    whole = _parsed(text)
    if whole is None or len(lines) > _LINES:
        return None
    while path and not contains(whole, path):
        path = path.rpartition("[" if path.endswith("]") else ".")[0]
    if not path:
        return None
    begins = 0
    for number in range(1, len(lines) + 1):
        tree = _parsed("".join(lines[:number]))
        if tree is None:  # a value continues on the next line
            continue
        if contains(tree, path):
            return begins + 1
        begins = number
    return None


def line_of_syntax_error(text: str, message: str) -> int | None:
    """Return the number of the line that the message of the TOML parser names."""
    found = _SYNTAX.search(message)
    return int(found[1]) if found else len(text.splitlines()) if _AT_END in message else None


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except ValueError:
        return None


def contains(tree: Any, path: str) -> bool:
    """Return whether the tree has a value at this path. A key may contain dots."""
    if not path:
        return True
    if isinstance(tree, list):
        index = _INDEX.match(path)
        return index is not None and int(index[1]) < len(tree) and contains(tree[int(index[1])], path[index.end() :])
    if not isinstance(tree, dict):
        return False
    return any(
        path == key
        or (path.startswith(f"{key}.") and contains(value, path[len(key) + 1 :]))
        or (path.startswith(f"{key}[") and contains(value, path[len(key) :]))
        for key, value in tree.items()
    )
