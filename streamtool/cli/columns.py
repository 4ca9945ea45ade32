"""Text layout in terminal columns. A character occupies one column, two (CJK, emoji) or none (combining characters)."""

from rich.cells import cell_len

from streamtool.cli.common import CONTROL_CHARACTERS

WIDTH = 80
"""Maximum number of columns in a line, so that it fits on any common terminal."""


def fit(text: str, columns: int) -> str:
    """Return the text, truncated with `…` if it does not fit into this many columns."""
    if cell_len(text) <= columns:
        return text
    taken, size = 0, 1  # room for the ellipsis
    for char in text:
        size += cell_len(char)
        if size > columns:
            break
        taken += 1
    return text[:taken] + "…"


def pad(text: str, columns: int) -> str:
    """Return the text, truncated or padded with spaces to exactly this many columns."""
    text = fit(text, columns)
    return text + " " * (columns - cell_len(text))


def wrap(text: str, columns: int) -> list[str]:
    """Wrap the text at spaces into lines of at most this many columns. Return at least one line."""
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


def replace_controls(text: str) -> str:
    """Replace the control characters that a terminal would interpret, except newlines and tabs."""
    return text.translate(CONTROL_CHARACTERS)
