"""Validation of a call's complete arguments against the tool's JSON Schema, with repair of unambiguous mistakes.

Theory of operation. A `Validator` is created once per schema and cached. Valid arguments, by far the most common case,
are returned unchanged after they have been decoded and checked once. Other arguments are repaired if possible
(`coercion.py`): the errors show which values have the wrong type, and their possible meanings are all tried together. A
repair is kept only if the error that called for it has disappeared and no other error has taken its place. If errors
remain, the most specific one is returned as an `InvalidArguments`, described so that a model can correct it.

Checking has no side effects. A schema that is invalid, refers to external schemas or could cost too much (`cost.py`) is
ignored: no exception is raised, and nothing is fetched. `format` is never asserted.

The validation library is an extra, `validate`, since it is larger than all of the core's dependencies together. It is
loaded on first use; code that is going to need it calls `require_library` in advance.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec
from attrs import define

from streamtool.core.bounded_cache import LruCache
from streamtool.core.errors import SettingsError
from streamtool.core.json_value import Json
from streamtool.schemas import cost as schema_cost
from streamtool.schemas import errors as validation_errors
from streamtool.schemas.coercion import Coercion, Place, apply_coercions, possible_coercions
from streamtool.schemas.cost import Unbounded
from streamtool.schemas.errors import InvalidArguments
from streamtool.schemas.violations import SchemaViolation, violation_of

if TYPE_CHECKING:
    import jsonschema_rs

__all__ = ["InvalidArguments", "Validator", "require_library"]


LARGEST: Final = 2 * 1024 * 1024
"""Maximum size of a schema to check against, in bytes of JSON."""
CACHE_SIZE: Final = 8 * 1024 * 1024
"""Total size of the schemas whose validators are cached, in bytes."""
MAX_LOOKS: Final = 3_000_000
"""Maximum number of looks for deciding whether arguments are valid. A look is one examination of one value.

