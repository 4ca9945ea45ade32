"""The docs are correct: they mention everything, their code runs, and the generated pages are up to date.

python tests/test_docs.py       writes the generated pages
"""

import doctest
import hashlib
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from pathlib import Path

import httpx
import pytest
import typer
from attrs import fields
from support.sweeps import each

from conformance.cases import Case
from statemachine import FORMATS, OPT_IN, parse
from statemachine.machine import states
from streamtool import sample
from streamtool.cli import formats, main
from streamtool.cli.app import app
from streamtool.core.turns import Turn
from streamtool.models.families import special_tokens
from streamtool.observe import verdict_facts, verdicts
from streamtool.protocols.completions.templates import TEMPLATES
from streamtool.protocols.options import CONTAINERS, OPTIONS
from streamtool.protocols.registry import CLIENTS, UPSTREAMS
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
from tools import (
    engines_page,
    failures_page,
    formats_page,
    pages,
    parsers_page,
    pictures,
    promises_page,
    protocols_page,
    recipes_page,
    reports_page,
    results,
)

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
FOLDERS = (ROOT / "benchmarks", ROOT / "conformance")
PAGES = sorted(
    [
        *DOCS.rglob("*.md"),
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "AGENTS.md", "llms.txt")),
        *(folder / "README.md" for folder in FOLDERS),
    ]
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
    """Return `docs/reference/states.md`."""
    inputs = "\n".join(f"- {found.name.lower()}: {found.value}" for found in states.Input)
    emits = grouped((state.value, kinds) for state, kinds in states.EMITS.items())
    follows = grouped((f"`{kind.__name__}`" if kind else "the start", kinds) for kind, kinds in states.FOLLOWS.items())
    return f"""\
<!-- made from statemachine/machine/states.py by `python tests/test_docs.py`; a test keeps it current -->

# States

Everything that is open in a reply has a frame on a stack, and `Parser.state` is the state of the innermost frame. The
table in `statemachine/machine/states.py` defines which inputs push, replace or pop a frame; nothing else changes the
state. In this diagram, which `python -m statemachine.machine.states` prints as text, a pop leads to every state that
may be next on the stack:

![The states of the parser and the transitions between them](../pictures/states.svg)

The inputs:

{inputs}

Events that each state may emit:

{emits}

Which events may follow which:

{follows}
"""


def grouped(rows: Iterable[tuple[str, frozenset[type]]]) -> str:
    """Return the items of a list, one for all names with the same event types."""
    names: dict[str, list[str]] = {}
    for name, kinds in rows:
        names.setdefault(", ".join(sorted(f"`{kind.__name__}`" for kind in kinds)) or "nothing", []).append(name)
    return "\n".join(formats_page.item(f"{', '.join(listed)}: {kinds}") for kinds, listed in names.items())


def counted(page):
    """Return the page with the current numbers of formats."""
    text = read(page)
    for pattern, number in (
        (r"(?<=recognizes )\d+(?= formats at once)", len(FORMATS) - len(OPT_IN)),
        (r"\d+(?= more are opt-in)", len(OPT_IN)),
        (r"(?<=The )\d+(?= formats in \[formats\.md\])", len(FORMATS)),
        (r"(?<=finds calls in )\d+(?= formats)", len(FORMATS)),
    ):
        text = re.sub(pattern, str(number), text)
    return text


GENERATED = {
    **{page: partial(counted, page) for page in ("README.md", "CHANGELOG.md")},
    "docs/reference/formats.md": formats_page.page,
    "docs/reference/states.md": states_page,
    "docs/when-the-model-does-not-call.md": failures_page.page,
    "docs/proxy.md": engines_page.page,
    "docs/reference/reports.md": reports_page.page,
    "docs/reference/parsers.md": parsers_page.page,
    "docs/reference/promises.md": promises_page.page,
    "docs/recipes.md": recipes_page.page,
    "docs/results.md": results.page,
    "llms.txt": pages.llms_text,
    "AGENTS.md": pages.agents_page,
    **protocols_page.PAGES,
    **{f"docs/pictures/{name}.svg": make for name, make in pictures.PICTURES.items()},
}


@pytest.mark.parametrize("name", GENERATED)
def test_generated_pages_are_up_to_date(name):
    assert read(name) == GENERATED[name](), f"run: python tests/test_docs.py  (it writes {name})"


def test_the_picture_of_a_call_shows_the_measured_run():
    found = pictures.measured()
    assert found["streamtool, pythonic"]["timeline"]["known"] == pictures.known_here()
    assert found["SGLang, pythonic"]["timeline"]["written"][-1] == len(pictures.CALL)


def test_the_picture_of_a_continued_call_shows_the_whole_call():
    found = pictures.resumed_here()
    assert found.prompt + found.rest == pictures.BROKEN
    assert len(found.prompt) < pictures.DEATH
    assert json.loads(found.before + found.after) == {"path": "/src/main.py"}


