"""Checks a call's complete arguments against the tool's JSON Schema, and mends what can only mean one thing.

Theory of operation. A `Validator` is made once per schema and kept. Arguments that validate, which is nearly always,
are handed back as they came, after one decode and one look. Others are mended where that helps (`coercion.py`): the
errors say which values have the wrong type; what these may have meant is tried, all of them together; a mend stays only
if the error that asked for it is gone and no other has come in its place. What is still wrong is an `InvalidArguments`:
of all errors the most specific one, in words that a model can act on.

Checking never harms: a schema that is invalid, refers to elsewhere or could cost too much (`schema_cost.py`) is not
checked against; nothing raises, nothing is fetched, `format` is not asserted.

The library that checks is an extra, `validate`: it is larger than all that the core needs. So it is loaded when it is
first used, and what will use it calls `require_library` before it begins.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec
from attrs import define

from streamtool.errors import SettingsError
from streamtool.kept import Kept
from streamtool.validation import errors as validation_errors
from streamtool.validation import schema_cost
from streamtool.validation.coercion import Coercion, Place, coerced, coercions
from streamtool.validation.errors import InvalidArguments
from streamtool.validation.schema_cost import Unbounded
from streamtool.validation.violations import SchemaViolation, violation_of

if TYPE_CHECKING:
    import jsonschema_rs

__all__ = ["InvalidArguments", "Validator", "require_library"]

Json = Any  # a decoded JSON value

LARGEST: Final = 2 * 1024 * 1024
"""Bytes of the JSON of a schema that is checked against."""
KEPT: Final = 8 * 1024 * 1024
"""Bytes of schemas whose validators are kept."""
LOOKS: Final = 3_000_000
"""Values times how often each is looked at, to say whether arguments validate: 15 ms as a rule, 50 at most."""
LOOKS_FOR_CHARACTER: Final = 20
"""The same for each character of long arguments, which are not checked on an event loop."""
LOOKS_FOR_ERRORS: Final = 4_000
"""The same, to say what is wrong with them: each may find an error, and 4,000 errors take some 50 ms."""
LOOKS_TO_MEND: Final = 16_000
"""The same, for all that is tried."""
LOOKS_WITH_PATTERNS: Final = 500_000
"""Characters times how often each is looked at, with patterns."""
LOOKS_BACK: Final = 200_000
"""The same, with patterns that go back."""
BACKTRACKS: Final = 2_000
PROGRAM: Final = 256 * 1024
"""Bytes of a compiled pattern."""
ROUNDS: Final = 6
"""A mended value may have to be mended inside."""
TRIALS: Final = 3
MENDS: Final = 1_000

UNUSABLE: Final = ("schema_unusable",)
UNCHECKED: Final = ("unchecked",)

_kept = Kept["Validator"](KEPT)
"""Validators by the JSON of their schemas."""


def require_library(what: str) -> None:
    """Load what schemas are checked with. Raises SettingsError when it is not installed; `what` needs it."""
    try:
        import jsonschema_rs  # noqa: F401, PLC0415  an extra
    except ImportError as missing:
        raise SettingsError(
            f'{what}: jsonschema-rs is missing; install the extra "validate": pip install "streamtool[validate]"',
            param=what,
            code="missing_extra",
        ) from missing


@define
class _Unit:
    """Mends that are tried together because one error asks for them."""

    key: tuple[Json, ...]
    coercions: tuple[Coercion, ...]


class Validator:
    """Checks the arguments of one tool."""

    __slots__ = ("_backs", "_bounds", "_compiled", "_flat", "_schema", "usable")

    def __init__(self, schema: Json) -> None:
        """Changes `schema`; `of` makes a copy."""
        self._schema = b"{}"
        """As JSON: it is looked at for an error only, and may be many objects."""
        self._compiled: jsonschema_rs.Validator | None = None
        self._backs = False
        self.usable = True
        """False: the schema is not checked against."""
        if schema in ({}, True):
            return
        require_library("arguments")
        try:
            self._bounds = schema_cost.prepare(schema)
            self._flat = self._bounds.flat
            self._compiled, self._backs = _compiled(schema)
            self._schema = msgspec.json.encode(schema)
        except (Unbounded, RecursionError):
            self.usable = False
        except BaseException as error:  # noqa: BLE001
            _ours(error)
            self.usable = False

    @classmethod
    def of(cls, schema: Mapping[str, Json] | None) -> "Validator":
        """The validator of a tool's schema; kept for the next time."""
        try:
            key = b"{}" if schema is None else msgspec.json.encode(schema, enc_hook=dict)
            found = _kept.get(key)
            if found is None:
                if len(key) > LARGEST:
                    return cls._none()
                found = cls(msgspec.json.decode(key))
                _kept.put(key, found, len(key))
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
            return cls._none()
        return found

    @classmethod
    def _none(cls) -> "Validator":
        """The validator of a schema that cannot even be read."""
        found = cls({})
        found.usable = False
        return found

    def check(self, arguments: str) -> tuple[str, InvalidArguments | None, tuple[str, ...]]:
        """The arguments, mended if need be; what is wrong with them; and what was done, by name.

        Arguments that validate are the very text that came; blank ones are none, as an empty object. Besides the names
        of mends there are `schema_unusable`, and `unchecked` when checking would cost too much: then nothing but the
        form of the arguments was looked at.
        """
        try:
            value = _value(arguments)
        except (ValueError, RecursionError):
            fault = validation_errors.undecoded(
                arguments
            )  # some JSON is more than can be decoded, and cannot be checked
            return arguments, fault, () if fault else UNCHECKED
        if not isinstance(value, dict):
            return arguments, validation_errors.no_object(arguments, value), ()
        if self._compiled is None:
            return arguments, None, () if self.usable else UNUSABLE
        try:
            return self._checked(arguments, value)
        except BaseException as error:  # noqa: BLE001
            _ours(error)
            return arguments, None, UNCHECKED

    def _checked(self, arguments: str, value: Json) -> tuple[str, InvalidArguments | None, tuple[str, ...]]:
        assert self._compiled is not None  # noqa: S101  the caller has looked
        most = max(LOOKS, LOOKS_FOR_CHARACTER * len(arguments))
        if self._looks(arguments, value, most) > most:
            return arguments, None, UNCHECKED
        if self._compiled.is_valid(value):
            return arguments, None, ()
        if self._looks(arguments, value) > LOOKS_FOR_ERRORS:
            return arguments, self._first(arguments, value), ()
        errors = self._errors(value)
        text, after, names = self._mend(arguments, value, errors)
        if not after:
            return text, None, names
        found = validation_errors.fault(after, self._read_schema(), text, _value(text))
        return (text, found, names) if found is not None else (text, None, (*names, *UNCHECKED))

    def _looks(self, text: str, value: Json, enough: int = 0) -> int:
        """How many looks the arguments take at most; not worked out any further when it is no more than `enough`."""
        load = self._flat
        if load is not None and not self._bounds.patterns and (rough := load * (len(text) // 2 + 1)) <= enough:
            return rough
        values, depth = _measure(value)
        if load is None:
            if depth > schema_cost.DEEPEST or depth * self._bounds.height > schema_cost.STACK:
                return schema_cost.MOST
            load = self._bounds.load(depth)
        if self._bounds.patterns and load * len(text) > (LOOKS_BACK if self._backs else LOOKS_WITH_PATTERNS):
            return schema_cost.MOST
        return load * values

    def _errors(self, value: Json) -> list[SchemaViolation]:
        assert self._compiled is not None  # noqa: S101  the caller has looked
        return [violation_of(error) for error in islice(self._compiled.iter_errors(value), MENDS)]

    def _read_schema(self) -> Json:
        return msgspec.json.decode(self._schema)

    def _first(self, arguments: str, value: Json) -> InvalidArguments | None:
        """What is wrong with arguments that are too large to be told everything that is."""
        import jsonschema_rs  # noqa: PLC0415  an extra

        assert self._compiled is not None  # noqa: S101  the caller has looked
        if not self._bounds.alternatives:
            try:
                self._compiled.validate(value)
            except jsonschema_rs.ValidationError as error:
                return validation_errors.fault([violation_of(error)], self._read_schema(), arguments, value)
        return validation_errors.unknown(self._read_schema(), arguments, value)

    # ---- mending

    def _mend(
        self, arguments: str, value: Json, errors: list[SchemaViolation]
    ) -> tuple[str, list[SchemaViolation], tuple[str, ...]]:
        """The arguments with what helps, the errors that are left, and what was done."""
        tried: set[tuple[Coercion, ...]] = set()
        work = _Work(LOOKS_TO_MEND)
        for _ in range(TRIALS):
            text, left, done = self._rounds(arguments, value, errors, tried, work)
            failed = [unit for unit in done if any(_reaches(unit, problem.place) for problem in left)]
            if not failed:
                return text, left, tuple(dict.fromkeys(mend.name for unit in done for mend in unit.coercions))
            # A value that is still wrong inside keeps the form in which it came.
            tried = {unit.coercions for unit in failed}
        return arguments, errors, ()

    def _rounds(
        self, text: str, value: Json, errors: list[SchemaViolation], tried: set[tuple[Coercion, ...]], work: "_Work"
    ) -> tuple[str, list[SchemaViolation], list[_Unit]]:
        """Mends as long as it helps. What did not help is added to `tried`."""
        done: list[_Unit] = []
        for _ in range(ROUNDS):
            units = _planned(value, errors, tried)
            if not units:
                break
            tried |= {unit.coercions for unit in units}
            good = units
            for _ in range(TRIALS):  # without those that did not help, the others are tried again
                trial = self._tried(text, good, work)
                if trial is None:
                    good = good[:1] if len(good) > 1 else []
                else:
                    before = {problem.key for problem in errors}
                    kept = [unit for unit in good if _helped(unit, before, trial[2])]
                    if len(kept) == len(good):
                        text, value, errors = trial
                        done += good
                        break
                    good = kept
                if not good:
                    break
        return text, errors, done

    def _tried(
        self, text: str, units: Sequence[_Unit], work: "_Work"
    ) -> tuple[str, Json, list[SchemaViolation]] | None:
        """The text, its value and its errors with these mends; None if it cannot be checked then."""
        text = coerced(text, [mend for unit in units for mend in unit.coercions])
        try:
            value = _value(text)
        except (ValueError, RecursionError):
            return None
        looks = self._looks(text, value)
        work.left -= looks
        return (text, value, self._errors(value)) if looks <= LOOKS_FOR_ERRORS and work.left >= 0 else None


@define
class _Work:
    """How many looks may still be spent on mending."""

    left: int


def _value(text: str) -> Json:
    """What the arguments are; blank ones are an empty object."""
    return msgspec.json.decode(text) if text.strip() else {}


def _compiled(schema: Json) -> "tuple[jsonschema_rs.Validator, bool]":
    """The compiled schema, and whether its patterns go back. Patterns that cannot be bounded make it unusable."""
    import jsonschema_rs  # noqa: PLC0415  an extra

    linear = jsonschema_rs.RegexOptions(size_limit=PROGRAM)
    compiled = partial(jsonschema_rs.validator_for, schema, validate_formats=False, offline=True)
    try:
        return compiled(pattern_options=linear), False
    except jsonschema_rs.ValidationError:
        fancy = jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKS, size_limit=PROGRAM)
        return compiled(pattern_options=fancy), True


def _ours(error: BaseException) -> None:
    """Raises again what is neither an error nor a panic of the library, which is told as a `BaseException`."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error


def _measure(value: Json) -> tuple[int, int]:
    """How many values there are, and how many levels."""
    count, depth = 1, 0
    level = [value]
    while level:
        depth += 1
        inner = [one for one in level if isinstance(one, dict | list)]
        level = [child for one in inner for child in (one.values() if isinstance(one, dict) else one)]
        count += len(level)
    return count, depth


def _planned(value: Json, errors: list[SchemaViolation], tried: set[tuple[Coercion, ...]]) -> list[_Unit]:
    """For each error the next mends that may help, as far as they do not meddle with each other."""
    units: list[_Unit] = []
    places: set[Place] = set()
    inside: set[Place] = set()
    for problem in errors[:MENDS]:
        unit = next((unit for unit in _units(problem, value) if unit.coercions not in tried), None)
        if unit is None:
            continue
        own = {mend.place for mend in unit.coercions}
        around = {place[:length] for place in own for length in range(len(place))}
        if not own & (places | inside) and not around & places:
            units.append(unit)
            places |= own
            inside |= around
    return units


def _units(problem: SchemaViolation, value: Json) -> Iterator[_Unit]:
    """What may help against an error: a mend of its value, or mends that make one alternative fit."""
    found = (
        [*coercions(problem.place, validation_errors.at(value, problem.place), problem.types)] if problem.types else []
    )
    yield from (_Unit(problem.key, (mend,)) for mend in found)
    for branch in problem.fitting():
        leaves = [leaf for one in branch for leaf in one.leaves()][:MENDS]
        choices = {
            leaf.place: [*coercions(leaf.place, validation_errors.at(value, leaf.place), leaf.types)] for leaf in leaves
        }
        if len(choices) == 1:
            yield from (_Unit(problem.key, (mend,)) for mend in next(iter(choices.values())))
        elif choices and all(choices.values()) and not any(_above(place, choices) for place in choices):
            yield _Unit(problem.key, tuple(options[0] for options in choices.values()))


def _above(place: Place, places: Mapping[Place, Json]) -> bool:
    return any(place[:length] in places for length in range(len(place)))


def _helped(unit: _Unit, before: set[tuple[Json, ...]], errors: list[SchemaViolation]) -> bool:
    """True if the error is gone, and there is no new one at the values or around them."""
    places = {mend.place[:length] for mend in unit.coercions for length in range(len(mend.place) + 1)}
    return all(problem.key != unit.key and (problem.key in before or problem.place not in places) for problem in errors)


def _reaches(unit: _Unit, place: Place) -> bool:
    """True if the place is at or inside of a value that was mended."""
    return any(place[: len(mend.place)] == mend.place for mend in unit.coercions)
