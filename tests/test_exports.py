"""Every public name has one home, a description and a place in the docs."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from support.sweeps import each

import statemachine
import streamtool
from streamtool.protocols.interfaces import (
    AddressedProtocol,
    ClientProtocol,
    CountingProtocol,
    ListingProtocol,
    UpstreamProtocol,
)
from streamtool.protocols.table import COUNTS, OTHER_REQUESTS, ROWS

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "statemachine",
    "streamtool.prompting",
    "streamtool.settings",
    "streamtool.testing",
)
"""Packages whose `__init__` lists the public names."""

SHARED = {f"streamtool.protocols.shared.{name}" for name in ("wire", "fields", "body_sniffer")}
"""Modules shared by the protocols, whose names may be re-exported."""

SEVERAL_HOMES = {
    "Event": "the events of the parser and of the agent are both public: `streamtool.Event`, `streamtool.agent.Event`",
}
"""Type names that are defined more than once → the reason."""


def test_every_public_name_has_a_home():
    for package in (streamtool, statemachine):
        assert sorted(package.__all__) == sorted(package.HOMES)


def test_modules_of_the_parser_are_attributes_of_its_package():
    code = "import statemachine; statemachine.events.TextDelta; statemachine.formats; hasattr(statemachine, 'nothing')"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("name", streamtool.__all__)
def test_each_public_name_is_the_object_in_its_home(name):
    home = importlib.import_module(streamtool.HOMES[name])
    assert getattr(streamtool, name) is getattr(home, name)
    assert getattr(home, name).__class__ is not type(sys), "a module is not a public name"


def type_names(path: Path) -> set[str]:
    """Return the classes and type aliases that a module defines."""
    assigned: list[ast.expr] = []
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef():
                names.add(node.name)
            case ast.Assign():
                assigned += node.targets
            case ast.AnnAssign():
                assigned.append(node.target)
    aliases = {target.id for target in assigned if isinstance(target, ast.Name)}
    return names | {name for name in aliases if name.strip("_")[:1].isupper() and not name.isupper()}


def test_type_names_have_one_home():
    """The protocol packages are the exception: they offer the same names on purpose, each at most once."""
    homes: dict[str, list[Path]] = {}
    for package in ("statemachine", "streamtool"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for name in type_names(path):
                homes.setdefault(name, []).append(path.relative_to(ROOT))
    protocols = ROOT / "streamtool" / "protocols"
    symmetric = {path.name for path in protocols.iterdir() if path.is_dir() and path.name != "shared"}

    def package_of(path: Path) -> str | None:
        inside = path.parts[:2] == ("streamtool", "protocols") and path.parts[2] in symmetric
        return path.parts[2] if inside else None

    several = {}
    for name, paths in homes.items():
        packages = {package_of(path) for path in paths}
        if len(paths) > 1 and (None in packages or len(packages) < len(paths)):
            several[name] = [str(path) for path in paths]
    assert set(several) == set(SEVERAL_HOMES), several


def test_no_two_public_names_are_the_same_object():
    found = [id(getattr(streamtool, name)) for name in streamtool.__all__]
    assert len(set(found)) == len(found)


def test_type_checkers_see_the_actual_names():
    tree = ast.parse((ROOT / "streamtool" / "__init__.py").read_text())
    checked = next(
        node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    )
    seen = {
        alias.name: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == streamtool.HOMES


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        streamtool.nope  # noqa: B018


def test_the_version_matches_the_distribution():
    assert streamtool.__version__
    assert "Parser" in dir(streamtool)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_list_their_exports(package):
    module = importlib.import_module(package)
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        described_at_home(package, name)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_protocol_packages_implement_their_interfaces(row):
    package = f"streamtool.protocols.{row.name}"
    module = importlib.import_module(package)
    asked = {
        ClientProtocol: row.paths,
        UpstreamProtocol: True,
        AddressedProtocol: row.addressed,
        ListingProtocol: row.list_paths,
        CountingProtocol: row.name in map(OTHER_REQUESTS.get, COUNTS),
    }
    sides = [side for side, offered in asked.items() if offered]
    for name in {name for side in sides for name in vars(side) if not name.startswith("_")}:
        assert hasattr(module, name), f"{package} has no {name}"
    for name, value in vars(module).items():
        if not (name.startswith("_") or inspect.ismodule(value)):
            described_at_home(package, name)


def described_at_home(package, name):
    value = getattr(importlib.import_module(package), name)
    if inspect.isclass(value) or inspect.isfunction(value):
        assert inspect.getdoc(value), f"{package}.{name} has no docstring"
        shared = value.__module__ in SHARED and package.startswith("streamtool.protocols.")
        assert shared or value.__module__.startswith(package), f"{package}.{name} is defined in {value.__module__}"


@pytest.mark.parametrize("name", streamtool.__all__)
def test_public_classes_and_their_methods_have_docstrings(name):
    value = getattr(streamtool, name)
    if not inspect.isclass(value):
        assert not inspect.isfunction(value) or inspect.getdoc(value)
        return
    assert inspect.getdoc(value)
    for method, function in inspect.getmembers(value, inspect.isfunction):
        if not method.startswith("_") and function.__module__.partition(".")[0] in ("streamtool", "statemachine"):
            assert inspect.getdoc(function), f"{name}.{method} has no docstring"


@each("name", sorted({*streamtool.__all__, *statemachine.__all__}))
def test_every_public_name_is_in_the_docs(name):
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    assert any(f"{name}" in page.read_text() for page in pages), name


def run(code: str, *path: Path) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": ":".join(str(entry) for entry in [*path, ROOT])}
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, env=env, check=False)


def test_importing_the_package_loads_no_http():
    done = run("import sys, streamtool; streamtool.Parser; print('httpx' in sys.modules, 'anyio' in sys.modules)")
    assert done.stdout == "False False\n", done.stderr


@pytest.mark.parametrize("theirs", ["", "from nowhere_at_all import StateMachine", "STREAMTOOL = 'other'"])
def test_another_distribution_with_the_same_import_name_is_reported(tmp_path, theirs):
    (tmp_path / "statemachine").mkdir()
    (tmp_path / "statemachine" / "__init__.py").write_text(theirs)
    done = run("import streamtool", tmp_path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: streamtool needs its own package `statemachine`")
    assert "python-statemachine" in last


def test_a_program_that_expects_the_other_distribution_gets_an_explanation():
    done = run("from statemachine import StateMachine")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: cannot import name 'StateMachine' from 'statemachine'")
    assert "belongs to streamtool" in last
    assert "python-statemachine" in last
    assert "python -m venv" in last


def test_a_missing_name_that_is_not_a_class_is_an_ordinary_error():
    assert not hasattr(statemachine, "missing")
    assert run("from statemachine import endings").returncode == 0  # a submodule that is not loaded yet
