"""When the collector of garbage looks at all objects. Everything else stops meanwhile, so it is when nothing is open.

Python comes to a full collection by itself after a number of smaller ones, which is soonest while a large request is
read: when there is most to look at. Little garbage needs one at all; what is left over by then can wait. And what has
outlived one full collection (what is remembered, kept and compiled) is seldom garbage later, so it is not looked at
again until there is twice as much of it.
Source: the documentation of `gc`, "Generational garbage collection" in CPython's InternalDocs.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_DUE: Final = 10
"""Collections of the middle generation after which a full one is due once nothing is open; Python's own number."""
_OVERDUE: Final = 200
"""After so many it comes whatever is open: some million objects, more than one request can have."""


class Collector:
    """Collects garbage from now on. What is there now is looked at again once as much has been added to it."""

    __slots__ = ("_most",)

    def __init__(self) -> None:
        gc.collect()
        self._set_aside()
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, _OVERDUE)

    def quiet(self) -> None:
        """Nothing is open: collects everything if that is due."""
        if gc.get_count()[2] < _DUE:
            return
        if gc.get_freeze_count() > self._most:
            gc.unfreeze()
            gc.collect()
            self._set_aside()
        else:
            gc.collect()
            gc.freeze()

    def _set_aside(self) -> None:
        """What has outlived a collection is not looked at again, unless it becomes twice as much."""
        gc.freeze()
        self._most = 2 * gc.get_freeze_count()


@contextmanager
def uncollected() -> Iterator[None]:
    """Nothing is collected inside of the block: it imports, and what that makes stays. A tenth of a start's time."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
