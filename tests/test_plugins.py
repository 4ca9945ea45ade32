"""Distributions add formats and families by entry point, and check them with the laws that our own formats obey."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.servers import ROOT
from support.sweeps import each

from statemachine import FORMATS, Format, write
from streamtool.testing import check_format, formats

PAGE = (ROOT / "docs" / "add-a-format.md").read_text("utf-8")
ROW = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]  # type: ignore[index]
FAMILY = """
from streamtool.models.families import Family
FAMILIES = [Family("angle-?lm", "angles")]
"""
POINTS = """\
[streamtool.formats]
angles = angles_plugin:FORMAT

[streamtool.families]
angles = angles_plugin:FAMILIES
"""


@pytest.fixture
def form() -> Format:
    names: dict[str, Format] = {}
    exec(ROW, names)
    return names["FORMAT"]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder with an installed distribution that adds the format of the page."""
    (tmp_path / "angles_plugin.py").write_text(ROW + FAMILY, "utf-8")
    told = tmp_path / "angles_plugin-1.0.dist-info"
    told.mkdir()
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: angles-plugin\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text(POINTS)
    return tmp_path


def run(site: Path, code: str) -> subprocess.CompletedProcess[str]:
    env = {"PYTHONPATH": f"{ROOT}:{site}", "PYTHONUTF8": "1"}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)


def test_a_format_of_another_distribution_has_a_name(site):
    code = """
from statemachine import Call, parse, write
from streamtool.settings import load
text = "Yes. " + write([Call("f", '{"a": 1}')], "angles")
print(parse(text, ["f"], formats=["tool_call", "angles"]))
model = load("").for_model("org/Angle-LM-7B")
print(model.format, "angles" in model.listened_formats, "invoke" in model.listened_formats)
print(load('format = "angles"').for_model("other").format, load("").for_model("qwen3-8b").format)
"""
    done = run(site, code)
    assert done.stderr == ""
    call = "Call(name='f', arguments='{\"a\": 1}', id=None, complete=True, repairs=())"
    family = run(
        site.parent, "from streamtool.settings import load; print(load('').for_model('qwen3-8b').format)"
    ).stdout
    assert done.stdout.splitlines() == [f"('Yes. ', [{call}])", "angles True True", f"angles {family.strip()}"]


def test_the_command_line_shows_it(site):
    code = "import sys; from streamtool.cli import main; sys.exit(main({}))"
    assert re.search(r"^angles +<<call", run(site, code.format(["formats"])).stdout, re.MULTILINE)
    shown = run(site, code.format(["formats", "angles"]))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "<<call get_weather" in shown.stdout
    taught = run(site, code.format(["formats", "angle-lm-7b"]))
    assert "angles" in taught.stdout


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("raise RuntimeError('broken')", "cannot be loaded: RuntimeError('broken')"),
        ("FORMAT = 1\nFAMILIES = ()", "is not a Format: 1"),
    ],
)
def test_an_unusable_entry_point_is_named(site, module, says):
    (site / "angles_plugin.py").write_text(module)
    done = run(site, "from statemachine import Parser; Parser(formats=['angles'])")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "FormatError: the entry point angles of angles-plugin (streamtool.formats) " in last
    assert says in last
    done = run(site, "import sys; from streamtool.cli import main; sys.exit(main(['formats', 'angles']))")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert says in done.stderr


def test_a_family_with_an_unknown_format_is_named(site):
    (site / "angles_plugin.py").write_text(ROW + FAMILY.replace('"angles")', '"angels")'))
    done = run(site, "from streamtool.settings import load; load('').for_model('m')")
    assert "names an unknown format: 'angels'" in done.stderr.splitlines()[-1]


def test_the_format_of_the_page_obeys_the_laws(form):
    check_format(form)


@each("name", ["tool_call", "invoke"])
def test_our_formats_obey_them(name):
    check_format(FORMATS[name], known=("fenced", "pythonic"))


@pytest.mark.long
@each("name", FORMATS)
def test_all_our_formats_obey_them(name):
    check_format(FORMATS[name])


def test_a_format_that_cannot_be_read_back_is_found(form, monkeypatch):
    monkeypatch.setattr(formats, "write", lambda calls, form: write(calls, form).replace("<<call", "<<cal"))
    with pytest.raises(AssertionError, match=r"^one call: expected"):
        check_format(form, known=())
