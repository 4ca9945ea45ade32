"""Formats that are not in the table, but are known by name like its rows: those that models describe themselves, and
those of other distributions.

The name of a described format is derived from its description, so it never changes its meaning, and nothing is ever
removed.
"""

from statemachine.formats.format import Format, FormatError, check_formats
from statemachine.formats.plugins import plugged_formats
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
    if name not in FORMATS and name not in _described:
        _add_plugged()
    return FORMATS[name] if name in FORMATS else _described[name]


def is_format(name: str) -> bool:
    """Return whether a format has this name."""
    if name not in FORMATS and name not in _described:
        _add_plugged()
    return name in FORMATS or name in _described


def _add_plugged() -> None:
    """Make the formats of other distributions known. Raises FormatError."""
    for form in plugged_formats():
        add_format(form)
