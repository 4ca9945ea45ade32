"""Merges flags, environment and file into one tree of plain values, and reads the tree.

An environment variable is named `STREAMTOOL_` plus the setting in capitals. A double underscore descends into a table
(`STREAMTOOL_RESULTS__FRAME`, `STREAMTOOL_UPSTREAM__LOCAL__URL`); list items are separated by commas. Unknown variables
with this prefix are errors, except for those in `RESERVED` and those that an `env:` reference uses.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import fields

from streamtool.core.errors import SettingsError
from streamtool.settings.calibrations import CHOSEN, Calibration
from streamtool.settings.data import Settings
from streamtool.settings.lines import contains, line_of, line_of_syntax_error
from streamtool.settings.readers import FromEnv, join, key_of, nearest, table

PREFIX = "STREAMTOOL_"
REFERENCE = "env:"
_INTEGERS = range(-(2**63), 2**63)
"""The integers that a TOML file may contain."""
_DEEP_KEY = re.compile(
    r"""
    (?: ^ | [\[{,] ) [ \t]*+
    (?: (?: [\w-]++ | "(?:[^"\\\n]|\\.)*+" | '[^'\n]*+' ) [ \t]*+ \. [ \t]*+ ){100}
    """,
    re.MULTILINE | re.VERBOSE,
)
"""Matches a dotted key that is too long: the time to parse a key is quadratic in the number of its parts."""
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
RESERVED = ("STREAMTOOL_CONFIG", "STREAMTOOL_CALIBRATIONS", "STREAMTOOL_CLIENT_KEY")
"""Variables with our prefix that are not settings. The last one belongs to clients, which send its value as their key.
"""


def load(
    text: str | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    calibrations: Iterable[Calibration] = (),
) -> Settings:
    """Return the settings given by TOML text, an environment and flags. Flags take precedence over the environment,
    which takes precedence over the file.

    `overrides` is a tree like the file's, in which None stands for a flag that was not given. Upstreams and model rules
    from flags precede the ones in the file, so an upstream from a flag is the default one. `calibrations` apply only if
    neither mode nor format nor schema is set. Raises SettingsError for an unknown key (suggesting a similar one), a
    wrong type (with its path), a missing variable, or invalid TOML.
    """
    environment = {} if environ is None else environ
    try:
        file = _parsed(text or "")
    except SettingsError as error:
        error.line = line_of_syntax_error(text or "", error.message)
        raise
    except RecursionError:
        raise _too_deep() from None
    flags: Mapping[str, Any] = {}
    variables: Mapping[str, Any] = {}
    try:
        flags = _without_unset(overrides or {})
        referred = {*_references(file), *_references(flags)}
        variables = _environment_tree(environment, referred)
        tree = _merge(_merge(file, variables), flags)
        measured = () if any(name in tree for name in CHOSEN) else tuple(calibrations)
        return table(Settings, _resolve(tree, "", environment), "", calibrations=measured)
    except SettingsError as error:
        error.line = _line_in_file(error.param, text or "", flags, variables)
        raise
    except RecursionError:
        raise _too_deep() from None


def _line_in_file(path: str | None, text: str, *others: Mapping[str, Any]) -> int | None:
    """Return the line of the file that set the value at this path, unless a flag or a variable did."""
    if path is None or any(contains(tree, path) for tree in others):
        return None
    rules = sum(len(tree.get("model", ())) for tree in others if path.startswith("model["))
    if rules:  # rules of flags precede those of the file
        first, _, rest = path.removeprefix("model[").partition("]")
        path = f"model[{int(first) - rules}]{rest}"
    return line_of(text, path)


def _parsed(text: str) -> dict[str, Any]:
    """Return the tree of the settings file. Raises SettingsError."""
    if _DEEP_KEY.search(text):
        raise _too_deep()
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"the settings file is not valid TOML: {error}", code="bad_toml") from None
    except ValueError:  # from `int`, which limits the number of digits
        raise SettingsError("the settings file contains an integer with too many digits", code="bad_toml") from None


def _too_deep() -> SettingsError:
    return SettingsError("the settings file is nested too deeply", code="bad_toml")


def _without_unset(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree without flags that were not given."""
    return {k: _without_unset(v) if isinstance(v, Mapping) else v for k, v in tree.items() if v is not None}


def _merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """Return `low` overridden by `high`. Keys of `high` and tables in its lists precede the ones in `low`."""
    merged = {**high, **{k: v for k, v in low.items() if k not in high}}
    for key, value in high.items():
        below = low.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = _merge(below, value)
        elif isinstance(value, list | tuple) and isinstance(below, list) and any(isinstance(v, Mapping) for v in value):
            merged[key] = [*value, *below]
    return merged


def _references(value: Any) -> Iterator[str]:
    """Yield the names of all variables that the tree refers to with `env:NAME`."""
    if isinstance(value, str):
        if value.startswith(REFERENCE):
            yield value.removeprefix(REFERENCE)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _references(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _references(item)


def _resolve(value: Any, path: str, environ: Mapping[str, str]) -> Any:
    """Return the tree with each `env:NAME` replaced by its value. Raises SettingsError."""
    if isinstance(value, Mapping):
        return {k: _resolve(v, join(path, str(k)), environ) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_resolve(v, f"{path}[{i}]", environ) for i, v in enumerate(value)]
    if isinstance(value, str) and value.startswith(REFERENCE):
        name = value.removeprefix(REFERENCE)
        if not environ.get(name):
            if not _VARIABLE.fullmatch(name):  # this may be the key itself, which must not be shown
                raise SettingsError(
                    f"{path}: expected the name of an environment variable, in capitals; set that variable to the key",
                    param=path,
                    code="missing_variable",
                )
            raise SettingsError(
                f"{path}: the environment variable {name} is not set", param=path, code="missing_variable"
            )
        return FromEnv(environ[name])
    if isinstance(value, int) and value not in _INTEGERS:
        raise SettingsError(f"{path}: expected an integer of at most 64 bits", param=path, code="wrong_type")
    return value


def _environment_tree(environ: Mapping[str, str], referred: set[str]) -> dict[str, Any]:
    """Return the tree of settings given by the `STREAMTOOL_*` variables."""
    tree: dict[str, Any] = {}
    known = {key_of(a) for a in fields(Settings)}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in RESERVED or name in referred:
            continue
        parts = name.removeprefix(PREFIX).split("__")
        keys = [part if i == 1 and parts[0].lower() == "tool" else part.lower() for i, part in enumerate(parts)]
        if keys[0] not in known:
            raise SettingsError(
                f"{name}: unknown setting; did you mean {PREFIX}{nearest(keys[0], known).upper()}?",
                param=name,
                code="unknown_setting",
            )
        place = tree
        for key in keys[:-1]:
            place = place.setdefault(key, {})
            if not isinstance(place, dict):
                raise SettingsError(f"{name}: {PREFIX}{parts[0]} is set to a value, not a table", param=name)
        place[keys[-1]] = FromEnv(environ[name])
    return tree
