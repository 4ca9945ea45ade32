"""Calibrations: their file, and when they apply."""

import json
from typing import Any

import pytest
from attrs import evolve
from support.sweeps import each

from streamtool.core.errors import SettingsError
from streamtool.models.chat_templates import recognise
from streamtool.settings import Calibration, ModelRule, Settings, UpstreamSettings, load, with_options
from streamtool.settings.calibrations import read_calibrations, write_calibrations

URL = "http://127.0.0.1:8000"
MEASURED = Calibration(
    model="small",
    match="*",
    url=URL,
    protocol="chat",
    date="2026-12-01",
    mode="emulate",
    cases=200,
    right=142,
    version="1.0",
    server="vLLM 1.0",
    format="tool_call",
    schema="json",
    next="invoke",
    next_cases=50,
    next_right=26,
)
NATIVE = evolve(MEASURED, mode="native", format=None, schema=None)
REASON = "measured 2026-12-01: right in 71 % of 200 cases, next invoke in 52 %"
UPSTREAM = {"local": UpstreamSettings(name="local", url=URL)}


def used(settings: Settings, model: str = "any") -> tuple[str, str, str]:
    found = settings.for_model(model)
    return found.mode, found.format, found.prompt.schema


def loaded(toml: str = "", **flags: Any) -> Settings:
    return load(toml, {}, {"upstream": {"local": {"url": URL}}, **flags}, [MEASURED])


def test_a_file_is_read_as_it_was_written():
    other = evolve(NATIVE, model="other", match="other", server=None, next=None, next_cases=0)
    text = write_calibrations([MEASURED], other)
    assert read_calibrations(text, "f") == (MEASURED, other)
    assert json.loads(text)[0]["model"] == "small"


def test_a_new_measurement_replaces_that_of_the_same_model_and_url():
    elsewhere = evolve(MEASURED, url="http://elsewhere")
    newer = evolve(MEASURED, date="2026-12-02", format="tag")
    text = write_calibrations([MEASURED, elsewhere], newer)
    assert read_calibrations(text, "f") == (elsewhere, newer)


ENTRY = json.loads(write_calibrations([], MEASURED))[0]


@each(
    ("text", "message"),
    [
        ("[", "f is not JSON: Expecting value: line 1 column 2 (char 1); delete it, and measure again"),
        ("{}", "f: expected a JSON list of calibrations; delete it, and measure again"),
        (json.dumps([ENTRY, 1]), "f: entry 2 is not a JSON object"),
        (
            json.dumps([ENTRY, {**ENTRY, "mode": "odd"}]),
            "f: entry 2, mode: expected one of emulate, native, auto, rescue, found the string 'odd'",
        ),
        (json.dumps([{**ENTRY, "format": "invok"}]), 'f: entry 1, format: unknown format "invok"'),
        (
            json.dumps([{**ENTRY, "cases": 0}]),
            "f: entry 1, cases: expected an integer, 1 or more, found an integer (0)",
        ),
        (json.dumps([{**ENTRY, "modell": 0}]), 'f: entry 1, modell: unknown setting; did you mean "model"?'),
        (json.dumps([{"model": "m"}]), "f: entry 1, match: this setting is required"),
    ],
)
def test_an_error_names_the_entry(text, message):
    with pytest.raises(SettingsError) as raised:
        read_calibrations(text, "f")
    assert raised.value.message.startswith(message)


def test_a_calibration_applies_if_nothing_is_set():
    settings = loaded()
    assert used(settings) == ("emulate", "tool_call", "json")
    assert settings.for_model("any").training.reason == REASON
    assert used(Settings(upstreams=UPSTREAM, calibrations=(NATIVE,))) == ("native", "invoke", "compact")


def test_a_reason_without_another_variant_ends_earlier():
    assert evolve(MEASURED, next=None, next_cases=0).reason == "measured 2026-12-01: right in 71 % of 200 cases"


@each("toml", ['mode = "emulate"', 'format = "auto"', 'schema = "compact"'])
def test_a_calibration_does_not_apply_if_mode_format_or_schema_is_set_even_to_the_default(toml):
    assert used(loaded(toml)) == ("emulate", "invoke", "compact")
    name, _, value = toml.partition(" = ")
    assert used(loaded(**{name: value.strip('"')})) == ("emulate", "invoke", "compact")
    assert used(with_options(loaded(), {name: value.strip('"')})) == ("emulate", "invoke", "compact")
    assert used(load("", {f"STREAMTOOL_{name.upper()}": value.strip('"')}, {}, [MEASURED])) == used(Settings())
    assert used(loaded(f'[[model]]\nmatch = "*"\n{toml}'))[1] == "invoke"


def test_a_rule_that_sets_none_of_them_keeps_the_calibration():
    assert used(loaded('[[model]]\nmatch = "*"\nuse = "small"\ncontext = 4096')) == ("emulate", "tool_call", "json")


def test_a_calibration_applies_only_to_its_url_and_model():
    other = {"local": UpstreamSettings(name="local", url="http://127.0.0.1:8001")}
    assert used(Settings(upstreams=other, calibrations=(MEASURED,))) == used(Settings())
    assert used(Settings(calibrations=(MEASURED,))) == used(Settings())
    named = Settings(upstreams=UPSTREAM, calibrations=(evolve(MEASURED, match="small"),))
    assert used(named, "small")[1] == "tool_call"
    assert used(named, "large")[1] == "invoke"
    aliased = evolve(named, models=(ModelRule(match="alias", use="small"),))
    assert used(aliased, "alias")[1] == "tool_call"


def test_the_calibration_with_the_models_name_precedes_later_ones():
    large = evolve(MEASURED, model="large", format="tag")
    both = Settings(upstreams=UPSTREAM, calibrations=(MEASURED, large))
    assert [used(both, name)[1] for name in ("small", "large", "any")] == ["tool_call", "tag", "tag"]


def test_a_chat_template_does_not_override_a_measured_format():
    model = loaded().for_model("any")
    told = recognise("<tool_call>\n<function=f>\n<parameter=p>\n</parameter></function></tool_call>")
    assert told.taught == "qwen3_coder"
    assert not model.looks_for_template
    assert model.with_template(told).format == "tool_call"
    assert model.continuing_in("tag").format == "tool_call"
    assert model.with_own_format.with_template(told).format == "qwen3_coder"  # demanded by a request's header


def test_the_settings_file_and_the_environment_cannot_contain_calibrations():
    with pytest.raises(SettingsError, match="calibrations: unknown setting"):
        load("calibrations = []")
    assert load("", {"STREAMTOOL_CALIBRATIONS": "file.json"}).calibrations == ()  # names the file
