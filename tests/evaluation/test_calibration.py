"""`streamtool eval` finds the format that a model follows, and `streamtool serve` then teaches it."""

import json
import os
import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from attrs import evolve
from support.forked import Forked
from support.made_up_model import MadeUpModel, best_of, taught_format
from support.servers import uvicorn_server, wait_for
from trio.testing import MockClock

from streamtool.cli import main
from streamtool.cli.eval import EvalFlags, ProgressBar, show
from streamtool.evaluation.journal import Journal, Subject, read_journal
from streamtool.evaluation.report import COLUMNS, calibration_of, report_of
from streamtool.evaluation.run import Budget, evaluate, schedule_of
from streamtool.evaluation.scenario import suite
from streamtool.evaluation.schedule import ENOUGH, Schedule, order_of
from streamtool.evaluation.variants import FORMATS, variants_of
from streamtool.proxy import Proxy
from streamtool.settings import Calibration, Settings, UpstreamSettings

SCENARIOS = {scenario.name: scenario for scenario in suite()}
GROUPS = {scenario.name: scenario.group for scenario in suite()}
VARIANTS = tuple(variants_of(FORMATS, ("emulate", "native"), ("compact",)))
SETTINGS = Settings(app_protocol="chat", formats=("tool_call",), refusals="pass")  # few formats are fast to compile
TOOL = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}
ASKS = {"model": "any", "messages": [{"role": "user", "content": "Ping it."}], "tools": [TOOL]}


def journal_for(seed: int, path: Path | None = None) -> Journal:
    order = order_of(tuple(SCENARIOS), GROUPS, seed)
    journal = Journal(
        Subject("made-up", "vLLM 1.0", "http://h", "chat", "2026-12-01", "1.0", seed, "streamtool 2", VARIANTS, order),
        path,
    )
    if path is not None:
        journal.create()
    return journal


def evaluated(journal: Journal, *, seed: int, stop: int | None = None) -> Schedule:
    """Return the schedule of an evaluation of a made-up model in at most 200 requests. It is interrupted once `stop`
    scenarios are answered. Time does not pass.
    """

    def watch(*_: object) -> None:
        if stop is not None and sum(map(len, journal.outcomes.values())) == stop:
            raise KeyboardInterrupt

    evaluation = partial(
        evaluate, MadeUpModel(seed), SETTINGS, journal, SCENARIOS, Budget(200), seconds=60.0, watch=watch
    )
    return trio.run(evaluation, clock=MockClock())


@pytest.mark.parametrize("seeds", [1, pytest.param(100, marks=pytest.mark.long)])
def test_the_format_that_a_model_follows_is_found_in_200_requests(seeds):
    found = 0
    for seed in range(seeds):
        journal = journal_for(seed)
        report = report_of(journal, evaluated(journal, seed=seed))
        assert report.requests <= 200
        found += report.best.format == best_of(MadeUpModel(seed).shares) and report.figures[0].cases >= ENOUGH
    assert found >= 0.95 * seeds


def test_an_interrupted_evaluation_ends_like_an_uninterrupted_one(tmp_path):
    whole = journal_for(3)
    schedule = evaluated(whole, seed=3)
    with pytest.raises(KeyboardInterrupt):
        evaluated(journal_for(3, tmp_path / "j"), seed=3, stop=40)
    with (tmp_path / "j").open("a") as file:
        file.write('{"variant": "inv')  # the line that was being written
    resumed = read_journal(tmp_path / "j")
    assert sum(map(len, resumed.outcomes.values())) == 40
    assert evaluated(resumed, seed=3) == schedule
    assert resumed.outcomes == whole.outcomes == read_journal(tmp_path / "j").outcomes
    assert report_of(resumed, schedule) == report_of(whole, schedule)


def test_a_calibration_contains_the_best_variant_and_the_next_one():
    journal = journal_for(3)
    report = report_of(journal, evaluated(journal, seed=3))
    found = calibration_of(report, only=False)
    best, following, *_ = report.figures
    assert (found.format, found.right, found.cases) == (best.variant, best.right, best.cases)
    assert (found.next, found.next_right, found.next_cases) == (following.variant, following.right, following.cases)
    assert (found.match, found.server) == ("made-up", "vLLM 1.0")
    assert calibration_of(report, only=True).match == "*"
    unknown = evolve(report, subject=evolve(report.subject, server=report.subject.url))
    assert calibration_of(unknown, only=True).server is None


