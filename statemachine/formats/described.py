"""Formats that are not in the table, but are known by name like its rows: those that models describe themselves.

A name is derived from the description, so it never changes its meaning, and nothing is ever removed.
"""

from statemachine.formats.format import Format, FormatError, check_formats
from statemachine.formats.table import FORMATS

_described: dict[str, Format] = {}


def add_format(form: Format) -> None:
    """Make a format known by its name.

    Raises:
        FormatError: the format cannot be read, or another format has this name.
    """
    check_formats({form.name: form})
    if FORMATS.get(form.name, form) != form or _described.setdefault(form.name, form) != form:
        raise FormatError(f"{form.name}: another format has this name")


def find_format(name: str) -> Format:
    """Return the format with this name.

    Raises:
        KeyError: no format has this name.
    """
    return FORMATS[name] if name in FORMATS else _described[name]


def is_format(name: str) -> bool:
    """Return whether a format has this name."""
    return name in FORMATS or name in _described
