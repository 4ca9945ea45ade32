"""Violations of a schema as the library tells them, and which of them is the most specific.

That is the deepest in the arguments, and of alternatives (`anyOf`, `oneOf`) what is wrong in the one that fits best.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from attrs import frozen

from statemachine.schema import kinds
from streamtool.validation.coercion import Place

if TYPE_CHECKING:
    import jsonschema_rs  # an extra

Json = Any  # a decoded JSON value

_ORDER = ("required", "additionalProperties", "unevaluatedProperties", "type", "enum", "const")
"""Of errors at the same depth, which is told first."""


@frozen(eq=False)
class SchemaViolation:
    """One error, as the library told it."""

    place: Place
    path: Place
    """Where in the schema."""
    keyword: str
    names: tuple[str, ...] = ()
    """The property that is missing, the properties that are unknown."""
    types: frozenset[str] = frozenset()
    """Which types were wanted, if the type is wrong."""
    branches: tuple[tuple["SchemaViolation", ...], ...] = ()
    """What is wrong in each alternative; the one that fits best first."""
    sure: bool = True
    """False: a pattern could not be matched within bounds."""

    @property
    def key(self) -> tuple[Json, ...]:
        """What tells it from other errors."""
        return (self.place, self.path, self.names)

    def leaves(self) -> Iterator["SchemaViolation"]:
        """What is wrong in the alternative that fits best."""
        if not self.branches:
            yield self
            return
        for inner in self.branches[0]:
            yield from inner.leaves()

    def fitting(self) -> list[tuple["SchemaViolation", ...]]:
        """What is wrong in the alternatives for values of this kind; in all of them if there is none."""
        return [branch for branch in self.branches if not self._other(branch)] or list(self.branches)

    @property
    def mismatch(self) -> bool:
        """The value is something else altogether."""
        if self.branches:
            return all(self._other(branch) for branch in self.branches)
        return self.keyword in ("type", "enum", "const", "falseSchema")

    def _other(self, branch: tuple["SchemaViolation", ...]) -> bool:
        return any(inner.place == self.place and inner.mismatch for inner in branch)


def violation_of(error: "jsonschema_rs.ValidationError") -> SchemaViolation:
    """The error with what we read of it."""
    kind: Any = error.kind  # what it holds depends on its class
    name = type(kind).__name__
    place, path = tuple(error.instance_path), tuple(error.schema_path)
    match name:
        case "Required":
            return SchemaViolation(place, path, kind.name, names=(kind.property,))
        case "Type":
            return SchemaViolation(place, path, kind.name, types=frozenset(kind.types))
        case "Enum":
            return SchemaViolation(place, path, kind.name, types=_types(kind.options))
        case "Constant":
            return SchemaViolation(place, path, kind.name, types=_types([kind.expected_value]))
        case "AdditionalProperties" | "UnevaluatedProperties":
            return SchemaViolation(place, path, kind.name, names=tuple(kind.value))
        case "AnyOf" | "OneOfNotValid":
            branches = [tuple(violation_of(inner) for inner in branch) for branch in kind.value]
            sure = all(inner.sure for branch in branches for inner in branch)
            best = tuple(sorted(branches, key=lambda branch: _misfit(place, branch)))
            return SchemaViolation(place, path, kind.name, branches=best, sure=sure)
    return SchemaViolation(place, path, kind.name, sure=name not in ("BacktrackLimitExceeded", "RegexEngineFailure"))


def _types(values: Iterable[Json]) -> frozenset[str]:
    return frozenset(name for value in values for name in kinds(value))


def _misfit(place: Place, branch: tuple[SchemaViolation, ...]) -> tuple[int, int, int]:
    """How little an alternative fits: it is of another type or kind; else how many errors it has, how deep they are."""
    worst = 0
    for inner in branch:
        if inner.mismatch and inner.place == place:
            worst = 2
        elif inner.keyword in ("const", "enum") and len(inner.place) == len(place) + 1:
            worst = max(worst, 1)  # most likely the property that tells the alternatives apart
    return worst, len(branch), -max((len(inner.place) for inner in branch), default=0)


def specific(one: SchemaViolation) -> list[SchemaViolation]:
    """The error itself, or what is wrong in the alternative that fits best."""
    if not one.branches or one.mismatch or not one.branches[0]:
        return [one]
    return [leaf for inner in one.branches[0] for leaf in specific(inner)]


def rank(one: SchemaViolation) -> tuple[int, int]:
    """The smallest is told: the deepest one."""
    depth = len(one.place) + (1 if one.names else 0)
    return -depth, _ORDER.index(one.keyword) if one.keyword in _ORDER else len(_ORDER)