def test_serve_teaches_the_format_that_eval_has_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("STREAMTOOL_CALIBRATIONS", raising=False)
    model = MadeUpModel(seed=3)
    best = best_of(model.shares)
    with uvicorn_server(model) as upstream:
        assert main(["eval", upstream.url, "--requests", "200", "--print-settings"]) == 0
        out, err = capsys.readouterr()
        file = tmp_path / "streamtool" / "calibrations.json"
        assert out == f'[[model]]\nmatch = "made-up"\nmode = "emulate"\nformat = "{best}"\nschema = "compact"\n'
        assert f"the result is saved in {file}; streamtool serve applies it" in err
        (entry,) = json.loads(file.read_text())
        assert (entry["match"], entry["url"], entry["server"], entry["format"]) == ("*", upstream.url, "vLLM 1.0", best)
        reason = Calibration(**entry).reason

        (tmp_path / "request.json").write_text(json.dumps(ASKS))
        monkeypatch.setenv("STREAMTOOL_UPSTREAM__LOCAL__URL", upstream.url)
        assert main(["prompt", str(tmp_path / "request.json")]) == 0
        assert f"format {best}: {reason}" in capsys.readouterr().err
        monkeypatch.delenv("STREAMTOOL_UPSTREAM__LOCAL__URL")

        child = Forked(["serve", "--upstream", upstream.url, "--port", "0"], {**os.environ})
        lines = []
        for line in child.stdout:
            lines.append(line)
            if line.startswith("curl "):
                break
        assert f"  measured  made-up: format {best}, {reason.removeprefix('measured ')}\n" in lines
        proxy = lines[0].split()[-1]
        httpx.post(f"{proxy}/chat/completions", json=ASKS, trust_env=False, timeout=60)
        assert taught_format(model.prompts[-1][0]["content"]) == best
        (listed,) = httpx.get(f"{proxy}/models", trust_env=False, timeout=60).json()["data"]
        assert (listed["streamtool"]["format"], listed["streamtool"]["reason"]) == (best, reason)
        child.send_signal(signal.SIGTERM)
        child.communicate()


def measured_at(url: str, **fields: Any) -> Settings:
    known = Calibration(
        **{"model": "made-up", "match": "*", "url": url, "protocol": "chat", "date": "2026-12-01", "mode": "emulate",
           "cases": 40, "right": 30, "version": "1.0", "server": "vLLM 1.0", "format": "tool_call", "schema": "compact"}
        | fields
    )  # fmt: skip
    return Settings(
        upstreams={"local": UpstreamSettings(name="local", url=url)}, calibrations=(known,), formats=("tool_call",)
    )


@pytest.mark.parametrize(("version", "models", "reason"), [
    ("2.0", ["made-up"], "{url} is vLLM 2.0, and vLLM 1.0 was measured"),
    ("1.0", ["large"], "{url} lists large"),
    ("", ["large", "made-up"], "{url} lists large, made-up"),
])  # fmt: skip
def test_a_calibration_of_another_version_or_model_is_not_applied(version, models, reason, caplog):
    model = MadeUpModel(version=version)
    model.models = models
    with uvicorn_server(model) as upstream, uvicorn_server(Proxy(measured_at(upstream.url))) as proxy:
        wait_for(lambda: caplog.messages, "the server has reported its version")
        sentence = f"the calibration of made-up is not used: {reason.format(url=upstream.url)}"
        assert caplog.messages == [f"{sentence}; measure it again with `streamtool eval {upstream.url}`"]
        httpx.post(f"{proxy.url}/v1/chat/completions", json=ASKS, trust_env=False, timeout=60)
        assert taught_format(model.prompts[-1][0]["content"]) == "invoke"


