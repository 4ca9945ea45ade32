"""Recordings for the inspector, from files and from folders that are watched for new recordings."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from streamtool.core.errors import SettingsError
from streamtool.core.json_value import Json
from streamtool.observe.lines import VERSION, Line
from streamtool.observe.recordings import ENDING
from streamtool.observe.summary import summary


class RecordedExchanges:
    """The recordings in the given files and folders. Raises SettingsError if a file or folder contains no recording."""

    def __init__(self, names: Iterable[str]) -> None:
        self._ids: dict[Path, str] = {}
        self._files: dict[str, Path] = {}
        self._folders: list[Path] = []
        for name in names:
            place = Path(name)
            if place.is_dir():
                self._folders.append(place)
                if not any(map(is_recording, place.glob(f"*{ENDING}"))):
                    raise SettingsError(f"{name} contains no recordings (*{ENDING})", param=name)
            elif is_recording(place):
                self._add(place)
            else:
                raise SettingsError(f"{name} is not a recording that this version can read", param=name)

    def _add(self, file: Path) -> None:
        self._ids[file] = id = str(len(self._ids) + 1)
        self._files[id] = file

    def versions(self) -> dict[str, int]:
        """Return the size of each recording by its id. A changed size means that the recording has grown."""
        for folder in self._folders:
            for file in sorted(folder.glob(f"*{ENDING}")):
                if file not in self._ids and is_recording(file):
                    self._add(file)
        return {id: file.stat().st_size for id, file in self._files.items() if file.exists()}

    def summary(self, id: str) -> Json:
        """Return the list entry of a recording. Raises KeyError."""
        return summary(self.lines(id), id=id) | {"at": self._files[id].stat().st_mtime}

    def lines(self, id: str) -> Iterator[Line]:
        """Return the lines of a recording. Raises KeyError."""
        return read(self._files[id])


def is_recording(file: Path) -> bool:
    """Return whether the file begins like a recording. Raises SettingsError if it cannot be read."""
    first = next(read(file), None)
    return first is not None and first["type"] == "exchange" and first.get("trace") == VERSION


def read(file: Path) -> Iterator[Line]:
    """Yield the lines of a recording, except malformed ones, such as the last line of a killed process.

    Raises SettingsError if the file cannot be read.
    """
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    value = json.loads(line)
                except ValueError:
                    continue
                if isinstance(value, dict) and "type" in value:
                    yield value
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}", param=str(file)) from None
