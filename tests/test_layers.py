"""Imports only lead downwards, and the lower layers know no I/O, no time, no chance and no environment."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

LAYERS = (
    ("statemachine",),
    (
        "streamtool.errors",
        "streamtool.settings",
        "streamtool.families",
        "streamtool.generation_prompt",
        "streamtool.templates",
        "streamtool.conversation",
        "streamtool.reply",
        "streamtool.turns",
        "streamtool.schema",
        "streamtool.kept",
        "streamtool.protocols.registry",
        "streamtool.sse",
        "streamtool.json_string",
    ),
    (
        "streamtool.protocols",
        "streamtool.prompting",
        "streamtool.policy",
        "streamtool.validation",
        "streamtool.constraints",
    ),
    ("streamtool.exchange", "streamtool.state.tool_sets", "streamtool.state.signatures", "streamtool.state.clients"),
    (
        "streamtool.http",
        "streamtool.state.replies",
        "streamtool.state.memory_store",
        "streamtool.state.shared_store",
        "streamtool.state.file_backend",
        "streamtool.state.database",
        "streamtool.state.redis_backend",
        "streamtool.state.outage",
        "streamtool.state.circuit",
        "streamtool.state.capabilities",
        "streamtool.observe",
        "streamtool.inspector",
        "streamtool.testing",
        "streamtool.sample",
        "streamtool.bench",
        "streamtool.probe",
    ),
    ("streamtool.agent",),
    ("streamtool.proxy", "streamtool.adapters"),
    ("streamtool.batch", "streamtool.cli", "streamtool.__main__"),
)
SHARED = ("wire", "fields", "typed_tools", "body_sniffer", "stream", "choices", "pairing", "registry", "interfaces")
"""What protocols share."""
PURE = 3
"""The highest layer without I/O."""

LIBRARIES = (
    {"attrs"},
    {"attrs", "msgspec", "jsonschema_rs"},
    {"attrs", "msgspec", "jsonschema_rs"},
    {"attrs", "msgspec", "jsonschema_rs"},
    {
        "attrs",
        "msgspec",
        "jsonschema_rs",
        "anyio",
        "httpx",
        "prometheus_client",
        "opentelemetry",
        "tokenizers",
        "redis",
        "httptools",
        "aiohappyeyeballs",
        "sniffio",
    },
    {"attrs", "msgspec", "anyio", "httpx", "mcp", "httpx2"},
    {"attrs", "httpx", "langchain_core", "litellm"},
    {"attrs", "anyio", "httpx", "trio", "typer", "rich", "uvicorn", "hypercorn", "h11", "wsproto", "openai",
     "prompt_toolkit", "ijson", "pyarrow", "zstandard"},
)  # fmt: skip
"""What each layer may import besides the standard library."""
ADAPTED = {
    "streamtool.adapters.vllm_plugin": {"vllm"},
    "streamtool.adapters.sglang": {"sglang"},
    "streamtool.adapters.mlx_lm": {"mlx_lm"},
    "streamtool.adapters.llama_cpp": {"llama_cpp"},
}
"""What an adapter imports besides. Nothing imports an adapter."""

IMPURE = {
    "asyncio", "concurrent", "contextvars", "datetime", "os", "pathlib", "random", "secrets", "select", "selectors",
    "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time", "urllib.request", "uuid",
}  # fmt: skip
"""Modules of the standard library through which a clock, chance, the environment or I/O would come in."""


def modules() -> Iterator[tuple[str, Path]]:
    for package in ("statemachine", "streamtool"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = dict(modules())
NAMES = sorted(name for name in MODULES if name not in ("streamtool", "streamtool.state"))


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def layer(name: str) -> int:
    found = [(len(package), i) for i, layer in enumerate(LAYERS) for package in layer if inside(name, package)]
    assert found, f"{name} belongs to no layer: give it one here and in docs/design.md"
    return max(found)[1]  # a module may stand lower than its package


def imports(tree: ast.AST) -> Iterator[str]:
    """The modules that the code imports when it runs, those inside of functions included."""
    types = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    unused = {id(inner) for node in types for inner in ast.walk(node)}
    for node in ast.walk(tree):
        match node:
            case _ if id(node) in unused:
                continue
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
    return tuple(imports(ast.parse(MODULES[name].read_text())))


def test_imports_lead_downwards():
    for name in NAMES:
        own = layer(name)
        for imported in imported_by(name):
            if inside(imported, "streamtool") or inside(imported, "statemachine"):
                assert imported != "streamtool" or own == len(LAYERS) - 1, f"{name} imports the public names"
                assert imported == "streamtool" or layer(imported) <= own, f"{name} imports {imported} from above"


def test_each_layer_imports_only_its_libraries():
    for name in NAMES:
        own = layer(name)
        for imported in imported_by(name):
            top = imported.partition(".")[0]
            if top in ("streamtool", "statemachine"):
                assert imported not in ADAPTED, f"{name} imports an adapter"
            elif top in sys.stdlib_module_names:
                assert own > PURE or not {imported, top} & IMPURE, f"{name} imports {imported}"
            else:
                assert top in LIBRARIES[own] | ADAPTED.get(name, set()), f"{name} imports {imported}"


def test_the_lower_layers_are_not_asynchronous():
    asynchronous = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    for name in NAMES:
        nodes = ast.walk(ast.parse(MODULES[name].read_text())) if layer(name) <= PURE else ()
        assert not [node.lineno for node in nodes if isinstance(node, asynchronous)], name


def protocol(name: str) -> str | None:
    parts = name.split(".")
    return parts[2] if parts[:2] == ["streamtool", "protocols"] and len(parts) > 2 else None


def test_protocols_never_import_each_other():
    for name in NAMES:
        own = protocol(name)
        for imported in imported_by(name):
            if own is not None and protocol(imported) is not None:
                assert protocol(imported) in (own, *SHARED), f"{name} imports {imported}"
            if own in SHARED:
                assert protocol(imported) in (None, *SHARED), "the shared helpers know no protocol"


def test_the_package_itself_imports_nothing_but_the_parser_until_it_is_asked():
    tree = ast.parse(MODULES["streamtool"].read_text())
    checked = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    typed = {id(inner) for node in checked for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in typed:
            names = {name.partition(".")[0] for name in imports(ast.Module(body=[node], type_ignores=[]))}
            assert names <= {"statemachine", "importlib", "typing"}


def test_every_layer_is_drawn_in_the_design():
    design = (ROOT / "docs" / "design.md").read_text()
    for packages in LAYERS:
        for package in packages:
            assert package.removeprefix("streamtool.") in design, package