@pytest.mark.parametrize("plot", sorted((DOCS / "plots").glob("*.svg")), ids=lambda plot: plot.stem)
def test_the_plots_match_the_current_figures(plot):
    told = hashlib.sha256((DOCS / "plots" / "figures.json").read_bytes()).hexdigest()
    assert told in plot.read_text(encoding="utf-8"), "run: python benchmarks/plots.py docs/plots"
    assert told.encode() in plot.with_suffix(".png").read_bytes()


def test_the_state_diagram_can_be_printed():
    done = subprocess.run(
        [sys.executable, "-m", "statemachine.machine.states"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{states.diagram()}\n"


OTHER_SOURCES = ("template of ", "files written by ", "a report without a link")


def test_every_report_names_threads_or_another_source():
    reports = {report.case.id: report.seen for theme in reports_page.themes() for report in theme.reports}
    for habit, seen in {**reports, **{habit.habit: habit.seen for habit in reports_page.habits()}}.items():
        for place in seen.split(", "):
            assert reports_page.THREAD.fullmatch(place) or place.startswith(OTHER_SOURCES), habit


def test_each_habit_of_servers_has_tests_that_exist():
    for habit in reports_page.habits():
        assert habit.tests, habit.habit
        for test in habit.tests:
            assert test in promises_page.tests_of(ROOT / test.partition("::")[0]), habit.habit


def test_a_report_without_a_source_is_rejected():
    case = Case("reports_text", "A habit", 3, "x", [], note="Not done: nothing.")
    with pytest.raises(ValueError, match=r'^reports_text:3 A habit: the paragraph "Seen:" is missing$'):
        reports_page.report(case)


def test_a_report_lists_the_outcome_in_order():
    events = [
        {"type": "reasoning", "text": "a"},
        {"type": "call", "name": "f", "complete": False, "repairs": ["escape", "comment"]},
        {"type": "discard", "reason": "malformed", "text": "|"},
    ]
    note = "Seen:\no/p#1, template of\ngpt-oss.\n\nA line.\n\nNot done: a |\npipe."
    case = Case("reports_text", "A | habit", 3, "x", events, options={"prefix": "p"}, reason="length", note=note)
    assert reports_page.row(reports_page.report(case)) == (
        "| A \\| habit | [p#1](https://github.com/o/p/issues/1), template of gpt-oss | "
        "reasoning; incomplete `f`, repaired: `escape`, `comment`; rest discarded: malformed "
        "(`prefix`, `reason`)<br>A \\| pipe. |\n"
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
TABLES = {"calibrations", "limits", "mcp", "results", "store", "upstream", "model", "tool"}
"""Settings with their own section."""


def table(heading: str) -> dict[str, str]:
    """Return the setting → default mapping of the first table below a heading."""
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
            case "required":
                assert repr(default) == "NOTHING"
            case "none":
                assert default is None
            case "see below":
                assert isinstance(default, TimeoutSettings | CircuitSettings) or name in ("paths", "keys")
            case _:
                assert shown == f"`{json.dumps(default)}`", name


@each("name", FORMATS)
def test_every_format_is_documented(name):
    page = read("docs/reference/formats.md")
    assert re.search(rf"\n\| \[`{name}`\]\(#{name}\) \| \S", page), "its opener"
    section = page.partition(f"\n## `{name}`\n")[2].partition("\n## ")[0]
    for label in ("arguments", "buffered"):
        assert f"\n- {label}: " in section, label
    assert "````text\n" in section
    form = FORMATS[name]
    assert form.about or form.models, "name the models that write it, or describe it otherwise"
    assert ("special tokens: " in section) == bool(special_tokens(form))
    assert ("limits: " in section) == bool(formats.losses(form))


@pytest.mark.parametrize("protocol", CLIENTS)
def test_every_request_field_and_typed_tool_is_documented(protocol):
    page = read(f"docs/reference/protocols/{protocol}.md")
    known = import_module(f"streamtool.protocols.{protocol}.request_fields")
    names = [name.removeprefix(f"{CONTAINERS.get(protocol)}.") for name in known.REQUEST_FIELDS.rows]
    for name in (*names, *known.TOOL_FIELDS):
        assert re.search(rf"`{name}[`.]", page), name
    for tool in protocols_page.TYPED.get(protocol, ((),))[0]:
        assert f"`{tool.type}`" in page.partition("\n## Types of tools\n")[2], tool.type


@pytest.mark.parametrize("protocol", UPSTREAMS)
def test_every_option_is_documented(protocol):
    section = read(f"docs/reference/protocols/{protocol}.md").partition("\n## Options\n")[2].partition("\n## ")[0]
    for option in OPTIONS:
        assert f"`{option.name}`" in section, option.name


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_chat_template_is_documented(template):
    assert f"`{template}`" in read("docs/reference/protocols/completions.md").partition("\n## Templates\n")[2]


def test_the_number_of_formats_is_stated():
    readme = read("README.md")
    assert f"streamtool recognizes {len(FORMATS) - len(OPT_IN)} formats at once; {len(OPT_IN)} more" in readme
    assert f"The {len(FORMATS)} formats in" in readme
    assert f"finds calls in {len(FORMATS)} formats" in read("CHANGELOG.md")


def test_the_losses_of_a_format_are_derived_from_its_declaration():
    assert "one newline on each side" in formats.losses(FORMATS["qwen3_coder"])
    assert "one newline" not in formats.losses(FORMATS["mimo"])
    assert formats.arguments(FORMATS["invoke"]) == "marked parameters"
    assert formats.arguments(FORMATS["deepseek_v32"]) == "marked parameters with types"
    assert formats.losses(FORMATS["functiongemma"]) == "a string cannot contain `<escape>`"
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


def test_every_page_is_in_the_list_of_pages_once():
    found = sorted(page.source for section in pages.listed().values() for page in section)
    outside = {"README.md", "CHANGELOG.md", "conformance/README.md"}
    assert found == sorted(
        outside | {page.relative_to(ROOT).as_posix() for page in DOCS.rglob("*.md")} - {"docs/index.md"}
    )


def test_links_resolve():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]*)(?:#[\w-]*)?\)", page.read_text(encoding="utf-8")):
            assert target.startswith("https://") or not target or (page.parent / target).exists(), (page.name, target)


def anchors(page: Path) -> set[str]:
    """Return the link targets on a page: its headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_to_headings_resolve():
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#:]*)#([\w-]+)\)", page.read_text(encoding="utf-8")):
            assert anchor in anchors(page.parent / target if target else page), (page.name, target, anchor)


def test_paths_in_the_docs_exist():
    for page in PAGES:
        for path in re.findall(
            r"`((?:statemachine|streamtool|tests|docs|benchmarks|conformance)/[\w./]*)`",
            page.read_text(encoding="utf-8"),
        ):
            assert (ROOT / path).exists(), (page.name, path)


def test_tests_that_the_docs_mention_exist():
    for page in PAGES:
        for file, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8")):
            assert re.search(rf"^(async )?def {name}\(", read(file), re.MULTILINE), (page.name, file, name)


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading."""
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
    assert matrix | {"test_a_result_does_not_make_a_further_call_mandatory"} == set(written)


def test_each_turn_is_on_the_page():
    section = (
        read("docs/when-the-model-does-not-call.md").partition("## State of a conversation")[2].partition("\n## ")[0]
    )
    assert re.findall(r"^- \*\*([^*]+)\*\*:", section, re.MULTILINE) == [turn.value for turn in Turn]


def test_the_page_about_missing_calls_quotes_verdicts():
    words = {
        "attempts": r"Even in attempt \d, the model",
        "unmet": "|".join(cause.phrase for cause in verdict_facts.CAUSES.values()),
    }
    patterns = [
        re.sub(r"\\{(\w+)\\}", lambda part: f"(?:{words.get(part[1], '.*')})", re.escape(row.text))
        for row in verdicts.ROWS
    ]
    sentences = [row[0] for row in rows("docs/no-call.md", "Each exchange")]
    assert len(sentences) > 10
    for sentence in sentences:
        assert any(re.fullmatch(pattern, sentence) for pattern in patterns), sentence


def test_the_format_in_settings_reads_the_reply_on_its_page():
    page = DOCS / "no-call.md"
    (settings,), (reply,) = blocks(page, "toml"), blocks(page, "text")
    described = load(settings).response_template
    assert parse(reply, ["get_weather"], formats=[described.format])[1] == []
    text, (call,) = parse(reply, ["get_weather"], formats=[described.format], names="edit")
    assert (text, call.name, call.arguments) == (
        "Sure! I will use the weather tool now.",
        "get_weather",
        '{"city": "Paris"}',
    )


# --- code ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def proxy():
    """Run the proxy with the sample model, as the docs assume."""
    from support.servers import uvicorn_server

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


def test_the_app_in_the_readme_gets_tools():
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
    """Return an environment in which `streamtool` is this working copy."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "streamtool"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m streamtool "$@"\n')
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("page", pages_with("console"), ids=name_of)
def test_console_blocks_show_the_real_output(page, shell, tmp_path):
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


def test_demo_lines_in_the_readme_match_the_demo(capsys):
    shown = next(code for code in blocks(ROOT / "README.md", "text") if "the model writes" in code)
    assert main(["demo", "--delay", "0.1"]) == 0
    out = capsys.readouterr().out
    printed = {re.sub(r"^\s*[\d.]+ |\d+ bytes|,", "", line).strip() for line in out.splitlines()}
    for line in shown.splitlines():
        assert re.sub(r"^\s*[\d.]+ |\d+ bytes|,", "", line).strip() in printed, line


def test_no_page_promises_future_work():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"\b(coming soon|not yet implemented|planned|roadmap|TODO|TBD)\b", text, re.IGNORECASE), (
            page.name
        )


def test_pages_keep_to_the_width():
    for page in (page for page in PAGES if page.suffix == ".md"):
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        for line in text.splitlines():
            assert len(line) <= 120 or line.startswith(("|", "<!--")), textwrap.shorten(f"{page.name}: {line}", 200)


if __name__ == "__main__":
    for name, make in GENERATED.items():
        (ROOT / name).write_text(make(), encoding="utf-8")
        print(name)
