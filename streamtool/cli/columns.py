"""Text within the columns of a terminal. A character takes one column, two (CJK, emoji) or none (combining ones)."""

from rich.cells import cell_len

from streamtool.cli.common import HARMLESS

WIDTH = 80
"""Columns that every terminal has."""


def fitted(text: str, columns: int) -> str:
    """The text if it fits into so many columns, else as much of its beginning as does, and `…`."""
    if cell_len(text) <= columns:
        return text
    taken, size = 0, 1  # the ellipsis
    for char in text:
        size += cell_len(char)
        if size > columns:
            break
        taken += 1
    return text[:taken] + "…"


def padded(text: str, columns: int) -> str:
    """The text, fitted, with blanks behind it up to so many columns."""
    text = fitted(text, columns)
    return text + " " * (columns - cell_len(text))


def folded(text: str, columns: int) -> list[str]:
    """The text in lines of at most so many columns, broken at blanks where there are any; at least one line."""
    return [line for part in text.split("\n") for line in _folded(part, columns)]


def _folded(text: str, columns: int) -> list[str]:
    lines = [""]
    for word in text.split(" "):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(joined) <= columns:
            lines[-1] = joined
            continue
        if lines[-1]:
            lines.append("")
        for char in word:
            if cell_len(lines[-1] + char) > columns:
                lines.append("")
            lines[-1] += char
    return lines


def harmless(text: str) -> str:
    """The text without what a terminal would obey: control characters, but for line ends and tabs."""
    return text.translate(HARMLESS)
