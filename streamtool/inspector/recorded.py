"""Recordings as the inspector shows them: files, and folders, in which new ones are found while somebody looks."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from streamtool.conversation import Json
from streamtool.errors import SettingsError
from streamtool.inspector.summary import summary
from streamtool.observe.lines import VERSION, Line
from streamtool.observe.recordings import ENDING


class RecordedExchanges:
    """The recordings in these files and folders. Raises SettingsError for what is none."""

    def __init__(self, names: Iterable[str]) -> None:
        self._ids: dict[Path, str] = {}
        self._files: dict[str, Path] = {}
        self._folders: list[Path] = []
        for name in names:
            place = Path(name)
            if place.is_dir():
                self._folders.append(place)
                if not any(map(is_recording, place.glob(f"*{ENDING}"))):
                    raise SettingsError(f"{name} holds no recordings (*{ENDING})", param=name)
            elif is_recording(place):
                self._add(place)
            else:
                raise SettingsError(f"{name} is no recording of an exchange that this version can read", param=name)

    def _add(self, file: Path) -> None:
        self._ids[file] = id = str(len(self._ids) + 1)
        self._files[id] = file

    def versions(self) -> dict[str, int]:
        """The recordings by their ids; another number says that one has grown."""
        for folder in self._folders:
            for file in sorted(folder.glob(f"*{ENDING}")):
                if file not in self._ids and is_recording(file):
                    self._add(file)
        return {id: file.stat().st_size for id, file in self._files.items() if file.exists()}

    def summary(self, id: str) -> Json:
        """What the list shows of one. Raises KeyError."""
        return summary(self.lines(id), id=id) | {"at": self._files[id].stat().st_mtime}

    def lines(self, id: str) -> Iterator[Line]:
        """All of it. Raises KeyError."""
        return read(self._files[id])


def is_recording(file: Path) -> bool:
    """Whether the file begins like a recording. Raises SettingsError if it cannot be read."""
    first = next(read(file), None)
    return first is not None and first["type"] == "exchange" and first.get("trace") == VERSION


def read(file: Path) -> Iterator[Line]:
    """The lines of a recording; one that is broken, such as the last one of a process that was killed, is left out.

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
