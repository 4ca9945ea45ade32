"""Merging flags, environment and file into one tree of plain values, and reading the tree.

The environment: `STREAMTOOL_` and the setting in capitals; a double underscore descends into a table
(`STREAMTOOL_RESULTS__FRAME`, `STREAMTOOL_UPSTREAM__LOCAL__URL`); lists are separated by commas. An unknown name is an
error, except the names in `RESERVED` and the variables that some `env:` reference names.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import fields

from streamtool.errors import SettingsError
from streamtool.settings.data import Settings
from streamtool.settings.readers import FromEnv, join, key_of, nearest, table

PREFIX = "STREAMTOOL_"
REFERENCE = "env:"
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
RESERVED = ("STREAMTOOL_CONFIG",)
"""Variables with our prefix that are no settings."""


def load(
    text: str | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings out of a TOML text, an environment and flags; flags win over the environment, that over the file.

    `overrides` is a tree like the file's; a value of None is a flag that was not given. Upstreams and model rules of
    the flags stand before those of the file, so a flag's upstream is the default one.
    Raises SettingsError: unknown key (with the nearest), wrong type (with the path), missing variable, bad TOML.
    """
    environment = {} if environ is None else environ
    try:
        file = tomllib.loads(text or "")
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"the settings file is no TOML: {error}", code="bad_toml") from None
    flags = _given(overrides or {})
    referred = {*_references(file), *_references(flags)}
    tree = _merge(_merge(file, _environment_tree(environment, referred)), flags)
    return table(Settings, _resolve(tree, "", environment), "")


def _given(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree without the flags that were not given."""
    return {k: _given(v) if isinstance(v, Mapping) else v for k, v in tree.items() if v is not None}


def _merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    """`high` laid over `low`; its keys and its tables in lists stand first."""
    merged = {**high, **{k: v for k, v in low.items() if k not in high}}
    for key, value in high.items():
        below = low.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = _merge(below, value)
        elif isinstance(value, list | tuple) and isinstance(below, list) and any(isinstance(v, Mapping) for v in value):
            merged[key] = [*value, *below]
    return merged


def _references(value: Any) -> Iterator[str]:
    """The names of all variables that `env:NAME` values of the tree refer to."""
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
    """The tree with each `env:NAME` replaced."""
    if isinstance(value, Mapping):
        return {k: _resolve(v, join(path, str(k)), environ) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_resolve(v, f"{path}[{i}]", environ) for i, v in enumerate(value)]
    if isinstance(value, str) and value.startswith(REFERENCE):
        name = value.removeprefix(REFERENCE)
        if not environ.get(name):
            if not _VARIABLE.fullmatch(name):  # perhaps the key itself, which nobody must get to see
                raise SettingsError(
                    f"{path}: expected the name of a variable, in capitals; the key is what the variable holds",
                    param=path,
                    code="missing_variable",
                )
            raise SettingsError(f"{path}: the environment has no {name}", param=path, code="missing_variable")
        return FromEnv(environ[name])
    return value


def _environment_tree(environ: Mapping[str, str], referred: set[str]) -> dict[str, Any]:
    """The tree that the `STREAMTOOL_*` variables spell."""
    tree: dict[str, Any] = {}
    known = {key_of(a) for a in fields(Settings)}
    for name in sorted(environ):
        if not name.startswith(PREFIX) or name in RESERVED or name in referred:
            continue
        parts = name.removeprefix(PREFIX).split("__")
        keys = [part if i == 1 and parts[0].lower() == "tool" else part.lower() for i, part in enumerate(parts)]
        if keys[0] not in known:
            raise SettingsError(
                f"{name}: unknown setting; the nearest is {PREFIX}{nearest(keys[0], known).upper()}",
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
