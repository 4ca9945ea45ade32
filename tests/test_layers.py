"""Imports go one way through the rooms in the order below, and the pure rooms use no I/O, clock, randomness or
environment.
"""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

ROOMS = {
    "statemachine.events": "attrs",
    "statemachine.call": "attrs",
    "statemachine.names": "",
    "statemachine.schema": "",
    "statemachine.tools": "",
    "statemachine.stream": "attrs",
    "statemachine.formats": "attrs",
    "statemachine.json": "attrs",
    "statemachine.machine": "attrs",
    "statemachine.endings": "",
    "statemachine.bodies": "attrs",
    "statemachine.grammar": "",
    "statemachine.writing": "",
    "statemachine.parser": "attrs",
    "statemachine": "",
    "streamtool.core": "attrs",
    "streamtool.protocols.table": "attrs",
    "streamtool.models": "attrs",
    "streamtool.settings": "attrs",
    "streamtool.schemas": "attrs msgspec jsonschema_rs",
    "streamtool.protocols": "attrs msgspec",
    "streamtool.prompting": "attrs msgspec",
    "streamtool.refusals": "attrs",
    "streamtool.forcing": "attrs",
    "streamtool.policy": "attrs",
    "streamtool.filters": "attrs msgspec",
    "streamtool.exchange": "attrs msgspec",
    "streamtool.asgi": "attrs anyio sniffio",
    "streamtool.store": "attrs anyio redis",
    "streamtool.observe": "attrs prometheus_client opentelemetry",
    "streamtool.batch": "attrs ijson pyarrow zstandard",
    "streamtool.upstream": "attrs anyio httpx httptools aiohappyeyeballs sniffio tokenizers",
    "streamtool.server": "attrs anyio",
    "streamtool.responses_api": "attrs anyio",
    "streamtool.inspector": "attrs anyio",
    "streamtool.middleware": "attrs",
    "streamtool.transport": "attrs anyio httpx",
    "streamtool.testing": "attrs anyio msgspec",
    "streamtool.sample": "attrs anyio",
    "streamtool.agent": "attrs anyio httpx httpx2 mcp msgspec",
    "streamtool.probe": "attrs anyio",
    "streamtool.evaluation": "attrs anyio",
    "streamtool.proxy": "attrs httpx",
    "streamtool": "",
    "streamtool.adapters": "attrs httpx langchain_core litellm",
    "streamtool.bench": "attrs",
    "streamtool.cli": "attrs anyio sniffio httpx trio typer rich uvicorn hypercorn h11 wsproto openai prompt_toolkit",
    "streamtool.__main__": "",
}
"""Rooms in order → the libraries that each may import. A room imports only itself and rooms above it."""

ORDER = tuple(ROOMS)
PURE = ORDER.index("streamtool.exchange")
"""The last room without I/O."""

ADAPTED = {
    "streamtool.adapters.vllm_plugin": {"vllm"},
    "streamtool.adapters.sglang": {"sglang"},
    "streamtool.adapters.mlx_lm": {"mlx_lm"},
    "streamtool.adapters.llama_cpp": {"llama_cpp"},
}
"""Additional libraries that an adapter imports. Adapters are not imported anywhere."""

IMPURE = {
    "asyncio", "concurrent", "contextvars", "os", "pathlib", "random", "secrets", "select", "selectors", "signal",
    "socket", "ssl", "subprocess", "tempfile", "threading", "time", "urllib.request", "uuid",
}  # fmt: skip
"""Modules of the standard library that provide a clock, randomness, the environment or I/O."""
CLOCK = {"now", "utcnow", "today"}
"""Methods of `datetime` that read the clock; the others are arithmetic."""

SHARED = ("shared", "table", "registry", "interfaces", "options", "decisions")
"""Modules shared by the protocol packages, which never import each other."""


def modules() -> Iterator[tuple[str, Path]]:
    for package in ("statemachine", "streamtool"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(modules())


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def room(name: str) -> int:
    """Return the index of a module's room, the longest that contains it."""
    return ORDER.index(max((one for one in ORDER if inside(name, one)), key=len))


@cache
def tree_of(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield every imported module: at the top, inside functions, and for types only."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                for alias in node.names:
                    yield alias.name
            case ast.ImportFrom():
                assert not node.level, "imports are absolute"
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    yield full if full in MODULES else str(node.module)


@cache
def imported_by(name: str) -> tuple[str, ...]:
    return tuple(imports(tree_of(name)))


def test_a_room_imports_only_rooms_above_it():
    arrows = [(name, other) for name in MODULES for other in imported_by(name) if other in MODULES]
    up = [f"{name} imports {other}" for name, other in arrows if room(other) > room(name)]
    assert not up


def test_no_import_cycles():
    """Rooms in one order have no cycles among them; neither do the modules inside a room."""
    known: dict[str, bool] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join((*path[path.index(name) :], name))
        if name not in known:
            for other in imported_by(name):
                if other in MODULES and other not in (name, "streamtool"):
                    visit(other, (*path, name))
            known[name] = True

    for name in MODULES:
        visit(name, ())


def test_each_room_imports_only_its_libraries():
    for name in MODULES:
        own = room(name)
        allowed = {*ROOMS[ORDER[own]].split(), *ADAPTED.get(name, ())}
        for imported in imported_by(name):
            top = imported.partition(".")[0]
            if top in ("streamtool", "statemachine"):
                assert imported not in ADAPTED, f"{name} imports an adapter"
            elif top in sys.stdlib_module_names:
                assert own > PURE or not {imported, top} & IMPURE, f"{name} imports {imported}"
            else:
                assert top in allowed, f"{name} imports {imported}"


def test_the_pure_rooms_never_read_the_clock():
    for name in MODULES:
        calls = [node for node in ast.walk(tree_of(name)) if isinstance(node, ast.Attribute) and node.attr in CLOCK]
        assert room(name) > PURE or not [call.lineno for call in calls], name


def test_the_pure_rooms_are_not_asynchronous():
    asynchronous = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    for name in MODULES:
        nodes = ast.walk(tree_of(name)) if room(name) <= PURE else ()
        assert not [node.lineno for node in nodes if isinstance(node, asynchronous)], name


def protocol(name: str) -> str | None:
    parts = name.split(".")
    return parts[2] if parts[:2] == ["streamtool", "protocols"] and len(parts) > 2 else None


def test_protocols_never_import_each_other():
    for name in MODULES:
        own = protocol(name)
        for imported in imported_by(name):
            if own is not None and protocol(imported) is not None:
                assert protocol(imported) in (own, *SHARED), f"{name} imports {imported}"
            if own in SHARED:
                assert protocol(imported) in (None, *SHARED), f"{name} is shared and must not import a protocol"


def test_the_package_initially_imports_only_the_parser():
    tree = tree_of("streamtool")
    checked = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    typed = {id(inner) for node in checked for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in typed:
            names = {name.partition(".")[0] for name in imports(ast.Module(body=[node], type_ignores=[]))}
            assert names <= {"statemachine", "importlib", "typing"}


def test_the_design_lists_the_rooms_in_this_order():
    design = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]*`) \| [^|]+ \| `tests/", design, re.MULTILINE)
    named = [name.replace("/", ".") for row in rows for name in re.findall(r"`([\w/]+)`", row)]
    expected = [name.partition(".")[2] or name for name in ORDER if name != "statemachine"]
    assert named == expected
