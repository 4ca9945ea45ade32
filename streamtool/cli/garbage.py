"""When the collector of garbage looks at all objects. Everything else stops meanwhile, so it is when nothing is open.

Python comes to a full collection by itself after a number of smaller ones, which is soonest while a large request is
read: when there is most to look at. Little garbage needs one at all; what is left over by then can wait.
Source: the documentation of `gc`, "Generational garbage collection" in CPython's InternalDocs.
"""

import gc
from typing import Final

_DUE: Final = 10
"""Collections of the middle generation after which a full one is due once nothing is open; Python's own number."""
_OVERDUE: Final = 200
"""After so many it comes whatever is open: some million objects, more than one request can have."""


def begin() -> None:
    """Nothing; what is there now is never looked at again, and full collections wait for `quiet`."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _OVERDUE)


def quiet() -> None:
    """Nothing is open: collects everything if that is due."""
    if gc.get_count()[2] >= _DUE:
        gc.collect()
