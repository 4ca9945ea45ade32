"""Values: the objects that a request is read into and served with, which never change.

Type checkers see attrs' own `frozen` and report each assignment to a field. At runtime, nothing prevents it, because
the constructor of a class that does takes four times as long, and a request with 13 messages creates 80 values. In the
tests, values cannot be changed (`tests/support/frozen_values.py`).
"""

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attrs import frozen
else:
    from attrs import define

    frozen = partial(define, unsafe_hash=True)

__all__ = ("frozen",)
