"""Sessions: conversations that are saved to JSON Lines files and can be resumed.

    {"type": "session", "version": 1, "name": "notes", "at": "2026-11-25T02:10:00+00:00"}
    {"type": "message", "at": …, "message": {"role": "user", "content": "Sum up my notes"}}
    {"type": "run", "at": …, "turns": 2, "calls": 1, "input": 812, "output": 64, "seconds": 3.2}

Messages are in Chat Completions form. Files are only appended to, without buffering, so a killed process loses only the
reply in progress. Unreadable lines are reported and skipped. Only one process at a time can write to a session. The
folder and the files are accessible only to their owner.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any, Self

from attrs import define, field

from streamtool.cli.common import print_error
from streamtool.cli.state import private_folder, state_folder
from streamtool.core.errors import RequestError, SettingsError
from streamtool.core.json_value import Json, json_line
from streamtool.protocols import chat

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]  # checked below


_SUFFIX = ".jsonl"
_MAX_NAME = 100
"""Maximum characters of a name."""
_MAX_LINE = 64 * 1024 * 1024
"""Maximum bytes of a line."""


def sessions_folder() -> Path:
    """Return the folder that contains the sessions. The folder may not exist yet."""
    return state_folder() / "sessions"


@define
class SessionFile:
    """Contents of a session file."""

    path: Path
    messages: list[Mapping[str, Json]] = field(factory=list)
    turns: int = 0
    broken: list[int] = field(factory=list)
    """Numbers of unreadable lines."""

    @property
    def name(self) -> str:
        """Name of the session."""
        return self.path.name.removesuffix(_SUFFIX)

    @property
    def task(self) -> str:
        """The first task, or an empty string if the session contains no task."""
        said = (one.get("content") for one in self.messages if one.get("role") == "user")
        return next((text for text in said if isinstance(text, str)), "")

    @property
    def changed(self) -> datetime:
        """Time of the last change, in local time. Raises OSError."""
        return datetime.fromtimestamp(self.path.stat().st_mtime, UTC).astimezone()


def read_session(path: Path) -> SessionFile:
    """Read a session file. Raises OSError."""
    kept = SessionFile(path)
    with path.open("rb") as file:
        for number, line in enumerate(_lines(file), 1):
            try:
                entry = json.loads(line)
                if entry["type"] == "message":
                    chat.read_messages([entry["message"]])  # an invalid message would make all later requests fail
                    kept.messages.append(entry["message"])
                elif entry["type"] == "run":
                    kept.turns += int(entry["turns"])
            except (ValueError, TypeError, KeyError, RecursionError, RequestError):
                kept.broken.append(number)
    return kept


def _lines(file: Any) -> Iterator[bytes]:
    while line := file.readline(_MAX_LINE):
        yield line


def all_sessions() -> list[SessionFile]:
    """Return all sessions, latest first."""
    try:
        paths = [path for path in sessions_folder().iterdir() if path.name.endswith(_SUFFIX)]
    except OSError:
        return []
    found: list[tuple[float, Path]] = []
    for path in paths:
        try:
            found.append((path.stat().st_mtime, path))
        except OSError:  # the file has just been deleted
            continue
    kept: list[SessionFile] = []
    for _, path in sorted(found, reverse=True):
        try:
            kept.append(read_session(path))
        except OSError:
            continue
    return kept


def latest_name() -> str:
    """Return the name of the most recently changed session. Raises SettingsError if no session exists."""
    try:
        paths = [path for path in sessions_folder().iterdir() if path.name.endswith(_SUFFIX)]
        return max(paths, key=lambda path: path.stat().st_mtime).name.removesuffix(_SUFFIX)
    except (OSError, ValueError):
        raise SettingsError("no session to resume", param="--resume") from None


def new_name() -> str:
    """Return an unused name based on the local time."""
    stem = datetime.now(UTC).astimezone().strftime("%Y-%m-%d-%H%M%S")
    names = (stem, *(f"{stem}-{i}" for i in range(2, 100)))
    return next(name for name in names if not _path_of(name).exists())


def _path_of(name: str) -> Path:
    """Return the path of a session's file. Raises SettingsError for an invalid name."""
    allowed = all(char.isalnum() or char in "-_." for char in name)
    if not (name and allowed and len(name) <= _MAX_NAME and not name.startswith((".", "-"))):
        raise SettingsError(f"--session: expected letters, digits, `-`, `_` and `.`, found {name!r}", param="--session")
    return sessions_folder() / f"{name}{_SUFFIX}"


class Session:
    """An open session. Contains the messages saved earlier, and saves new ones."""

    def __init__(self, name: str, *, resume: bool = False) -> None:
        """Open or create the session.

        Raises SettingsError if this fails, including when `resume` is set and the session does not exist.
        """
        path = _path_of(name)
        if resume and not path.exists():
            raise SettingsError(f"no session {name!r}; streamtool sessions lists all of them", param="--session")
        try:
            self._file = _open_locked(path)
            self._existed = self._file.tell() > 0
            self.contents = read_session(path)
        except OSError as error:
            raise SettingsError(f"cannot save the session to {path}: {error.strerror}", param="--session") from None
        for number in self.contents.broken:
            print_error(f"session {name}: skipping unreadable line {number}")
        if not self._existed:
            self._append({"type": "session", "version": 1, "name": name})
        elif not _ends_with_newline(path):
            self._file.write(b"\n")

    @property
    def name(self) -> str:
        """Name of the session."""
        return self.contents.name

    def add(self, messages: Sequence[Mapping[str, Json]]) -> None:
        """Append messages."""
        self.contents.messages += messages
        self._append(*({"type": "message", "message": message} for message in messages))

    def add_run(self, **sums: float) -> None:
        """Append the totals of a run."""
        self.contents.turns += int(sums["turns"])
        self._append({"type": "run", **sums})

    def _append(self, *entries: Mapping[str, Json]) -> None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        lines = [json_line({"type": entry["type"], "at": at, **entry}).encode("utf-8", "replace") for entry in entries]
        if lines:
            self._file.write(b"".join(line + b"\n" for line in lines))

    def close(self) -> None:
        """Close the file, and delete it if it is new and contains no messages."""
        if not self._file.closed and not self._existed and not self.contents.messages:
            self.contents.path.unlink(missing_ok=True)
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open_locked(path: Path) -> FileIO:
    """Open and lock a file for appending. Raises OSError, and SettingsError if another process has it open."""
    private_folder(path.parent.parent)
    private_folder(path.parent)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    file = FileIO(os.open(path, flags, 0o600), "ab")
    os.chmod(path, 0o600)  # noqa: PTH101  another program may have created it
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


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
