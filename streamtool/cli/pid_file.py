"""PID file that identifies the process serving an address, for `streamtool reload`.

The file is in the user's runtime folder (`XDG_RUNTIME_DIR`, or a folder inside the system's folder for temporary files)
and contains the process id. The process keeps the file locked: an unlocked file is stale.
"""

import importlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

fcntl: Any = None
with suppress(ImportError):  # Windows has neither this module nor SIGHUP
    fcntl = importlib.import_module("fcntl")


@contextmanager
def pid_file(address: str) -> Iterator[None]:
    """Write the PID file for the duration of the block, if its folder is private."""
    path = _path(address)
    if fcntl is None or not _ensure_private(path.parent):
        yield
        return
    with path.open("a+") as file:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()


def process_at(address: str) -> int | None:
    """Return the id of this user's process that serves the address, or None if no such process exists."""
    path = _path(address)
    if fcntl is None or not _ensure_private(path.parent):
        return None
    try:
        with path.open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read())
    except (OSError, ValueError):
        pass
    return None


def _path(address: str) -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    user = str(os.getuid()) if hasattr(os, "getuid") else ""
    folder = Path(runtime) / "streamtool" if runtime else Path(tempfile.gettempdir()) / f"streamtool-{user}"
    return folder / f"{quote(address, safe='')}.pid"


def _ensure_private(folder: Path) -> bool:
    """Create the folder if it is missing, and return whether only this user can write to it."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    return found.st_uid == os.getuid() and not found.st_mode & 0o022 and not folder.is_symlink()
