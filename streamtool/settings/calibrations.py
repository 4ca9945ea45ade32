"""Calibrations: measured settings of models, which apply where mode, format and schema are not set.

`streamtool eval` writes them to a JSON file: a list with one object per model and url, the latest one last.
"""

# ruff: noqa: RUF009 - a default made by `setting` is an attrs field, not a value that instances share

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from attrs import NOTHING, asdict, frozen

from streamtool.core.errors import SettingsError
from streamtool.protocols.table import UPSTREAM_NAMES
from streamtool.settings import readers as read
from streamtool.settings.readers import setting
from streamtool.settings.tables import Mode, SchemaStyle

CHOSEN: Final = ("mode", "format", "schema")
"""The settings that a calibration chooses, unless one of them is set."""
_ANY: Final = "*"


@frozen
class Calibration:
    """The measurement of a model on a server: the settings that led to the right call most often."""

    model: str = setting(NOTHING)
    """The server's name for the model."""
    match: str = setting(NOTHING)
    """The model name that requests must have. `*`: any, because the server lists only this model."""
    url: str = setting(NOTHING, read.url)
    """The upstream's URL, as in the settings."""
    protocol: str = setting(NOTHING, read.one_of(*UPSTREAM_NAMES))
    date: str = setting(NOTHING)
    """Day of the measurement, as YYYY-MM-DD."""
    mode: Mode = setting(NOTHING)
    cases: int = setting(NOTHING, read.integer(1))
    """Number of scenarios that the model answered with these settings."""
    right: int = setting(NOTHING, read.integer(0))
    """Number of scenarios in which it did what was expected."""
    version: str = setting(NOTHING)
    """Version of streamtool."""
    server: str | None = setting(None)
    """The server's software and version; None if it did not report them."""
    format: str | None = setting(None, read.optional(read.format_name))
    """The taught format; None in `native` mode."""
    schema: SchemaStyle | None = setting(None)
    next: str | None = setting(None)
    """Name of the second best variant; None if only one was compared."""
    next_cases: int = setting(0, read.integer(0))
    next_right: int = setting(0, read.integer(0))

    @property
    def variant(self) -> str:
        """The measured settings in words, such as `format invoke`."""
        style = "" if self.schema in (None, "compact") else f", schema {self.schema}"
        return f"mode {self.mode}" if self.format is None else f"format {self.format}{style}"

    @property
    def reason(self) -> str:
        """A sentence about the measurement, which is the reason for the format."""
        other = f", next {self.next} in {_percent(self.next_right, self.next_cases)}" if self.next_cases else ""
        return f"measured {self.date}: right in {_percent(self.right, self.cases)} of {self.cases} cases{other}"

    def is_for(self, model: str, url: str) -> bool:
        """Return whether the measurement is that of this model at this URL."""
        return self.url == url and self.match in (_ANY, model)

    def change(self, server: str, models: Sequence[str]) -> str:
        """Return why the measurement no longer holds for a server of this version that lists these models, or "" if it
        may hold. `server` is "" and `models` empty if the server does not report them.
        """
        if server and self.server not in (None, server):
            return f"{self.url} is {server}, and {self.server} was measured"
        if self.match == _ANY and models and tuple(models) != (self.model,):
            return f"{self.url} lists {', '.join(models[:3])}"
        return ""


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %"


def find_calibration(known: Iterable[Calibration], model: str, url: str) -> Calibration | None:
    """Return the latest calibration for a model at a URL, preferably of a model with this name."""
    found = [one for one in known if one.is_for(model, url)]
    return next(reversed([one for one in found if one.model == model] or found), None)


def read_calibrations(text: str, name: str) -> tuple[Calibration, ...]:
    """Return the calibrations in the text of a file; `name` is its name in errors. Raises SettingsError, which names
    the invalid entry.
    """
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{name} is not JSON: {error}; delete it, and measure again", param=name) from None
    if not isinstance(entries, list):
        raise SettingsError(f"{name}: expected a JSON list of calibrations; delete it, and measure again", param=name)
    return tuple(_calibration(entry, f"{name}: entry {i}") for i, entry in enumerate(entries, 1))


def _calibration(entry: Any, place: str) -> Calibration:
    if not isinstance(entry, Mapping):
        raise SettingsError(f"{place} is not a JSON object", param=place)
    try:
        return read.table(Calibration, entry, "")
    except SettingsError as error:
        raise SettingsError(f"{place}, {error.message}", param=place, code=error.code) from None


def write_calibrations(known: Iterable[Calibration], new: Calibration) -> str:
    """Return the text of a file with the known calibrations and a new one, which replaces an older one of the same
    model and URL.
    """
    kept = [one for one in known if (one.model, one.url) != (new.model, new.url)]
    return json.dumps([asdict(one) for one in (*kept, new)], ensure_ascii=False, indent=2) + "\n"
