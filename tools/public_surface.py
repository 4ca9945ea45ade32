"""The public surface as lines of text: `python -m tools.public_surface` writes `tests/public_surface.txt`.

`docs/stability.md` promises that these lines change only as semantic versions allow. A test compares the file, so each
change appears in a review.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import griffe
import typer
from attrs import NOTHING, fields, has

from statemachine import FORMATS
from statemachine.formats import plugins
from streamtool.cli import exit_codes
from streamtool.cli.app import app
from streamtool.models import families
from streamtool.observe.lines import VERSION
from streamtool.protocols.registry import CLIENTS, UPSTREAMS
from streamtool.settings import (
    CircuitSettings,
    KeyLimits,
    McpSettings,
    ModelRule,
    Settings,
    TimeoutSettings,
    ToolSettings,
    UpstreamSettings,
)
from streamtool.settings.load import RESERVED
from streamtool.settings.readers import key_of

ROOT: Final = Path(__file__).resolve().parent.parent
FILE: Final = ROOT / "tests" / "public_surface.txt"
MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "streamtool": (),
    "statemachine": (),
    "streamtool.settings": (),
    "streamtool.agent": (),
    "streamtool.testing": (),
    "streamtool.policy": (
        *("register", "Failure", "Effect", "Finding", "Outcome"),
        *("EndOfReply", "ProposedCall", "RejectedRequest", "WholeReply"),
    ),
    "streamtool.sample": ("app", "reply"),
    "streamtool.observe.metrics": ("Metrics",),
    "streamtool.observe.otel": ("OpenTelemetry",),
}
"""Public modules → their public names; empty: those in `__all__`."""
TABLES: Final[Mapping[str, type]] = {
    "limits.keys.NAME.": KeyLimits,
    "upstream.NAME.": UpstreamSettings,
    "upstream.NAME.timeout.": TimeoutSettings,
    "upstream.NAME.circuit.": CircuitSettings,
    "model[].": ModelRule,
    "mcp.NAME.": McpSettings,
    "tool.NAME.": ToolSettings,
}
_HEADER: Final = re.compile(r"x-streamtool-[a-z]+")
_SIMPLE: Final = re.compile(r"[\w.+'\"-]*|\(\)")


def lines() -> Iterator[str]:
    """Yield all lines."""
    yield from _python()
    yield from _settings()
    yield from _commands()
    yield from _outputs()
    yield from _distribution()


def text() -> str:
    """Return the contents of the file."""
    return "".join(f"{line}\n" for line in lines())


# --- Python ----------------------------------------------------------------------------------------------------------


def _objects() -> Iterator[tuple[str, Any]]:
    """Yield each public name, and the object that defines it."""
    loader = griffe.GriffeLoader(search_paths=[ROOT])
    for package in ("statemachine", "streamtool"):
        loader.load(package, try_relative_path=False)
    for module, chosen in MODULES.items():
        for name in sorted(chosen or import_module(module).__all__):
            found = loader.modules_collection[f"{module}.{name}"]
            found = found.final_target if found.is_alias else found
            if found.is_module:  # a function has the name of its module, and replaces it in the package
                found = found[name]
            yield f"{module}.{name}", found


def homes() -> set[str]:
    """Return where the public names are defined."""
    return {found.path for _, found in _objects()}


def _python() -> Iterator[str]:
    known: dict[str, str] = {}
    for public, found in _objects():
        home = known.setdefault(found.path, public)
        if home == public:
            yield from _described(public, found)
        else:
            yield f"python {public} = {home}"


def _described(public: str, found: Any) -> Iterator[str]:
    if found.is_function:
        yield f"python {public}{_signature(found)}"
    elif found.is_class:
        bases = ", ".join(str(base) for base in found.bases)
        yield f"python class {public}" + (f"({bases})" if bases else "")
        for name, member in found.members.items():
            if name == "__init__" and member.is_function:
                yield f"python {public}{_signature(member)}"
            elif not name.startswith("_"):
                yield from _member(f"{public}.{name}", member)
    else:
        yield f"python {public}: {found.annotation}" if found.annotation else f"python {public} = {found.value}"


def _member(place: str, member: Any) -> Iterator[str]:
    if member.is_function:
        yield f"python {place}{_signature(member)}"
    elif member.is_attribute and ({"property", "class-attribute"} & member.labels or member.value is None):
        # not what a method assigns to `self`: only what the class declares is public
        told = f": {member.annotation}" if member.annotation else ""
        yield f"python {place}{told}{_default(member.value)}"


def _signature(function: Any) -> str:
    parts: list[str] = []
    named_only = False
    for one in function.parameters:
        if one.name in ("self", "cls"):
            continue
        stars = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(one.kind, "")
        if one.kind is griffe.ParameterKind.keyword_only and not named_only:
            parts.append("*")
        named_only |= one.kind in (griffe.ParameterKind.keyword_only, griffe.ParameterKind.var_positional)
        told = f": {one.annotation}" if one.annotation else ""
        parts.append(f"{stars}{one.name}{told}{'' if stars else _default(one.default)}")
    returned = f" -> {function.returns}" if function.returns else ""
    return f"({', '.join(parts)}){returned}"


def _default(value: Any) -> str:
    """Return a default as it is written, or an ellipsis if it is an expression."""
    if value is None:
        return ""
    shown = str(value)
    return f" = {shown if _SIMPLE.fullmatch(shown) else '…'}"


# --- settings, commands ----------------------------------------------------------------------------------------------


def _settings() -> Iterator[str]:
    yield from _table("", Settings)
    for prefix, kind in TABLES.items():
        yield from _table(prefix, kind)
    for name in RESERVED:
        yield f"variable {name}"


def _table(prefix: str, kind: Any) -> Iterator[str]:
    for attribute in fields(kind):
        default = attribute.default
        if not attribute.init or prefix + key_of(attribute) in ("calibrations", "upstream.NAME.name"):
            continue
        if has(type(default)):
            if f"{prefix}{key_of(attribute)}." not in TABLES:
                yield from _table(f"{prefix}{key_of(attribute)}.", type(default))
        elif default is NOTHING:
            yield f"setting {prefix}{key_of(attribute)} (required)"
        elif isinstance(default, str | int | float | bool | tuple | None):
            yield f"setting {prefix}{key_of(attribute)} = {default!r}"
        else:
            yield f"setting {prefix}{key_of(attribute)}"


def _commands() -> Iterator[str]:
    for name, command in sorted(typer.main.get_command(app).commands.items()):  # type: ignore[attr-defined]
        yield f"command {name}"
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                yield f"command {name} {parameter.metavar}{'' if parameter.required else ' (optional)'}"
            else:
                shown = "" if parameter.is_flag else f" {parameter.metavar}"
                yield f"command {name} {'/'.join((*parameter.opts, *parameter.secondary_opts))}{shown}"
    for code in ("DONE", "FAILED", "USAGE_ERROR", "UNREACHABLE", "INTERRUPTED"):
        yield f"exit code {getattr(exit_codes, code)}: {code.replace('_', ' ').lower()}"


# --- what others read ------------------------------------------------------------------------------------------------


def _outputs() -> Iterator[str]:
    from prometheus_client import CollectorRegistry  # noqa: PLC0415  an extra

    from streamtool.observe.metrics import Metrics  # noqa: PLC0415

    registry = CollectorRegistry()
    Metrics(registry)
    for metric in sorted(registry.collect(), key=lambda one: one.name):
        (labels,) = (
            one._labelnames  # noqa: SLF001  the registry offers no other way
            for one, names in registry._collector_to_names.items()  # noqa: SLF001
            if metric.name in names
        )
        yield f"metric {metric.name} ({metric.type}) {', '.join(labels)}".rstrip()
    sources = (path.read_text(encoding="utf-8") for path in sorted((ROOT / "streamtool").rglob("*.py")))
    for header in sorted({found for source in sources for found in _HEADER.findall(source)}):
        yield f"header {header}"
    yield f"recording version {VERSION}"
    for name in sorted(FORMATS):
        yield f"format {name}"
    for name in sorted(CLIENTS):
        yield f"client protocol {name}"
    for name in sorted(UPSTREAMS):
        yield f"upstream protocol {name}"


def _distribution() -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    yield f"python version {project['requires-python']}"
    for name in sorted(project["optional-dependencies"]):
        yield f"extra {name}"
    for group in (plugins.GROUP, families.GROUP):
        yield f"entry point group {group}"
    for group, points in project["entry-points"].items():
        for name in points:
            yield f"entry point {group}: {name}"


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(FILE.relative_to(ROOT))
