"""Schema violations as the library reports them, and the selection of the most specific one.

The most specific violation is the deepest one in the arguments. Among alternatives (`anyOf`, `oneOf`), it is one in the
alternative that fits best.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from attrs import frozen

from statemachine.schema import json_types_of
from streamtool.core.json_value import Json
from streamtool.schemas.coercion import Place

if TYPE_CHECKING:
    import jsonschema_rs  # an extra


_ORDER = ("required", "additionalProperties", "unevaluatedProperties", "type", "enum", "const")
"""Keywords in the order in which violations at the same depth are preferred."""


@frozen(eq=False)
class SchemaViolation:
    """One violation, as reported by the library."""

    place: Place
    path: Place
    """The path of the violated keyword in the schema."""
    keyword: str
    names: tuple[str, ...] = ()
    """The missing property, or the unknown properties."""
    types: frozenset[str] = frozenset()
    """The expected types, if the type is wrong."""
    branches: tuple[tuple["SchemaViolation", ...], ...] = ()
    """The violations in each alternative, starting with the alternative that fits best."""
    certain: bool = True
    """False if a pattern could not be matched within the limits."""

    @property
    def key(self) -> tuple[Json, ...]:
        """A key that identifies the violation, for comparing the results of two validations."""
        return (self.place, self.path, self.names)

    def leaves(self) -> Iterator["SchemaViolation"]:
        """Yield the violations in the alternative that fits best."""
        if not self.branches:
            yield self
            return
        for inner in self.branches[0]:
            yield from inner.leaves()

    def fitting(self) -> list[tuple["SchemaViolation", ...]]:
        """Return the violations in each alternative that accepts values of this kind, or in all alternatives if none
        does.
        """
        return [branch for branch in self.branches if not self._other(branch)] or list(self.branches)

    @property
    def mismatch(self) -> bool:
        """Whether the value is of a kind that the schema does not allow at all."""
        if self.branches:
            return all(self._other(branch) for branch in self.branches)
        return self.keyword in ("type", "enum", "const", "falseSchema")

    def _other(self, branch: tuple["SchemaViolation", ...]) -> bool:
        return any(inner.place == self.place and inner.mismatch for inner in branch)


def violation_of(error: "jsonschema_rs.ValidationError") -> SchemaViolation:
    """Return the parts of the library's error that are used here."""
    kind: Any = error.kind  # its attributes depend on its class
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
            sure = all(inner.certain for branch in branches for inner in branch)
            best = tuple(sorted(branches, key=lambda branch: _misfit_key(place, branch)))
            return SchemaViolation(place, path, kind.name, branches=best, certain=sure)
    return SchemaViolation(place, path, kind.name, certain=name not in ("BacktrackLimitExceeded", "RegexEngineFailure"))


def _types(values: Iterable[Json]) -> frozenset[str]:
    return frozenset(name for value in values for name in json_types_of(value))


def _misfit_key(place: Place, branch: tuple[SchemaViolation, ...]) -> tuple[int, int, int]:
    """Return a key for how badly an alternative fits: whether its type or kind differs, the number of errors, and their
    depth.
    """
    worst = 0
    for inner in branch:
        if inner.mismatch and inner.place == place:
            worst = 2
        elif inner.keyword in ("const", "enum") and len(inner.place) == len(place) + 1:
            worst = max(worst, 1)  # most likely the property that distinguishes the alternatives
    return worst, len(branch), -max((len(inner.place) for inner in branch), default=0)


def most_specific(one: SchemaViolation) -> list[SchemaViolation]:
    """Return the violation itself or, if it has alternatives, the most specific ones in the alternative that fits
    best.
    """
    if not one.branches or one.mismatch or not one.branches[0]:
        return [one]
    return [leaf for inner in one.branches[0] for leaf in most_specific(inner)]


def sort_key(one: SchemaViolation) -> tuple[int, int]:
    """Return a sort key; the violation to report, which is the deepest one, has the smallest key."""
    depth = len(one.place) + (1 if one.names else 0)
    return -depth, _ORDER.index(one.keyword) if one.keyword in _ORDER else len(_ORDER)
