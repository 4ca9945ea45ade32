"""Schedules full garbage collections for times when no request is open, because a full collection stops everything
else.

Python starts a full collection after a number of smaller ones. That is most likely to happen while a large request is
being read, when there are the most objects to scan. Only a small part of the garbage requires a full collection, and
collecting that part can wait. Objects that have survived a full collection (stores, caches, compiled tables) rarely
become garbage later, so they are not scanned again until the number of objects has doubled.

Source: the documentation of `gc`, and "Generational garbage collection" in CPython's InternalDocs.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_YOUNG: Final = 5_000
"""Number of new objects that cause a collection of the young ones, more than a usual request creates. With CPython's
default of 700, nearly each request is interrupted by a collection that finds no garbage.
"""
_DUE: Final = 2
"""Number of middle-generation collections that make a full collection due when no request is open. Each of them follows
ten young ones, so this is about as often as by default.
"""
_OVERDUE: Final = 28
"""Number of middle-generation collections that cause a full collection even if requests are open.

This corresponds to about a million objects, more than one request can create.
"""


class Collector:
    """Garbage collector for a server.

    After `collect_all`, existing objects are scanned again only when their number has doubled.
    """

    def __init__(self) -> None:
        gc.freeze()
        self._most = sys.getallocatedblocks()
        _, middle, _ = gc.get_threshold()
        gc.set_threshold(_YOUNG, middle, _OVERDUE)

    def collect_all(self) -> None:
        """Run a full collection that includes the existing objects. Call this once before the first request; otherwise,
        the collection of all that the start has left would follow that request.
        """
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        # Blocks of memory are counted instead of objects, because `gc.get_freeze_count` walks through all of them.
        self._most = 2 * sys.getallocatedblocks()

    def collect_if_due(self) -> None:
        """Run a full collection if one is due. Call this when no request is open."""
        if gc.get_count()[2] < _DUE:
            return
        if sys.getallocatedblocks() > self._most:
            self.collect_all()
        else:
            gc.collect()
            gc.freeze()


@contextmanager
def gc_disabled() -> Iterator[None]:
    """Disable garbage collection while modules are imported and tables are compiled. Their objects are permanent, and
    scanning them would take a tenth of the startup time.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def gc_disabled_until_command() -> Iterator[None]:
    """Disable garbage collection until a command runs in this block (`gc_enabled_for_command`). The process ends after
    the block, and nothing is scanned then.
    """
    with gc_disabled():
        try:
            yield
        finally:
            gc.freeze()


@contextmanager
def gc_enabled_for_command() -> Iterator[None]:
    """Enable garbage collection for what a command creates, if it has been disabled until now."""
    if gc.isenabled():
        yield
        return
    gc.freeze()
    gc.enable()
    try:
        yield
    finally:
        gc.disable()
