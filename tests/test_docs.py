"""The docs are true: they mention everything, their code runs, and the generated pages are those of today.

python tests/test_docs.py      writes the generated pages
"""

import doctest
import hashlib
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import httpx
import pytest
import typer
from attrs import fields

from conformance.cases import Case
from statemachine import FORMATS, OPT_IN, states
from streamtool import sample
from streamtool.cli import formats, main
from streamtool.cli.app import app
from streamtool.families import special_tokens
from streamtool.settings import (
    CircuitSettings,
    KeyLimits,
    LimitSettings,
    McpSettings,
    ModelRule,
    ResultSettings,
    Settings,
    StoreSettings,
    TimeoutSettings,
    ToolSettings,
    UpstreamSettings,
    load,
)
from streamtool.settings.readers import key_of
from streamtool.turns import Turn
from tools import (
    failures_page,
    formats_page,
    parsers_page,
    pictures,
    reports_page,
    request_fields_page,
    typed_tools_page,
)

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
FOLDERS = (ROOT / "benchmarks", ROOT / "conformance")
PAGES = sorted(
    [*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md", *(folder / "README.md" for folder in FOLDERS)]
)
FENCE = re.compile(
    r"^(?P<before><!-- not run[^\n]*-->\n)?(?P<ticks>`{3,4})(?P<kind>\w+)\n(?P<code>.*?)^(?P=ticks)$",
    re.MULTILINE | re.DOTALL,
)
SERVED = "http://127.0.0.1:8700"


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(page: Path, kind: str) -> list[str]:
    return [
        m["code"] for m in FENCE.finditer(page.read_text(encoding="utf-8")) if m["kind"] == kind and not m["before"]
    ]


def pages_with(kind: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, kind)]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# --- generated pages -------------------------------------------------------------------------------------------------


def states_page() -> str:
    """`docs/states.md`."""
    inputs = "\n".join(f"| {found.name.lower()} | {found.value} |" for found in states.Input)
    emits = "\n".join(
        f"| {state.value} | {', '.join(sorted(f'`{kind.__name__}`' for kind in kinds)) or 'nothing'} |"
        for state, kinds in states.EMITS.items()
    )
    follows = "\n".join(
        f"| {f'`{before.__name__}`' if before else 'the start'} | {', '.join(sorted(f'`{k.__name__}`' for k in kinds))} |"
        for before, kinds in states.FOLLOWS.items()
    )
    return f"""\
<!-- made from statemachine/states.py by `python tests/test_docs.py`; a test keeps it current -->

# States

The parser is in exactly one state at any moment (`Parser.state`): that of the innermost thing that is open. What is
open lies on a stack. The table in `statemachine/states.py` is the law: it says which input pushes, replaces or pops
what is innermost, and what it does not know cannot happen. `python -m statemachine.states` prints it as this picture,
in which a pop leads to everything that may lie beneath.

![The states of the parser, and what leads from one to another](pictures/states.svg)

```mermaid
{states.diagram()}
```

| input | the parser has found |
|---|---|
{inputs}

| in this state | may be emitted |
|---|---|
{emits}

| after this event | may come |
|---|---|
{follows}
"""


GENERATED = {
    "docs/formats.md": formats_page.page,
    "docs/states.md": states_page,
    "docs/loop.md": failures_page.page,
    "docs/reports.md": reports_page.page,
    "docs/typed-tools.md": typed_tools_page.page,
    "docs/request-fields.md": request_fields_page.page,
    "docs/parsers.md": parsers_page.page,
    **{f"docs/pictures/{name}.svg": make for name, make in pictures.PICTURES.items()},
}


@pytest.mark.parametrize("name", GENERATED)
def test_generated_pages_are_up_to_date(name):
    assert read(name) == GENERATED[name](), f"run: python tests/test_docs.py  (it writes {name})"


