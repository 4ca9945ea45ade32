"""Readers of settings: each is a function of a value and its path.

A reader returns the typed value or raises a SettingsError that names the path, the expected type and the value found.
It accepts values from a TOML file, the environment or Python, and is idempotent: it returns its own results unchanged.
The same reader can therefore serve the merged tree and direct construction.

A field is normally read according to its type, so that the allowed values of a `Literal` are written only once. If the
type is not enough (a lower bound, a URL), the field specifies a reader. We do not use msgspec's validation, because its
errors include neither the value found nor the allowed values, and because it ignores unknown keys.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin
from urllib.parse import urlsplit

from attrs import NOTHING, Attribute, AttrsInstance, Converter, field, fields, has

from statemachine import FORMATS
from statemachine.formats import FormatError, is_format
from streamtool.core.errors import SettingsError
from streamtool.models import response_templates
from streamtool.models.families import UNKNOWN, family_of
from streamtool.models.format_aliases import FORMAT_ALIASES, find_format_name, looks_like_model
from streamtool.protocols.table import PATHS, PROTOCOL_ALIASES, ROWS, without_version

FRAMES = ("default", "tool_result", "doai", "windlass")
"""The names of the predefined result frames."""
RESPONSE_TEMPLATE = "response_template"
"""The value of `format` that teaches the format of the model's response template."""
_HOST = re.compile(r"[^\s/:@]+")
_ORIGIN = re.compile(r"[a-z*][a-z0-9+.*-]*://[^\s/@]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_OWN_ENDINGS = (*(ending for row in ROWS for ending in row.path_suffixes), "/models")
"""Endings of URLs of requests, which the base URL of an upstream does not have."""
_STRING = {"type": "string", "minLength": 1}
_BARE = re.compile(r"[\w.-]+(:\d+)?(/.*)?")
"""Matches a host without a scheme."""

T = TypeVar("T", bound=AttrsInstance)
SettingReader = Callable[[Any, str], Any]
R = TypeVar("R", bound=SettingReader)


def shape(**schema: Any) -> Callable[[R], R]:
    """Return a decorator that records the JSON Schema of the values that a reader accepts; see `schema`."""

    def mark(read: R) -> R:
        vars(read)["schema"] = schema
        return read

    return mark


def shape_of(read: SettingReader) -> Mapping[str, Any]:
    """Return the recorded JSON Schema. In it, `table` stands for the schema of a settings class."""
    found: Mapping[str, Any] = vars(read)["schema"]
    return found


class FromEnv(str):
    """A string from the environment, which may also represent a number, a flag or a list."""

    __slots__ = ()


def wrong_type(path: str, expected: str, value: object, *, secret: bool = False) -> SettingsError:
    """Return the error for a value of the wrong type. A `secret` value is not shown."""
    kinds = {
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        dict: "a table",
        list: "a list",
        type(None): "nothing",
    }
    if isinstance(value, str):
        found = "a string" if secret else f"the string {str(value)!r}"
    elif isinstance(value, bool | int | float) and not secret:
        found = f"{kinds[type(value)]} ({str(value).lower()})"
    else:
        found = kinds.get(type(value), f"a value of type {type(value).__name__}")
    return SettingsError(f"{path}: expected {expected}, found {found}", param=path, code="wrong_type")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that is most similar to `word`."""
    names = list(known)
    lowered = {name.lower(): name for name in names}
    close = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.0)
    return lowered[close[0]] if close else ""


@shape(type="string", minLength=1)
def text(value: Any, path: str) -> str:
    """Read a non-empty string."""
    if not isinstance(value, str) or not value:
        raise wrong_type(path, "a non-empty string", value)
    if "\0" in value:
        raise wrong_type(path, "a string without NUL", value)
    return str(value)


@shape(type="string", minLength=1)
def secret(value: Any, path: str) -> str:
    """Read a non-empty string that is never shown, and that a header can contain."""
    if not isinstance(value, str) or not value:
        raise wrong_type(path, "a non-empty string", value, secret=True)
    if _CONTROL.search(value) or value != value.strip():
        raise wrong_type(path, "no control characters or surrounding spaces", value, secret=True)
    return str(value)


@shape(type="boolean")
def flag(value: Any, path: str) -> bool:
    """Read a boolean."""
    if isinstance(value, FromEnv) and value.lower() in ("1", "true", "yes", "on", "0", "false", "no", "off"):
        return value.lower() in ("1", "true", "yes", "on")
    if not isinstance(value, bool):
        raise wrong_type(path, "true or false", value)
    return value


def flag_or(word: str) -> SettingReader:
    """Return a reader for a boolean or this word."""

    @shape(anyOf=[{"type": "boolean"}, {"const": word}])
    def read(value: Any, path: str) -> bool | str:
        if isinstance(value, str) and value == word:
            return word
        try:
            return flag(value, path)
        except SettingsError:
            raise wrong_type(path, f'true, false or "{word}"', value) from None

    return read


def integer(minimum: int) -> SettingReader:
    """Return a reader for an integer of at least `minimum`."""

    @shape(type="integer", minimum=minimum)
    def read(value: Any, path: str) -> int:
        found = value
        if isinstance(value, FromEnv):
            try:
                found = int(value)
            except ValueError:
                found = value
        if isinstance(found, bool) or not isinstance(found, int) or found < minimum:
            raise wrong_type(path, f"an integer, {minimum} or more", value)
        return found

    return read


@shape(type="number", exclusiveMinimum=0)
def seconds(value: Any, path: str) -> float:
    """Read a positive number of seconds."""
    found = value
    if isinstance(value, FromEnv):
        try:
            found = float(value)
        except ValueError:
            found = value
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < float("inf"):
        raise wrong_type(path, "a positive number of seconds", value)
    return float(found)


def one_of(*words: str) -> SettingReader:
    """Return a reader for one of `words`."""
    listed = ", ".join(words)

    @shape(enum=list(words))
    def read(value: Any, path: str) -> str:
        if isinstance(value, str) and value in words:
            return str(value)
        raise wrong_type(path, f"one of {listed}", value)

    return read


def protocol(*words: str) -> SettingReader:
    """Return a reader for one of `words`, where a protocol may also be named by its vendor or its API."""
    read = one_of(*words)
    named = [other for other, name in PROTOCOL_ALIASES.items() if name in words]
    return shape(enum=[*words, *named])(
        lambda value, path: read(PROTOCOL_ALIASES.get(value, value) if isinstance(value, str) else value, path)
    )


def optional(read: SettingReader) -> SettingReader:
    """Return a reader that also accepts None."""
    return shape(**shape_of(read))(lambda value, path: None if value is None else read(value, path))


def list_of(read: SettingReader) -> SettingReader:
    """Return a reader for a list; in the environment, the items are separated by commas."""

    @shape(type="array", items=shape_of(read))
    def read_list(value: Any, path: str) -> tuple[Any, ...]:
        if isinstance(value, FromEnv):
            value = [FromEnv(item.strip()) for item in value.split(",") if item.strip()]
        if not isinstance(value, list | tuple):
            raise wrong_type(path, "a list of strings", value)
        return tuple(read(item, f"{path}[{i}]") for i, item in enumerate(value))

    return read_list


@shape(anyOf=[{"type": "object", "additionalProperties": _STRING}, {"type": "array", "items": _STRING}])
def client_keys(value: Any, path: str) -> Mapping[str, str]:
    """Read a mapping of names to keys; keys given as a list are named by position (`key 1`)."""
    if isinstance(value, Mapping):
        found = {str(name): secret(key, join(path, str(name))) for name, key in value.items()}
    elif isinstance(value, FromEnv | list | tuple):
        found = {f"key {i}": key for i, key in enumerate(list_of(secret)(value, path), 1)}
    else:
        raise wrong_type(path, "a list of keys, or a table of names and keys", value, secret=True)
    names: dict[str, str] = {}
    for name, key in found.items():
        if not (name.strip() and name.isprintable()):
            raise SettingsError(f"{path}: expected a name of printable characters, found {name!r}", param=path)
        if (other := names.setdefault(key, name)) != name:
            raise SettingsError(f'{path}: "{other}" and "{name}" have the same key; give each its own', param=path)
    return found


def key_of(attribute: "Attribute[Any]") -> str:
    """Return the field's name in the settings file."""
    return str(attribute.metadata.get("key") or attribute.name)


def table(cls: type[T], value: Any, path: str, **given: Any) -> T:
    """Return an instance of the settings class `cls`, created from a table. `given` provides the fields that are not
    read from the table.
    """
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise wrong_type(path or "the settings", "a table", value)
    known = {key_of(a): a for a in fields(cls) if a.name not in given and a.init}
    for key in value:
        if key not in known:
            raise SettingsError(
                f'{join(path, str(key))}: unknown setting; did you mean "{nearest(str(key), known)}"?',
                param=join(path, str(key)),
                code="unknown_setting",
            )
    for key, attribute in known.items():
        if attribute.default is NOTHING and key not in value:
            raise SettingsError(f"{join(path, key)}: this setting is required", param=join(path, key), code="missing")
    read = {known[k].name: reader_for(known[k])(v, join(path, str(k))) for k, v in value.items()}
    return cls(**read, **given)


def join(path: str, key: str) -> str:
    """Return the path of `key` in the table at `path`."""
    return f"{path}.{key}" if path else key


def table_of(cls: type[AttrsInstance]) -> SettingReader:
    """Return a reader for a table with the settings of class `cls`."""
    return shape(table=cls)(lambda value, path: table(cls, value, path))


def tables_by_name(cls: type[AttrsInstance], *, with_name: bool) -> SettingReader:
    """Return a reader for a table of tables: name → settings of class `cls`. If `with_name` is true, each instance also
    receives its name.
    """

    @shape(type="object", additionalProperties={"table": cls})
    def read(value: Any, path: str) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise wrong_type(path, "a table of tables", value)
        return {
            str(name): table(cls, item, f"{path}.{name}", **({"name": str(name)} if with_name else {}))
            for name, item in value.items()
        }

    return read


def tables_of(cls: type[AttrsInstance]) -> SettingReader:
    """Return a reader for a list of tables, each with the settings of class `cls`."""

    @shape(type="array", items={"table": cls})
    def read(value: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            raise wrong_type(path, f"a list of tables ([[{path}]])", value)
        return tuple(table(cls, item, f"{path}[{i}]") for i, item in enumerate(value))

    return read


@shape(
    anyOf=[
        {"type": "object", "minProperties": 1, "additionalProperties": _STRING},
        {"type": "array", "minItems": 1, "items": _STRING},
    ]
)
def paths(value: Any, path: str) -> Mapping[str, str]:
    """Read a mapping of paths to protocols, or a list of paths whose endings identify the protocol."""
    endings = {without_version(path): name for path, name in PATHS.items()}
    if isinstance(value, FromEnv):
        value = [item.strip() for item in value.split(",") if item.strip()]
    if isinstance(value, list | tuple):
        found = {}
        for i, item in enumerate(value):
            name = text(item, f"{path}[{i}]")
            known = next((p for ending, p in endings.items() if name.endswith(ending)), None)
            if known is None:
                raise SettingsError(
                    f'{path}[{i}]: "{name}" does not identify its protocol; write paths = {{ "{name}" = "chat" }}',
                    param=f"{path}[{i}]",
                )
            found[name] = known
        value = found
    if not isinstance(value, Mapping) or not value:
        raise wrong_type(path, "a table of paths and their protocols, or a list of paths", value)
    reader = protocol(*dict.fromkeys(PATHS.values()))
    found = {}
    for name, spoken in value.items():
        if not str(name).startswith("/"):
            raise SettingsError(f'{path}: "{name}" does not begin with "/"', param=path)
        found[name] = reader(spoken, f"{path}.{name}")
    return found


@shape(type="string", minLength=1)
def listen(value: Any, path: str) -> str:
    """Read a host and a port."""
    found = text(value, path)
    host, colon, port = found.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise wrong_type(path, 'a host and a port ("127.0.0.1:8700")', value)
    return found


@shape(type="string", minLength=1)
def host(value: Any, path: str) -> str:
    """Read a host name or a pattern of names; the result is in lower case."""
    found = text(value, path).lower()
    if not _HOST.fullmatch(found):
        raise wrong_type(path, 'a host name without a scheme or port ("proxy.example")', value)
    return found


@shape(type="string", minLength=1)
def origin(value: Any, path: str) -> str:
    """Read an origin of web pages (scheme, host, port) or a pattern for origins; the result is in lower case."""
    found = text(value, path).lower()
    if found not in ("*", "null") and not _ORIGIN.fullmatch(found):
        raise wrong_type(path, 'an origin without a path ("https://app.example"), "null" or "*"', value)
    return found


@shape(type="string", minLength=1)
def url(value: Any, path: str) -> str:
    """Read the base URL of an upstream, or `sample`."""
    if isinstance(value, str) and (_CONTROL.search(value) or " " in value):
        raise wrong_type(path, "no spaces or control characters", value, secret="@" in value)
    found = text(value, path)
    if found == "sample":
        return found
    try:
        parts = urlsplit(found)
        proper = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        proper = False
    else:
        if parts.username is not None or parts.password is not None:
            raise SettingsError(f'{path}: a url must not contain credentials; put the key into "key"', param=path)
    if not proper:
        likely = f"a url such as http://{found}" if _BARE.fullmatch(found) else "an http or https url"
        raise wrong_type(path, f'{likely}, or "sample"', value, secret="@" in found)
    found = found.rstrip("/")
    base = parts.path.rstrip("/")
    own = next((ending for ending in _OWN_ENDINGS if base.endswith(ending)), None)
    if own is not None:
        right = f"{parts.scheme}://{parts.netloc}{base.removesuffix(own)}"
        raise SettingsError(f'{path}: omit "{own}" from the url; streamtool adds it: use {right}', param=path)
    if base.endswith("/v1/v1"):
        raise SettingsError(f'{path}: the url repeats "/v1": use {found.removesuffix("/v1")}', param=path)
    return found


@shape(type="string", minLength=1)
def redis(value: Any, path: str) -> str:
    """Read the URL of a Redis server. It may contain a password, so it is never shown."""
    found = secret(value, path)
    if not found.startswith(("redis://", "rediss://", "unix://")):
        raise wrong_type(path, "a redis, rediss or unix url (redis://host:6379/0)", value, secret=True)
    return found


@shape(type="string", minLength=1)
def frame(value: Any, path: str) -> str:
    """Read the name of a result frame, or a template."""
    found = text(value, path)
    if found not in FRAMES and "{content}" not in found:
        raise SettingsError(
            f'{path}: "{found}" is neither a template ({{content}} is missing) nor one of {", ".join(FRAMES)}',
            param=path,
        )
    return found


@shape(type="string", minLength=1)
def format_name(value: Any, path: str) -> str:
    """Read the name of a format, one of its other names, or the name of a model, which stands for the format that
    `auto` teaches it.
    """
    found = text(value, path)
    if is_format(found):
        return found
    known = find_format_name(found)
    if known is None and looks_like_model(found) and (family := family_of(found)) is not UNKNOWN:
        known = family.format
    if known is None:
        raise SettingsError(
            f'{path}: unknown format "{found}"; did you mean "{nearest(found, (*FORMATS, *FORMAT_ALIASES))}"?',
            param=path,
            code="unknown_format",
        )
    return known


@shape(type="string", minLength=1)
def taught_format(value: Any, path: str) -> str:
    """Read the name of a format, `auto`, or `response_template`."""
    return text(value, path) if value in ("auto", RESPONSE_TEMPLATE) else format_name(value, path)


@shape(anyOf=[_STRING, {"type": "object"}])
def response_template(value: Any, path: str) -> "str | response_templates.Described":
    """Read a response template: a path, `auto`, `none`, or the template itself."""
    if isinstance(value, response_templates.Described):
        return value
    if not isinstance(value, Mapping):
        return text(value, path)
    try:
        return response_templates.read(value)
    except FormatError as error:
        raise SettingsError(f"{path}: {error}", param=path, code="unsupported_response_template") from None


_BY_TYPE: Mapping[Any, SettingReader] = {bool: flag, str: text, float: seconds, tuple[str, ...]: list_of(text)}


@cache
def reader_of(kind: Any) -> SettingReader:
    """Return the reader for a field of this type."""
    if get_origin(kind) is Literal:
        return one_of(*get_args(kind))
    if type(None) in get_args(kind):
        (inner,) = (one for one in get_args(kind) if one is not type(None))
        return optional(reader_of(inner))
    if has(kind):
        return table_of(kind)
    return _BY_TYPE[kind]


def setting(default: Any, read: SettingReader | None = None, *, key: str | None = None, shown: bool = True) -> Any:
    """Return an attrs field with a reader, which by default is chosen by the field's type.

    `key` is the field's name in the settings file, if it differs from the attribute's. If `shown` is false, the field
    is omitted from reprs.
    """
    return field(
        default=default,
        converter=Converter(lambda value, own: reader_for(own)(value, key_of(own)), takes_field=True),
        metadata={"read": read, "key": key},
        repr=shown,
    )


def reader_for(attribute: "Attribute[Any]") -> SettingReader:
    """Return the reader of a field."""
    kind: Any = attribute.type
    found: SettingReader = attribute.metadata["read"] or reader_of(kind)
    return found