@pytest.mark.parametrize(("version", "fields"), [
    ("1.0", {}),
    ("", {}),
    ("2.0", {"server": None}),
    (None, {}),
])  # fmt: skip
def test_a_calibration_is_kept_if_the_server_reports_nothing_else(version, fields, caplog):
    model = MadeUpModel(version=version)
    with uvicorn_server(model) as upstream, uvicorn_server(Proxy(measured_at(upstream.url, **fields))) as proxy:
        last = "/version" if version is None else "/v1/models"
        wait_for(lambda: last in model.paths, "the server is asked")
        httpx.post(f"{proxy.url}/v1/chat/completions", json=ASKS, trust_env=False, timeout=60)
        assert taught_format(model.prompts[-1][0]["content"]) == "tool_call"
    assert not any("calibration" in message for message in caplog.messages)


def test_a_server_without_calibrations_is_not_asked():
    model = MadeUpModel()
    settings = evolve(measured_at("http://127.0.0.1:1"), upstreams={})
    with uvicorn_server(model) as upstream:
        local = UpstreamSettings(name="local", url=upstream.url)
        with uvicorn_server(Proxy(evolve(settings, upstreams={"local": local}))) as proxy:
            httpx.post(f"{proxy.url}/v1/chat/completions", json=ASKS, trust_env=False, timeout=60)
    assert set(model.paths) == {"/v1/chat/completions"}


@pytest.mark.parametrize(("flags", "sentence"), [
    ((), f"the result is not saved for streamtool serve: it has 2 cases, and {ENOUGH} are needed"),
    (("--no-calibration",), None),
])  # fmt: skip
def test_few_cases_change_no_server(tmp_path, capsys, flags, sentence):
    file = tmp_path / "calibrations.json"
    few = ("--requests", "2", "--format", "tool_call", "--mode", "emulate", "--group", "choice")
    assert main(["eval", "sample", *few, "--calibrations", str(file), *flags]) == 0
    err = capsys.readouterr().err
    assert sentence in err if sentence else "saved" not in err
    assert not file.exists()


def test_serve_reports_an_unusable_file(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("STREAMTOOL_CALIBRATIONS", str(tmp_path / "missing"))
    assert main(["serve", "--check"]) == 0  # nothing has been measured yet
    assert main(["serve", "--check", "--calibrations", str(tmp_path / "missing")]) == 2
    assert f"{tmp_path / 'missing'} cannot be read: No such file" in capsys.readouterr().err
    (tmp_path / "bad").write_text("[1]")
    assert main(["serve", "--check", "--calibrations", str(tmp_path / "bad")]) == 2
    assert f"{tmp_path / 'bad'}: entry 1 is not a JSON object" in capsys.readouterr().err


def test_only_a_result_for_the_whole_suite_becomes_a_calibration():
    assert EvalFlags("sample").representative
    for flags in (EvalFlags("sample", groups=("none",)), EvalFlags("sample", suite="bfcl")):
        assert not flags.representative
    assert not EvalFlags("sample", forcing=("schema",)).representative
    assert not EvalFlags("sample", select=(8,)).representative
    assert not EvalFlags("sample", choice="required").representative


def test_a_narrow_terminal_shows_the_whole_count(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, as rich sees it
    journal = journal_for(1)
    schedule = schedule_of(journal)
    while len([name for name, results in schedule.results.items() if results]) < 3:
        schedule.add(schedule.next()[0], right=True)
    with ProgressBar(journal, Budget(200)) as watch:
        watch(schedule, "", None)
    shown = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", capsys.readouterr().err)
    (last,) = {line for line in re.split(r"[\r\n]+", shown) if "1/1" in line}
    assert "  0/200 -:--:-- " in last


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_the_table_fits_the_terminal_and_names_what_it_leaves_out(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    journal = journal_for(1)
    show(report_of(journal, schedule_of(journal)))
    lines = re.sub(r"\x1b\[[^m]*m", "", capsys.readouterr().out).splitlines()
    (at,) = [index for index, line in enumerate(lines) if line.startswith("variant")]
    table = lines[at : at + 1 + len(journal.subject.variants)]
    assert max(map(len, table)) <= width
    left_out = [name for name in COLUMNS if name not in table[0]]
    assert bool(left_out) == any("too narrow" in line for line in lines)
    assert left_out == [] or width < 200
    assert {"variant", "right", "called"}.isdisjoint(left_out)
