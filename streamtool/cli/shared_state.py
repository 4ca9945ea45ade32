"""What several workers have in common: the store, and what they count. Each is a file of theirs, unless it has a place.

Where the settings name neither a file nor a server for the store, workers share a file that is in memory, if the system
has such files, and gone when they have ended.
"""

import importlib
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Self

from attrs import evolve

from streamtool.settings import Settings

_IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108  the folder that is made in it is private


class SharedState:
    """A private folder for it, while the workers run."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(
            prefix="streamtool-", dir=_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None, ignore_cleanup_errors=True
        )
        self._counted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def placed(self, settings: Settings) -> Settings:
        """The settings, with a place for what has none."""
        if settings.metrics and not self._counted:
            folder = Path(self._folder.name, "metrics")
            folder.mkdir()
            os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", str(folder))  # read when its library is imported
            self._counted = True
        store = settings.store
        if store.size and store.file is None and store.redis is None:
            settings = evolve(settings, store=evolve(store, file=str(Path(self._folder.name, "store"))))
        return settings

    def over(self, process: int) -> None:
        """A worker has ended."""
        if self._counted:
            importlib.import_module("streamtool.observe.metrics").over(process)
