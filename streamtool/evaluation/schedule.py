"""The order of an evaluation: which variant answers which scenario next, and when the order of the variants is clear.

All variants that are still compared answer the same scenarios, in an order that the seed determines. A variant whose
results are clearly worse than those of the best one is dropped, so that the remaining requests decide between the
others (successive elimination). `random` is seeded, so a resumed evaluation continues where it ended.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import define, field

from streamtool.evaluation.statistics import paired

FEWEST: Final = 8
"""Number of cases before a variant is dropped."""
CLEAR: Final = 0.05
"""The best of the remaining variants is clearly better than the next one up to this probability of chance."""
ENOUGH: Final = 30
"""Number of cases of the best variant, even if the order is clear before: its share is then known to within about 17
percentage points (Wilson's interval).
"""
UNLIKELY: Final = 0.15
"""A variant is dropped up to this probability of chance. It is larger than `CLEAR`, since dropping the best
variant by mistake also requires that another one is about as good.
"""


def order_of(scenarios: Sequence[str], groups: Mapping[str, str], seed: int) -> tuple[str, ...]:
    """Return the scenarios in random order, with one of each group in turn, so that any beginning is a fair sample."""
    chance = random.Random(seed)
    rows: dict[str, list[str]] = {}
    for name in scenarios:
        rows.setdefault(groups[name], []).append(name)
    for names in rows.values():
        chance.shuffle(names)
    ranked = sorted(
        (((index + chance.random()) / len(names), name) for names in rows.values() for index, name in enumerate(names))
    )
    return tuple(name for _, name in ranked)


@define
class Schedule:
    """The results so far, and what to ask next."""

    variants: tuple[str, ...]
    order: tuple[str, ...]
    """Scenarios in the order in which they are asked."""
    results: dict[str, list[bool]] = field(factory=dict)
    """Whether each variant's answers are right, in this order; a dropped variant has fewer."""
    dropped: dict[str, float] = field(factory=dict)
    """Variants that are no longer asked, with the probability of chance."""
    enough: int = 0
    """Number of cases that the best variant answers even if the order is clear before."""

    def __attrs_post_init__(self) -> None:
        for variant in self.variants:
            self.results.setdefault(variant, [])

    @property
    def open(self) -> tuple[str, ...]:
        """The variants that are still compared."""
        return tuple(variant for variant in self.variants if variant not in self.dropped)

    def next(self) -> tuple[str, str] | None:
        """Return the variant and the scenario to ask next, or None if everything is answered or decided."""
        variant = min(self.open, key=lambda one: len(self.results[one]))
        answered = len(self.results[variant])
        if answered >= len(self.order) or (self.decided and answered >= self.enough):
            return None
        return variant, self.order[answered]

    def add(self, variant: str, *, right: bool) -> None:
        """Add a result; drop variants that are clearly worse once all have answered the same scenarios."""
        self.results[variant].append(right)
        counts = {len(self.results[one]) for one in self.open}
        if len(counts) != 1 or counts.pop() < FEWEST:
            return
        best = self.best
        for other in self.open:
            if other != best and (chance := paired(self.results[best], self.results[other])) <= UNLIKELY:
                self.dropped[other] = chance

    @property
    def best(self) -> str:
        """The variant with the most right answers of those that are still compared; the first one if several have."""
        return max(self.open, key=lambda one: sum(self.results[one]))

    @property
    def decided(self) -> bool:
        """Whether one variant is left."""
        return len(self.variants) > 1 and len(self.open) == 1

    def ranking(self) -> Iterator[str]:
        """Yield the variants, the best first; dropped ones follow in the order of their shares."""
        yield from sorted(self.open, key=lambda one: -_share(self.results[one]))
        yield from sorted(self.dropped, key=lambda one: -_share(self.results[one]))


def _share(results: Sequence[bool]) -> float:
    return sum(results) / len(results) if results else 0.0
