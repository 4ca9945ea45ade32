"""Every public name has one home, a description and a place in the docs."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import statemachine
import streamtool
from streamtool.protocols.interfaces import (
    AddressedProtocol,
    ClientProtocol,
    CountingProtocol,
    ListingProtocol,
    UpstreamProtocol,
)
from streamtool.protocols.registry import BESIDE, COUNTS, ROWS

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = (
    "statemachine",
    "streamtool.prompting",
    "streamtool.settings",
    "streamtool.testing",
)
"""Packages whose `__init__` lists what is public."""

SHARED = {f"streamtool.protocols.{name}" for name in ("wire", "fields", "body_sniffer")}
"""What protocols share, and may hand on."""


def test_the_public_names_are_those_with_a_home():
    assert sorted(streamtool.__all__) == sorted(streamtool.HOMES)


@pytest.mark.parametrize("name", streamtool.__all__)
def test_each_public_name_is_that_of_its_home(name):
    home = importlib.import_module(streamtool.HOMES[name])
    assert getattr(streamtool, name) is getattr(home, name)
    assert getattr(home, name).__class__ is not type(sys), "a module is no public name"


def test_no_two_public_names_are_the_same_thing():
    found = [id(getattr(streamtool, name)) for name in streamtool.__all__]
    assert len(set(found)) == len(found)


def test_what_type_checkers_see_is_what_is_there():
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


def test_the_version_is_that_of_the_distribution():
    assert streamtool.__version__
    assert "Parser" in dir(streamtool)


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_list_what_they_export(package):
    module = importlib.import_module(package)
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        described_at_home(package, name)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_protocol_packages_offer_what_the_interfaces_ask_for(row):
    package = f"streamtool.protocols.{row.name}"
    module = importlib.import_module(package)
    asked = {
        ClientProtocol: row.paths,
        UpstreamProtocol: True,
        AddressedProtocol: row.addressed,
        ListingProtocol: row.lists,
        CountingProtocol: row.name in map(BESIDE.get, COUNTS),
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
        assert inspect.getdoc(value), f"{package}.{name} is not described"
        shared = value.__module__ in SHARED and package.startswith("streamtool.protocols.")
        assert shared or value.__module__.startswith(package), f"{package}.{name} is at home in {value.__module__}"


@pytest.mark.parametrize("name", streamtool.__all__)
def test_public_classes_describe_themselves_and_their_methods(name):
    value = getattr(streamtool, name)
    if not inspect.isclass(value):
        assert not inspect.isfunction(value) or inspect.getdoc(value)
        return
    assert inspect.getdoc(value)
    for method, function in inspect.getmembers(value, inspect.isfunction):
        if not method.startswith("_") and function.__module__.partition(".")[0] in ("streamtool", "statemachine"):
            assert inspect.getdoc(function), f"{name}.{method} is not described"


@pytest.mark.parametrize("name", sorted({*streamtool.__all__, *statemachine.__all__}))
def test_every_public_name_stands_in_the_docs(name):
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    assert any(f"{name}" in page.read_text() for page in pages), name


def run(code: str, *path: Path) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": ":".join(str(entry) for entry in [*path, ROOT])}
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, env=env, check=False)


def test_importing_the_package_loads_no_http():
    done = run("import sys, streamtool; streamtool.Parser; print('httpx' in sys.modules, 'anyio' in sys.modules)")
    assert done.stdout == "False False\n", done.stderr


@pytest.mark.parametrize("theirs", ["", "from nowhere_at_all import StateMachine", "STREAMTOOL = 'other'"])
def test_another_distribution_of_the_same_import_name_is_told(tmp_path, theirs):
    (tmp_path / "statemachine").mkdir()
    (tmp_path / "statemachine" / "__init__.py").write_text(theirs)
    done = run("import streamtool", tmp_path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: streamtool needs its own package `statemachine`")
    assert "python-statemachine" in last
