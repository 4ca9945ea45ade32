"""The wheel as users get it: built, installed into an empty environment outside the checkout, and used from there.

`python -m pytest -q -s -m release tests/release` prints what was measured.
"""

import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from time import perf_counter

import httpx
import pytest
from attrs import frozen
from support.installing import UV, build, env_of, run
from support.servers import ROOT, free_port, wait_for

from tools import licences

pytestmark = pytest.mark.release

NAMED = ("trio", "httpx", "anyio", "ijson", "attrs")
CORE_MORE = 3
"""Maximum number of distributions that the core installs in addition to the named ones and theirs."""
CORE_MB, SERVE_MB, SECONDS = 12.0, 60.0, 20.0
SERVED = "http://127.0.0.1:8700"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel, built from the source distribution, as an index would serve it."""
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@frozen
class Installed:
    """An environment with nothing but the wheel and what it requires."""

    folder: Path
    seconds: float

    @property
    def bin(self) -> Path:
        return self.folder / "env" / "bin"

    @property
    def distributions(self) -> Mapping[str, Distribution]:
        (found,) = (self.folder / "env" / "lib").glob("python3*/site-packages")
        return {licences.normal(one.name): one for one in distributions(path=[str(found)])}

    @property
    def megabytes(self) -> float:
        sizes = (
            Path(str(file.locate())).stat().st_size
            for one in self.distributions.values()
            for file in one.files or ()
            if file.suffix != ".pyc"
        )
        return sum(sizes) / 1e6

    def streamtool(self, *argv: str, given: str = "", code: int = 0) -> str:
        return run(self.bin / "streamtool", *argv, cwd=self.folder, given=given, code=code)

    def python(self, code: str) -> str:
        return run(self.bin / "python", "-W", "error", "-c", code, cwd=self.folder)


def install(folder: Path, *what: str) -> Installed:
    run(*UV, "venv", "-q", "--python", sys.executable, folder / "env", cwd=folder)
    began = perf_counter()
    run(*UV, "pip", "install", "-q", "--python", folder / "env" / "bin" / "python", *what, cwd=folder)
    return Installed(folder, perf_counter() - began)


@pytest.fixture(scope="module")
def core(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("core"), str(wheel))


@pytest.fixture(scope="module")
def serve(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(tmp_path_factory.mktemp("serve"), f"{wheel}[serve]")


def readme_blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)


# --- the files -------------------------------------------------------------------------------------------------------


def test_two_builds_are_byte_identical(wheel: Path, tmp_path: Path) -> None:
    """From the source distribution and from a copy of the checkout, whose files have other times and modes."""
    copy = tmp_path / "elsewhere"
    ignored = shutil.ignore_patterns(".git", "node_modules", "__pycache__", ".*_cache", "build", ".engines")
    shutil.copytree(ROOT, copy, ignore=ignored, copy_function=shutil.copyfile)
    again = build(copy, tmp_path / "dist", "--wheel")
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()


def test_what_the_wheel_contains(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as found:
        names = found.namelist()
        (metadata,) = (found.read(name).decode() for name in names if name.endswith("/METADATA"))
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"streamtool", "statemachine"}
    assert {"streamtool/py.typed", "statemachine/py.typed"} <= set(names)
    assert not [name for name in names if name.endswith((".pth", ".pyc"))]
    assert not re.search(r"\]\((?!https?:|#)", metadata), "a link that is relative leads nowhere on an index"


def test_the_index_accepts_the_metadata(wheel: Path, tmp_path: Path) -> None:
    run(*UV, "tool", "run", "-q", "twine", "check", "--strict", wheel, cwd=tmp_path)


# --- what is installed -----------------------------------------------------------------------------------------------


def test_the_core_is_small(core: Installed) -> None:
    named = {licences.normal(name) for name in licences.closure(NAMED, core.distributions)}
    more = sorted(core.distributions.keys() - named - {"streamtool"})
    print(
        f"\ncore: {core.seconds:.1f} s, {core.megabytes:.1f} MB, {len(core.distributions)} distributions, more: {more}"
    )
    assert len(more) <= CORE_MORE
    assert core.megabytes <= CORE_MB
    assert core.seconds <= SECONDS


def test_the_proxy_is_small(serve: Installed) -> None:
    print(f"\nserve: {serve.seconds:.1f} s, {serve.megabytes:.1f} MB, {len(serve.distributions)} distributions")
    assert serve.megabytes <= SERVE_MB
    assert serve.seconds <= SECONDS


def test_no_dependency_runs_code_when_python_starts(wheel: Path, tmp_path: Path) -> None:
    """`site` executes lines of .pth files that begin with an import, and imports sitecustomize and usercustomize."""
    extras = "validate,serve,chat,mcp,batch,metrics,otel,tokenizer,redis"
    for name, one in install(tmp_path, f"{wheel}[{extras}]").distributions.items():
        for file in one.files or ():
            assert file.stem not in ("sitecustomize", "usercustomize"), name
            if file.suffix == ".pth":
                lines = Path(str(file.locate())).read_text().splitlines()
                assert not [line for line in lines if line.startswith("import")], name


def test_each_licence_is_known_and_listed(serve: Installed) -> None:
    listed = licences.listed()
    for name, one in serve.distributions.items():
        if name != "streamtool":
            assert licences.is_allowed(licences.licence_of(one)), (name, licences.licence_of(one))
            assert listed[name] == licences.licence_of(one), name


def test_the_bill_of_materials_is_valid(serve: Installed) -> None:
    made = serve.folder / "sbom.json"
    # the workflow runs the same command; it validates its output
    command = ("cyclonedx-py", "environment", "--output-reproducible", "--spec-version", "1.6", "-o", made)
    run(*UV, "tool", "run", "-q", "--from", "cyclonedx-bom", *command, serve.bin / "python", cwd=serve.folder)
    told = json.loads(made.read_text())
    assert told["bomFormat"] == "CycloneDX"
    assert serve.distributions.keys() <= {licences.normal(one["name"]) for one in told["components"]}


# --- what works ------------------------------------------------------------------------------------------------------


def test_the_command_without_extras(core: Installed) -> None:
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert core.streamtool("--version") == f"streamtool {version[1]}\n"
    assert "parse" in core.streamtool("--help")
    assert '"name": "ping"' in core.streamtool("parse", "--json", given='@ping {"n": 1}\n')
    says = core.streamtool("demo", code=2)
    assert says == (
        'streamtool: this command needs the extra "serve" (typer is missing): pip install "streamtool[serve]"\n'
    )


def test_the_parser_of_the_readme(core: Installed) -> None:
    (code,) = (block for block in readme_blocks("python") if "import Parser" in block)
    assert "CallStart(index=0, name='get_weather'" in core.python(code)


def test_a_missing_extra_in_a_program(core: Installed) -> None:
    found = run(
        core.bin / "python", "-c", "from streamtool import Agent; Agent('sample')", cwd=core.folder, code=1
    ).splitlines()[-1]
    assert found.endswith('install the extra "validate": pip install "streamtool[validate]"')


def test_the_demo(serve: Installed) -> None:
    assert "18 °C in Paris" in serve.streamtool("demo", "--delay", "0")


def test_the_agent_of_the_readme(serve: Installed) -> None:
    (code,) = (block for block in readme_blocks("python") if "import Agent" in block)
    (serve.folder / "agent.py").write_text(code, "utf-8")
    assert "18 °C" in run(serve.bin / "python", "agent.py", cwd=serve.folder)


@pytest.fixture
def proxy(serve: Installed) -> Iterator[str]:
    """Run `streamtool serve` of the wheel."""
    url = f"http://127.0.0.1:{free_port()}"
    command = [str(serve.bin / "streamtool"), "serve", "--port", url.rpartition(":")[2]]
    with (serve.folder / "log").open("w") as log:
        child = subprocess.Popen(command, cwd=serve.folder, env=env_of(serve.folder), stdout=log, stderr=log)
    try:
        wait_for(lambda: answers(f"{url}/readyz") or child.poll() is not None, "it serves", 30)
        yield url
    finally:
        child.terminate()
        assert child.wait(60) == 0


def answers(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def test_the_proxy_of_the_readme(proxy: str) -> None:
    (code,) = (block for block in readme_blocks("python") if "import OpenAI" in block)
    names: dict[str, object] = {"print": (lines := []).append}
    exec(code.replace(SERVED, proxy), names)
    assert any(line.tool_calls for line in lines)


# --- other ways to install -------------------------------------------------------------------------------------------


def test_uvx(wheel: Path, tmp_path: Path) -> None:
    began = perf_counter()
    told = run(
        *UV, "tool", "run", "-q", "--from", f"{wheel}[serve]", "streamtool", "demo", "--delay", "0", cwd=tmp_path
    )
    print(f"\nuvx: {perf_counter() - began:.1f} s")
    assert "18 °C in Paris" in told


def test_uv_tool_install(wheel: Path, tmp_path: Path) -> None:
    places = {"UV_TOOL_DIR": str(tmp_path / "tools"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin")}
    run(*UV, "tool", "install", "-q", "--python", sys.executable, f"{wheel}[serve]", cwd=tmp_path, **places)
    assert "18 °C in Paris" in run(tmp_path / "bin" / "streamtool", "demo", "--delay", "0", cwd=tmp_path)


def test_pipx_install(wheel: Path, tmp_path: Path) -> None:
    places = {"PIPX_HOME": str(tmp_path / "pipx"), "PIPX_BIN_DIR": str(tmp_path / "bin")}
    pipx = (*UV, "tool", "run", "-q", "pipx")
    run(*pipx, "install", "--quiet", "--python", sys.executable, f"{wheel}[serve]", cwd=tmp_path, **places)
    assert "18 °C in Paris" in run(tmp_path / "bin" / "streamtool", "demo", "--delay", "0", cwd=tmp_path)


def test_pip_install(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    began = perf_counter()
    run(tmp_path / "env" / "bin" / "pip", "install", "-q", "--no-compile", f"{wheel}[serve]", cwd=tmp_path)
    print(f"\npip: {perf_counter() - began:.1f} s")
    assert "18 °C in Paris" in run(tmp_path / "env" / "bin" / "streamtool", "demo", "--delay", "0", cwd=tmp_path)
