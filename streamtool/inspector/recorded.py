"""Recordings as the inspector shows them: files, and folders of files."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from streamtool.conversation import Json
from streamtool.errors import SettingsError
from streamtool.inspector.summary import summary
from streamtool.observe.lines import VERSION, Line
from streamtool.observe.recordings import ENDING


class Recorded:
    """The recordings in these files and folders. Raises SettingsError for what is none."""

    def __init__(self, names: Iterable[str]) -> None:
        self._files: dict[str, Path] = {}
        for name in names:
            place = Path(name)
            found = sorted(place.glob(f"*{ENDING}")) if place.is_dir() else [place]
            if not found:
                raise SettingsError(f"{name} holds no recordings (*{ENDING})", param=name)
            for file in found:
                self._files[str(len(self._files) + 1)] = file
        for file in self._files.values():
            self._check(file)

    @staticmethod
    def _check(file: Path) -> None:
        first = next(read(file), None)
        if first is None or first.get("type") != "exchange" or first.get("trace") != VERSION:
            raise SettingsError(f"{file} is no recording of an exchange that this version can read", param=str(file))

    def versions(self) -> dict[str, int]:
        """The recordings by their ids; another number says that one has grown."""
        return {id: file.stat().st_size for id, file in self._files.items() if file.exists()}

    def summary(self, id: str) -> Json:
        """What the list shows of one. Raises KeyError."""
        return summary(self.lines(id), id=id) | {"at": self._files[id].stat().st_mtime}

    def lines(self, id: str) -> Iterator[Line]:
        """All of it. Raises KeyError."""
        return read(self._files[id])


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
