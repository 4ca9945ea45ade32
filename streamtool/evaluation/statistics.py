"""The few statistics that a comparison of paired cases needs."""

from collections.abc import Sequence
from math import comb, sqrt
from typing import Final

_Z: Final = 1.959964
"""The 97.5th percentile of the normal distribution, for intervals of 95 %."""


def wilson(right: int, cases: int) -> tuple[float, float]:
    """Return the limits of Wilson's interval, with a confidence of 95 %, for a share of `right` in `cases`.

    Source: E. B. Wilson, Journal of the American Statistical Association 22 (1927), pages 209–212.
    """
    if not cases:
        return 0.0, 1.0
    share, square = right / cases, _Z * _Z
    middle = share + square / (2 * cases)
    half = _Z * sqrt(share * (1 - share) / cases + square / (4 * cases * cases))
    whole = 1 + square / cases
    return max(0.0, (middle - half) / whole), min(1.0, (middle + half) / whole)


def paired(one: Sequence[bool], other: Sequence[bool]) -> float:
    """Return the probability that the results of two variants for the same cases differ at least this much by chance:
    McNemar's test, exact and two-sided.
    """
    better = sum(a and not b for a, b in zip(one, other, strict=True))
    worse = sum(b and not a for a, b in zip(one, other, strict=True))
    differing = better + worse
    tail = sum(comb(differing, k) for k in range(min(better, worse) + 1))
    return float(min(1.0, 2 * tail / 2**differing))