def test_the_picture_of_a_call_is_of_the_run_that_was_measured():
    found = pictures.measured()
    assert found["streamtool, pythonic"]["timeline"]["known"] == pictures.known_here()
    assert found["SGLang, pythonic"]["timeline"]["written"][-1] == len(pictures.CALL)


@pytest.mark.parametrize("plot", sorted((DOCS / "plots").glob("*.svg")), ids=lambda plot: plot.stem)
def test_the_plots_are_of_the_figures_that_are_there(plot):
    told = hashlib.sha256((DOCS / "plots" / "figures.json").read_bytes()).hexdigest()
    assert told in plot.read_text(encoding="utf-8"), "run: python benchmarks/plots.py docs/plots"
    assert told.encode() in plot.with_suffix(".png").read_bytes()


def test_the_state_diagram_is_what_the_module_prints():
    done = subprocess.run(
        [sys.executable, "-m", "statemachine.states"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert f"```mermaid\n{done.stdout}```" in read("docs/states.md")


def test_every_report_names_threads_or_a_template():
    for theme in reports_page.themes():
        for report in theme.reports:
            for place in report.seen.split(", "):
                assert reports_page.THREAD.fullmatch(place) or place.startswith("template of "), report.case.id


def test_a_report_that_was_seen_nowhere_is_refused():
    case = Case("reports_text", "A habit", 3, "x", [], note="Not done: nothing.")
    with pytest.raises(ValueError, match=r"^reports_text:3 A habit: where was it seen\?$"):
        reports_page.report(case)


def test_a_report_says_what_a_text_comes_to_in_order():
    events = [
        {"type": "reasoning", "text": "a"},
        {"type": "call", "name": "f", "complete": False, "repairs": ["escape", "comment"]},
        {"type": "discard", "reason": "malformed", "text": "|"},
    ]
    note = "Seen:\no/p#1, template of\ngpt-oss.\n\nA line.\n\nNot done: a |\npipe."
    case = Case("reports_text", "A | habit", 3, "x", events, options={"prefix": "p"}, reason="length", note=note)
    assert reports_page.row(reports_page.report(case)) == (
        "| A \\| habit | [p#1](https://github.com/o/p/issues/1), template of gpt-oss | "
        "reasoning; call `f`, incomplete, mended: `escape`, `comment`; the rest discarded: malformed. "
        "Set: `prefix`, `reason` | a \\| pipe. |\n"
    )


# --- completeness ----------------------------------------------------------------------------------------------------

SECTIONS = {
    "## General": Settings,
    "## `[limits]`": LimitSettings,
    "`[limits.keys.NAME]`": KeyLimits,
    "## `[store]`": StoreSettings,
    "## `[results]`": ResultSettings,
    "## `[upstream.NAME]`": UpstreamSettings,
    "`[upstream.NAME.circuit]`": CircuitSettings,
    "`[upstream.NAME.timeout]`": TimeoutSettings,
    "## `[[model]]`": ModelRule,
    "## `[mcp.NAME]`": McpSettings,
    "## `[tool.NAME]`": ToolSettings,
}
TABLES = {"limits", "mcp", "results", "store", "upstream", "model", "tool"}
"""Settings that have a section of their own."""


def table(heading: str) -> dict[str, str]:
    """Setting -> default, from the first table below a heading."""
    after = read("docs/settings.md").partition(f"\n{heading}")[2]
    rows = re.search(r"\n\n((?:\|.*\n)+)", after)
    assert rows, heading
    found = {}
    for row in rows[1].splitlines()[2:]:
        cells = [cell.strip() for cell in row.strip("|").split(" | ")]
        for name in re.findall(r"`(\w+)`", cells[0]):
            found[name] = cells[1]
    return found


@pytest.mark.parametrize("heading", SECTIONS)
def test_every_setting_is_documented_with_its_default(heading):
    known = {key_of(a): a for a in fields(SECTIONS[heading]) if a.name != "name" or heading == "## `[limits]`"}
    documented = table(heading)
    assert sorted(documented) == sorted(known.keys() - (TABLES if heading == "## General" else set()))
    for name, shown in documented.items():
        default = known[name].default
        match shown:
            case "needed":
                assert repr(default) == "NOTHING"
            case "none":
                assert default is None
            case "see below":
                assert isinstance(default, TimeoutSettings | CircuitSettings) or name in ("paths", "keys")
            case _:
                assert shown == f"`{json.dumps(default)}`", name


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_documented(name):
    section = read("docs/formats.md").partition(f"\n## `{name}`\n")[2].partition("\n## ")[0]
    for label in ("opens with", "counts", "arguments", "held"):
        assert f"\n- {label}: " in section, label
    assert "````text\n" in section
    form = FORMATS[name]
    assert form.about or form.models, "say who writes it, or what else there is to say"
    assert ("special tokens: " in section) == bool(special_tokens(form))
    assert ("loses: " in section) == bool(formats.losses(form))


def test_the_number_of_formats_is_true():
    readme = read("README.md")
    assert f"It listens for {len(FORMATS) - len(OPT_IN)} formats at once" in readme
    assert f"{len(OPT_IN)} more are on when chosen" in readme
    assert f"The {len(FORMATS)} of [docs/formats.md]" in readme


def test_what_a_format_loses_is_derived_from_how_it_is_written():
    assert "one line end on each side" in formats.losses(FORMATS["qwen3_coder"])
    assert "one line end" not in formats.losses(FORMATS["mimo"])
    assert "only the schema tells" in formats.losses(FORMATS["invoke"])
    assert "only the schema tells" not in formats.losses(FORMATS["deepseek_v32"])
    assert formats.losses(FORMATS["functiongemma"]) == "a string cannot hold `<escape>`"
    assert formats.losses(FORMATS["pythonic"]) == formats.losses(FORMATS["tool_call"]) == ""


def commands() -> dict[str, list[str]]:
    found = typer.main.get_command(app)
    return {name: [option for p in command.params for option in p.opts] for name, command in found.commands.items()}


@pytest.mark.parametrize("command", commands())
def test_every_command_and_option_is_documented(command):
    page = read("docs/cli.md")
    assert f"`streamtool {command}" in page
    for option in commands()[command]:
        if option.startswith("--") and option != "--help":
            assert option in page, option


def test_every_page_is_in_the_table_of_contents():
    index = read("docs/index.md")
    for page in DOCS.glob("*.md"):
        assert page.name == "index.md" or f"({page.name})" in index


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]*)(?:#[\w-]*)?\)", page.read_text(encoding="utf-8")):
            assert target.startswith("https://") or not target or (page.parent / target).exists(), (page.name, target)


def anchors(page: Path) -> set[str]:
    """What a link can lead to on a page: its headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_to_headings_lead_to_one():
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([\w-]+)\)", page.read_text(encoding="utf-8")):
            assert anchor in anchors(page.parent / target if target else page), (page.name, target, anchor)


def test_paths_that_the_docs_name_exist():
    for page in PAGES:
        for path in re.findall(
            r"`((?:statemachine|streamtool|tests|docs|benchmarks|conformance)/[\w./]*)`",
            page.read_text(encoding="utf-8"),
        ):
            assert (ROOT / path).exists(), (page.name, path)


def test_tests_that_the_docs_name_exist():
    for page in PAGES:
        for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8")):
            assert re.search(rf"^(async )?def {name}\(", read(file), re.MULTILINE), (page.name, file, name)


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    table = re.search(r"\n\n((?:\|.*\n)+)", read(page).partition(f"\n{heading}")[2])
    assert table, heading
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table[1].splitlines()[2:]]


def test_each_surface_of_the_checklist_has_its_tests():
    found = rows("docs/checklist.md", "Giving tools")
    assert [int(row[0].partition(".")[0]) for row in found] == list(range(1, 13))
    assert all(len(row) == 4 and all(row) and "::test_" in row[3] for row in found)
    matrix = {
        name for row in rows("docs/checklist.md", "## The test matrix") for name in re.findall(r"`(\w+)`", row[1])
    }
    written = re.findall(r"^def (test_\w+)\(", read("tests/test_checklist.py"), re.MULTILINE)
    assert matrix | {"test_a_result_makes_no_further_call_mandatory"} == set(written)


def test_each_turn_stands_on_the_page_of_the_loop():
    turns = [row[0] for row in rows("docs/loop.md", "## Where a conversation stands")]
    assert turns == [turn.value for turn in Turn]


# --- code ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def proxy():
    """The proxy with the sample model, as the docs assume it."""
    from servers import uvicorn_server

    from streamtool import Proxy

    with uvicorn_server(Proxy()) as served:
        yield served.url


@pytest.mark.parametrize("page", pages_with("python"), ids=name_of)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_python_blocks_run(page, proxy, capsys):
    names: dict[str, object] = {"__name__": "docs"}
    for code in blocks(page, "python"):
        exec(compile(code.replace(SERVED, proxy), page.name, "exec"), names)
    capsys.readouterr()


def test_the_app_of_the_readme_gets_tools():
    code = next(code for code in blocks(ROOT / "README.md", "python") if "FastAPI" in code)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15

    async def my_model(messages):
        text = sample.reply(messages)
        for at in range(0, len(text), 3):
            yield text[at : at + 3]

    names: dict[str, object] = {"my_model": my_model}
    exec(code, names)
    tool = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
    body = {"model": "m", "messages": [{"role": "user", "content": "Weather in Paris?"}], "tools": [tool]}

    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(names["app"]), base_url="http://app.test") as client:
            return (await client.post("/v1/chat/completions", json=body)).json()

    import anyio

    message = anyio.run(ask)["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"] == "get_weather"
    assert message["content"] == "Let me look that up."


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """An environment in which `streamtool` is this one."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "streamtool"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m streamtool "$@"\n')
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("page", pages_with("console"), ids=name_of)
def test_console_blocks_show_what_happens(page, shell, tmp_path):
    check = doctest.OutputChecker().check_output
    for code in blocks(page, "console"):
        for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", code, re.MULTILINE):
            done = subprocess.run(
                ["bash", "-c", command], env=shell, cwd=tmp_path, capture_output=True, text=True, check=True
            )
            assert check(expected, done.stdout, doctest.ELLIPSIS), f"{command}\n{done.stdout}"


@pytest.mark.parametrize("page", pages_with("toml"), ids=name_of)
def test_settings_in_the_docs_are_valid(page):
    for code in blocks(page, "toml"):
        variables = {name: f"secret {name}" for name in re.findall(r"env:(\w+)", code)}
        assert load(code, variables)


def test_demo_lines_of_the_readme_are_what_the_demo_prints(capsys):
    shown = next(code for code in blocks(ROOT / "README.md", "text") if "the model writes" in code)
    assert main(["demo", "--delay", "0.1"]) == 0
    out = capsys.readouterr().out
    printed = {re.sub(r"^\s*[\d.]+ |\d+ bytes|,", "", line).strip() for line in out.splitlines()}
    for line in shown.splitlines():
        assert re.sub(r"^\s*[\d.]+ |\d+ bytes|,", "", line).strip() in printed, line


def test_nothing_is_promised_outside_of_its_one_place():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"\b(coming soon|not yet implemented|planned|roadmap|TODO|TBD)\b", text, re.IGNORECASE), (
            page.name
        )


def test_pages_keep_to_the_width():
    for page in PAGES:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        for line in text.splitlines():
            assert len(line) <= 120 or line.startswith(("|", "<!--")), textwrap.shorten(f"{page.name}: {line}", 200)


if __name__ == "__main__":
    for name, make in GENERATED.items():
        (ROOT / name).write_text(make(), encoding="utf-8")
        print(name)
