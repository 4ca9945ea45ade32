"""`docs/add-a-format.md` is short and correct: the format on the page, its row and its cases, works everywhere."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from support.common_cases import COMMON
from support.format_cases import Case, case_of
from support.statemachine_fold import cuts, outcome, pieces

from conformance.cases import read_cases
from statemachine import FORMATS, Call, Format, Parser, parse, write

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "add-a-format.md").read_text("utf-8")
ROW = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]  # type: ignore[index]
CASES = re.search(r"````markdown\n(.*?)````", PAGE, re.DOTALL)[1]  # type: ignore[index]
CALL = Call("get_weather", '{"city": "Paris", "days": 3}')


@pytest.fixture(scope="module")
def row() -> Format:
    """Return the format, created as on the page."""
    names: dict[str, Format] = {}
    exec(ROW, names)
    return names["FORMAT"]


@pytest.fixture(scope="module")
def case() -> Case:
    (found,) = read_cases("angles", CASES)
    return case_of(found)


def test_the_page_is_shorter_than_a_screen() -> None:
    assert len(PAGE.splitlines()) <= 50


def test_the_row_is_under_ten_lines(row: Format) -> None:
    table = ROW.partition("FORMAT = ")[2].strip().splitlines()
    assert len(table) < 10
    assert row.name not in FORMATS
    assert f"`{row.name}.md` in `tests/formats/`" in PAGE
    assert CASES.startswith(f"# {row.name}\n")


def test_the_commands_on_the_page_work(row: Format, tmp_path: Path) -> None:
    """In a scratch copy: the row in the table, a case for each title that the page names, and the page's own
    command.
    """
    root = Path(__file__).resolve().parent.parent
    for name in ("statemachine", "streamtool", "tests", "pyproject.toml"):
        copy, what = (shutil.copytree if (root / name).is_dir() else shutil.copy), root / name
        copy(what, tmp_path / name)
    table = tmp_path / "statemachine" / "formats" / "table.py"
    written = ROW.partition("FORMAT = ")[2].strip()
    table.write_text(table.read_text("utf-8").replace("\nTABLE = (\n", f"\nTABLE = (\n{written},\n"), "utf-8")
    titles = re.findall(
        r'"([^"]+)"', " ".join(PAGE.partition("The first command")[2].partition("The second")[0].split())
    )
    assert set(titles) == COMMON
    one = CASES.partition("## One call\n")[2]
    cases = "".join(f"\n## {title}\n{one}" for title in titles)
    (tmp_path / "tests" / "formats" / "angles.md").write_text(f"# angles\n{cases}", "utf-8")
    command = re.search(r"```sh\n(pytest .*)\n", PAGE)
    assert command is not None
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command[1]), "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert row.name in written


def test_its_cases_pass_whole_in_pieces_and_at_every_split(row: Format, case: Case) -> None:
    for formats in ([row], [*FORMATS, row]):
        for size in range(len(case.text)):
            assert outcome(pieces(case.text, size), case.tools, formats=formats) == case.expected, size
        for place in range(1, len(case.text)):
            assert outcome(cuts(case.text, [place]), case.tools, formats=formats) == case.expected, place


def test_a_wrong_case_fails(row: Format, case: Case) -> None:
    changed = case.text.replace("<<call", "<<cal")
    assert outcome([changed], case.tools, formats=[row]) != case.expected


def test_the_format_is_read_together_with_others(row: Format) -> None:
    text = f"{write([CALL], 'tool_call')}\n<<call get_weather {CALL.arguments}<<end>>"
    visible, calls = parse(text, ["get_weather"], formats=["tool_call", row])
    assert (visible, calls) == ("", [CALL, CALL])
    starts = Parser(["get_weather"], formats=["tool_call", row]).feed(text)
    assert [event.format for event in starts if hasattr(event, "format")] == ["tool_call", "angles"]


@pytest.mark.skipif(write.__annotations__["format"] is str, reason="`write` accepts only names")
def test_the_format_is_written_and_read_back(row: Format) -> None:
    text = write([CALL, Call("get_weather", "{}")], row)
    visible, calls = parse(text, ["get_weather"], formats=[row])
    assert (visible, calls) == ("", [CALL, Call("get_weather", "{}")])


def test_an_invalid_row_is_rejected(row: Format) -> None:
    rival = attrs.evolve(row, name="rival")
    with pytest.raises(ValueError, match="<<call"):
        Parser(["get_weather"], formats=[row, rival])
