"""The file that tells `streamtool reload` which process serves an address.

It is in the user's own folder for what runs (`XDG_RUNTIME_DIR`, else one in the folder for temporary files), and holds
the number of the process, which keeps it locked: a file that is not locked is left over.
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
with suppress(ImportError):  # Windows has none, and no SIGHUP either
    fcntl = importlib.import_module("fcntl")


@contextmanager
def serving(address: str) -> Iterator[None]:
    """Inside of the block the file names this process. Where it cannot be written there is none."""
    path = _path(address)
    if fcntl is None or not _private(path.parent):
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
    """The process of this user that serves the address, if there is one."""
    path = _path(address)
    if fcntl is None or not _private(path.parent):
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


def _private(folder: Path) -> bool:
    """Whether nobody else can write into the folder, which is made if it is missing."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    return found.st_uid == os.getuid() and not found.st_mode & 0o022 and not folder.is_symlink()