Checking up to this limit usually takes 15 ms, and 50 ms at most.
"""
LOOKS_FOR_CHARACTER: Final = 20
"""The same limit per character, for long arguments, which are not checked on an event loop."""
LOOKS_FOR_ERRORS: Final = 4_000
"""The same limit for collecting errors: each look may find an error, and 4,000 errors take about 50 ms."""
LOOKS_TO_REPAIR: Final = 16_000
"""The same limit for all trials of repairs together."""
LOOKS_WITH_PATTERNS: Final = 500_000
"""The same limit for schemas with patterns, counted in examinations of single characters."""
LOOKS_WITH_BACKTRACKING: Final = 200_000
"""The same limit for schemas with patterns that backtrack."""
BACKTRACKS: Final = 2_000
PROGRAM: Final = 256 * 1024
"""Maximum size of a compiled pattern, in bytes."""
ROUNDS: Final = 6
"""Maximum number of rounds, since a repaired value may itself contain values to repair."""
TRIALS: Final = 3
MAX_REPAIRS: Final = 1_000

UNUSABLE: Final = ("schema_unusable",)
UNCHECKED: Final = ("unchecked",)

_cache = LruCache["Validator"](CACHE_SIZE)
"""Validators, keyed by the JSON of their schemas."""


def require_library(what: str) -> None:
    """Load the library that checks schemas. Raises SettingsError, naming the setting `what`, if the library is
    missing.
    """
    try:
        import jsonschema_rs  # noqa: F401, PLC0415  an extra
    except ImportError as missing:
        raise SettingsError(
            f'{what}: jsonschema-rs is missing; install the extra "validate": pip install "streamtool[validate]"',
            param=what,
            code="missing_extra",
        ) from missing


@define
class _RepairGroup:
    """Repairs that are tried together because a single error calls for them."""

    key: tuple[Json, ...]
    coercions: tuple[Coercion, ...]


class Validator:
    """A validator for the arguments of one tool."""

    __slots__ = ("_backtracks", "_bounds", "_compiled", "_flat", "_schema", "usable")

    def __init__(self, schema: Json) -> None:
        """Compile `schema`, which is modified; `of` makes a copy first."""
        self._schema = b"{}"
        """The schema as JSON, which is decoded only to describe an error, since the decoded schema may consist of many
        objects.
        """
        self._compiled: jsonschema_rs.Validator | None = None
        self._backtracks = False
        self.usable = True
        """False if the schema cannot be used for checking."""
        if schema in ({}, True):
            return
        require_library("arguments")
        try:
            self._bounds = schema_cost.measure_cost(schema)
            self._flat = self._bounds.flat
            self._compiled, self._backtracks = _compile(schema)
            self._schema = msgspec.json.encode(schema)
        except (Unbounded, RecursionError):
            self.usable = False
        except BaseException as error:  # noqa: BLE001
            _reraise_foreign(error)
            self.usable = False

    @classmethod
    def of(cls, schema: Mapping[str, Json] | None) -> "Validator":
        """Return the validator for a tool's schema from the cache, creating it if necessary."""
        try:
            key = b"{}" if schema is None else msgspec.json.encode(schema, enc_hook=dict)
            found = _cache.get(key)
            if found is None:
                if len(key) > LARGEST:
                    return cls._unusable()
                found = cls(msgspec.json.decode(key))
                _cache.put(key, found, len(key))
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
            return cls._unusable()
        return found

    @classmethod
    def _unusable(cls) -> "Validator":
        """Return the validator for a schema that cannot even be read."""
        found = cls({})
        found.usable = False
        return found

    def check(self, arguments: str) -> tuple[str, InvalidArguments | None, tuple[str, ...]]:
        """Return the arguments, repaired if necessary; the remaining fault, if any; and the names of the repairs.

        Valid arguments are returned as the very same string; blank ones count as an empty object. The names may also
        include `schema_unusable`, and `unchecked` if checking would cost too much, so that only the form of the
        arguments was checked.
        """
        try:
            value = _decode_arguments(arguments)
        except (ValueError, RecursionError):
            fault = validation_errors.decoding_fault(
                arguments
            )  # valid JSON that cannot be decoded cannot be checked either
            return arguments, fault, () if fault else UNCHECKED
        if not isinstance(value, dict):
            return arguments, validation_errors.not_object_fault(arguments, value), ()
        if self._compiled is None:
            return arguments, None, () if self.usable else UNUSABLE
        try:
            return self._checked(arguments, value)
        except BaseException as error:  # noqa: BLE001
            _reraise_foreign(error)
            return arguments, None, UNCHECKED

    def _checked(self, arguments: str, value: Json) -> tuple[str, InvalidArguments | None, tuple[str, ...]]:
        assert self._compiled is not None  # noqa: S101  checked by the caller
        # Nearly all arguments are valid, so only validity is determined at first: the library does that much faster
        # than it collects errors, and the limit for collecting errors is far lower.
        most = max(MAX_LOOKS, LOOKS_FOR_CHARACTER * len(arguments))
        if self._looks(arguments, value, most) > most:
            return arguments, None, UNCHECKED
        if self._compiled.is_valid(value):
            return arguments, None, ()
        if self._looks(arguments, value) > LOOKS_FOR_ERRORS:
            return arguments, self._first_fault(arguments, value), ()
        errors = self._errors(value)
        text, after, names = self._repair(arguments, value, errors)
        if not after:
            return text, None, names
        found = validation_errors.select_fault(after, self._read_schema(), text, _decode_arguments(text))
        return (text, found, names) if found is not None else (text, None, (*names, *UNCHECKED))

    def _looks(self, text: str, value: Json, enough: int = 0) -> int:
        """Return an upper bound on the number of looks that checking the arguments takes. A rough bound will do if it
        is at most `enough`.
        """
        # In JSON, every value takes at least two characters, including its separator, so `len(text) // 2 + 1` bounds
        # the number of values. That is usually good enough, and saves counting them.
        load = self._flat
        if load is not None and not self._bounds.patterns and (rough := load * (len(text) // 2 + 1)) <= enough:
            return rough
        values, depth = _measure(value)
        if load is None:
            if depth > schema_cost.DEEPEST or depth * self._bounds.height > schema_cost.STACK:
                return schema_cost.UNBOUNDED_LOAD
            load = self._bounds.load(depth)
        if self._bounds.patterns and load * len(text) > (
            LOOKS_WITH_BACKTRACKING if self._backtracks else LOOKS_WITH_PATTERNS
        ):
            return schema_cost.UNBOUNDED_LOAD
        return load * values

    def _errors(self, value: Json) -> list[SchemaViolation]:
        assert self._compiled is not None  # noqa: S101  checked by the caller
        return [violation_of(error) for error in islice(self._compiled.iter_errors(value), MAX_REPAIRS)]

    def _read_schema(self) -> Json:
        return msgspec.json.decode(self._schema)

    def _first_fault(self, arguments: str, value: Json) -> InvalidArguments | None:
        """Return one fault in arguments if collecting all of their errors would cost too much."""
        import jsonschema_rs  # noqa: PLC0415  an extra

        assert self._compiled is not None  # noqa: S101  checked by the caller
        if not self._bounds.alternatives:
            try:
                self._compiled.validate(value)
            except jsonschema_rs.ValidationError as error:
                return validation_errors.select_fault([violation_of(error)], self._read_schema(), arguments, value)
        return validation_errors.unknown_fault(self._read_schema(), arguments, value)

    # ---- repairs

    def _repair(
        self, arguments: str, value: Json, errors: list[SchemaViolation]
    ) -> tuple[str, list[SchemaViolation], tuple[str, ...]]:
        """Return the arguments with the repairs that help, the remaining errors, and the names of the repairs."""
        # No repair is trusted: each one is applied to the text, and the result is validated. Since that costs a
        # validation each time, and a hostile schema makes errors multiply, `work` bounds all trials for one call
        # together.
        tried: set[tuple[Coercion, ...]] = set()
        work = _Budget(LOOKS_TO_REPAIR)
        for _ in range(TRIALS):
            text, left, done = self._repair_in_rounds(arguments, value, errors, tried, work)
            # A repair can pass its own round although the new value is wrong deeper inside, for example if a string was
            # parsed as JSON and the resulting object has the wrong members. Reporting that would describe a value that
            # the model never wrote, so the repairs start over without the ones that failed in this way.
            failed = [unit for unit in done if any(_covers(unit, problem.place) for problem in left)]
            if not failed:
                return text, left, tuple(dict.fromkeys(coercion.name for unit in done for coercion in unit.coercions))
            tried = {unit.coercions for unit in failed}
        return arguments, errors, ()

    def _repair_in_rounds(
        self, text: str, value: Json, errors: list[SchemaViolation], tried: set[tuple[Coercion, ...]], work: "_Budget"
    ) -> tuple[str, list[SchemaViolation], list[_RepairGroup]]:
        """Repair in rounds as long as that helps. Every repair that was tried is added to `tried`."""
        done: list[_RepairGroup] = []
        for _ in range(ROUNDS):
            units = _plan_repairs(value, errors, tried)
            if not units:
                break
            # Updated in place, so that the caller sees the change as well. Since no repair is planned twice, each round
            # either tries something new or is the last one.
            tried |= {unit.coercions for unit in units}
            good = units
            for _ in range(TRIALS):  # try the others again, without the ones that did not help
                trial = self._try_repairs(text, good, work)
                if trial is None:
                    # Checking all of them together would exceed the limits, so fall back to the first one, or to none.
                    good = good[:1] if len(good) > 1 else []
                else:
                    before = {problem.key for problem in errors}
                    # Compare with the errors before this trial: a repair must not be blamed for an error that already
                    # existed.
                    kept = [unit for unit in good if _helped(unit, before, trial[2])]
                    if len(kept) == len(good):
                        text, value, errors = trial
                        done += good
                        break
                    good = kept
                if not good:
                    break
        return text, errors, done

    def _try_repairs(
        self, text: str, units: Sequence[_RepairGroup], work: "_Budget"
    ) -> tuple[str, Json, list[SchemaViolation]] | None:
        """Return the repaired text, its value and its errors, or None if the result cannot be checked."""
        text = apply_coercions(text, [coercion for unit in units for coercion in unit.coercions])
        try:
            value = _decode_arguments(text)
        except (ValueError, RecursionError):
            return None
        looks = self._looks(text, value)
        work.left -= looks
        return (text, value, self._errors(value)) if looks <= LOOKS_FOR_ERRORS and work.left >= 0 else None


@define
class _Budget:
    """The number of looks that may still be spent on repairs."""

    left: int


def _decode_arguments(text: str) -> Json:
    """Return the decoded arguments; blank ones are an empty object."""
    return msgspec.json.decode(text) if text.strip() else {}


def _compile(schema: Json) -> "tuple[jsonschema_rs.Validator, bool]":
    """Return the compiled schema, and whether its patterns backtrack. Raises an error if the patterns exceed the
    limits.
    """
    import jsonschema_rs  # noqa: PLC0415  an extra

    linear = jsonschema_rs.RegexOptions(size_limit=PROGRAM)
    compiled = partial(jsonschema_rs.validator_for, schema, validate_formats=False, offline=True)
    try:
        return compiled(pattern_options=linear), False
    except jsonschema_rs.ValidationError:
        fancy = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKS, size_limit=PROGRAM)
        return compiled(pattern_options=fancy), True


def _reraise_foreign(error: BaseException) -> None:
    """Re-raise the exception unless it is an ordinary error or a panic in the library, which is a `BaseException`."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error


def _measure(value: Json) -> tuple[int, int]:
    """Return the number of values and the number of levels."""
    count, depth = 1, 0
    level = [value]
    while level:
        depth += 1
        inner = [one for one in level if isinstance(one, dict | list)]
        level = [child for one in inner for child in (one.values() if isinstance(one, dict) else one)]
        count += len(level)
    return count, depth


def _plan_repairs(value: Json, errors: list[SchemaViolation], tried: set[tuple[Coercion, ...]]) -> list[_RepairGroup]:
    """Return the next repairs that may help against each error, leaving out those that interfere with another one."""
    units: list[_RepairGroup] = []
    places: set[Place] = set()
    inside: set[Place] = set()
    for problem in errors[:MAX_REPAIRS]:
        unit = next((unit for unit in _possible_repairs(problem, value) if unit.coercions not in tried), None)
        if unit is None:
            continue
        # All repairs are made in one pass over the text, so none may be inside another one's value or at the same path.
        own = {coercion.place for coercion in unit.coercions}
        around = {place[:length] for place in own for length in range(len(place))}
        if not own & (places | inside) and not around & places:
            units.append(unit)
            places |= own
            inside |= around
    return units


def _possible_repairs(problem: SchemaViolation, value: Json) -> Iterator[_RepairGroup]:
    """Yield repairs that may help against an error: either of the value itself, or those that make one alternative
    match.
    """
    found = (
        [*possible_coercions(problem.place, validation_errors.value_at(value, problem.place), problem.types)]
        if problem.types
        else []
    )
    yield from (_RepairGroup(problem.key, (coercion,)) for coercion in found)
    for branch in problem.fitting():
        leaves = [leaf for one in branch for leaf in one.leaves()][:MAX_REPAIRS]
        choices = {
            leaf.place: [*possible_coercions(leaf.place, validation_errors.value_at(value, leaf.place), leaf.types)]
            for leaf in leaves
        }
        if len(choices) == 1:
            yield from (_RepairGroup(problem.key, (coercion,)) for coercion in next(iter(choices.values())))
        elif choices and all(choices.values()) and not any(_has_ancestor(place, choices) for place in choices):
            yield _RepairGroup(problem.key, tuple(options[0] for options in choices.values()))


def _has_ancestor(place: Place, places: Mapping[Place, Json]) -> bool:
    return any(place[:length] in places for length in range(len(place)))


def _helped(unit: _RepairGroup, before: set[tuple[Json, ...]], errors: list[SchemaViolation]) -> bool:
    """Return whether the error has disappeared and no new error has appeared at the repaired values or around them."""
    places = {coercion.place[:length] for coercion in unit.coercions for length in range(len(coercion.place) + 1)}
    return all(problem.key != unit.key and (problem.key in before or problem.place not in places) for problem in errors)


def _covers(unit: _RepairGroup, place: Place) -> bool:
    """Return whether the path leads to a repaired value or into one."""
    return any(place[: len(coercion.place)] == coercion.place for coercion in unit.coercions)
