"""Sessions: conversations that are kept in files, one object of JSON a line, and can be gone on with.

    {"type": "session", "version": 1, "name": "notes", "at": "2026-11-25T02:10:00+00:00"}
    {"type": "message", "at": …, "message": {"role": "user", "content": "Sum up my notes"}}
    {"type": "run", "at": …, "turns": 2, "calls": 1, "input": 812, "output": 64, "seconds": 3.2}

The messages are those of Chat Completions. A file is only ever appended to, and what is appended is on its way to the
disk at once, so a process that is killed loses what its last reply had not finished. A line that cannot be read is
named and left out. One process at a time may write to a session. Folder and files belong to their user alone.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any, Self

from attrs import define, field

from streamtool.cli.common import complain
from streamtool.errors import RequestError, SettingsError
from streamtool.protocols import chat

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # asked for below

Json = Any  # a decoded JSON value

_SUFFIX = ".jsonl"
_LONGEST = 100
"""Characters of a name."""
_LINE = 64 * 1024 * 1024
"""Bytes of a line."""


def state_folder() -> Path:
    """The folder of what outlives a run, of this user."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state") / "streamtool"


def private_folder(path: Path) -> Path:
    """The folder, made if need be, with no access for others. Raises OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)
    return path


def sessions_folder() -> Path:
    """The folder of sessions; it may be missing."""
    return state_folder() / "sessions"


@define
class SessionFile:
    """What a file of a session holds."""

    path: Path
    messages: list[Mapping[str, Json]] = field(factory=list)
    turns: int = 0
    broken: list[int] = field(factory=list)
    """The numbers of lines that could not be read."""

    @property
    def name(self) -> str:
        """The name of the session."""
        return self.path.name.removesuffix(_SUFFIX)

    @property
    def task(self) -> str:
        """The first task, "" if there is none."""
        said = (one.get("content") for one in self.messages if one.get("role") == "user")
        return next((text for text in said if isinstance(text, str)), "")

    @property
    def changed(self) -> datetime:
        """When it was last written to, in the local time. Raises OSError."""
        return datetime.fromtimestamp(self.path.stat().st_mtime, UTC).astimezone()


def read_session(path: Path) -> SessionFile:
    """What the file holds. Raises OSError."""
    kept = SessionFile(path)
    with path.open("rb") as file:
        for number, line in enumerate(_lines(file), 1):
            try:
                entry = json.loads(line)
                if entry["type"] == "message":
                    chat.read_messages([entry["message"]])  # what is none would fail with every later request
                    kept.messages.append(entry["message"])
                elif entry["type"] == "run":
                    kept.turns += int(entry["turns"])
            except (ValueError, TypeError, KeyError, RecursionError, RequestError):
                kept.broken.append(number)
    return kept


def _lines(file: Any) -> Iterator[bytes]:
    while line := file.readline(_LINE):
        yield line


def all_sessions() -> list[SessionFile]:
    """The sessions, the latest first."""
    try:
        paths = [path for path in sessions_folder().iterdir() if path.name.endswith(_SUFFIX)]
    except OSError:
        return []
    found: list[tuple[float, Path]] = []
    for path in paths:
        try:
            found.append((path.stat().st_mtime, path))
        except OSError:  # it has just gone
            continue
    kept: list[SessionFile] = []
    for _, path in sorted(found, reverse=True):
        try:
            kept.append(read_session(path))
        except OSError:
            continue
    return kept


def latest_name() -> str:
    """The name of the session that was last written to. Raises SettingsError if there is none."""
    try:
        paths = [path for path in sessions_folder().iterdir() if path.name.endswith(_SUFFIX)]
        return max(paths, key=lambda path: path.stat().st_mtime).name.removesuffix(_SUFFIX)
    except (OSError, ValueError):
        raise SettingsError("there is no session to resume", param="--resume") from None


def new_name() -> str:
    """A name that no session has: the local time."""
    stem = datetime.now(UTC).astimezone().strftime("%Y-%m-%d-%H%M%S")
    names = (stem, *(f"{stem}-{i}" for i in range(2, 100)))
    return next(name for name in names if not _path_of(name).exists())


def _path_of(name: str) -> Path:
    """The file of a session. Raises SettingsError for what cannot be a name."""
    allowed = all(char.isalnum() or char in "-_." for char in name)
    if not (name and allowed and len(name) <= _LONGEST and not name.startswith((".", "-"))):
        raise SettingsError(f"--session: a name has letters, digits, `-`, `_` and `.`, not {name!r}", param="--session")
    return sessions_folder() / f"{name}{_SUFFIX}"


class Session:
    """A session that is open: what it held, and what is added to it."""

    def __init__(self, name: str, *, resume: bool = False) -> None:
        """Open the session of this name, or begin it. Raises SettingsError, also if `resume` and there is none."""
        path = _path_of(name)
        if resume and not path.exists():
            raise SettingsError(f"there is no session {name!r}; streamtool sessions lists them", param="--session")
        try:
            self._file = _opened(path)
            self._kept_before = self._file.tell() > 0
            self.kept = read_session(path)
        except OSError as error:
            raise SettingsError(f"the session {path} cannot be kept: {error.strerror}", param="--session") from None
        for number in self.kept.broken:
            complain(f"session {name}: line {number} cannot be read and is left out")
        if not self._kept_before:
            self._append({"type": "session", "version": 1, "name": name})
        elif not _ends_in_a_line(path):
            self._file.write(b"\n")

    @property
    def name(self) -> str:
        """Its name."""
        return self.kept.name

    def add(self, messages: Sequence[Mapping[str, Json]]) -> None:
        """Keep these messages."""
        self.kept.messages += messages
        self._append(*({"type": "message", "message": message} for message in messages))

    def add_run(self, **sums: float) -> None:
        """Keep what a run took."""
        self.kept.turns += int(sums["turns"])
        self._append({"type": "run", **sums})

    def _append(self, *entries: Mapping[str, Json]) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        lines = [
            json.dumps({"type": entry["type"], "at": at, **entry}, ensure_ascii=False).encode("utf-8", "replace")
            for entry in entries
        ]
        if lines:
            self._file.write(b"".join(line + b"\n" for line in lines))

    def close(self) -> None:
        """Close the file; it goes if it is new and nothing was said."""
        if not self._file.closed and not self._kept_before and not self.kept.messages:
            self.kept.path.unlink(missing_ok=True)
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _opened(path: Path) -> FileIO:
    """The file, at its end, for this process alone. Raises OSError, SettingsError if another one has it."""
    private_folder(path.parent.parent)
    private_folder(path.parent)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    file = FileIO(os.open(path, flags, 0o600), "ab")
    os.chmod(path, 0o600)  # noqa: PTH101  a file of others' making
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise SettingsError(
                f"another process has the session {path.name.removesuffix(_SUFFIX)} open", param="--session"
            ) from None
    file.seek(0, os.SEEK_END)
    return file


def _ends_in_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
