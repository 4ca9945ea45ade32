"""The JSON Schema of the settings accepts what the readers accept, and refuses each type that they refuse."""

import re
import tomllib
from typing import Any

import jsonschema_rs
import pytest
from attrs import NOTHING, fields
from support.servers import ROOT

from streamtool.core.errors import SettingsError
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
)
from streamtool.settings.lines import line_of
from streamtool.settings.readers import key_of, reader_for
from streamtool.settings.schema import file_fields, settings_schema

CLASSES = (
    *(Settings, CircuitSettings, KeyLimits, LimitSettings, McpSettings, ModelRule, ResultSettings, StoreSettings),
    *(TimeoutSettings, ToolSettings, UpstreamSettings),
)
VALUES: tuple[Any, ...] = (
    *(True, False, 0, 1, -1, 2**40, 1.5, "", "auto", "text", "sample", "chat", "openai", "127.0.0.1:1", "chatml"),
    *([], ["a"], ["/v1/chat/completions"], [1], [[]], {}, {"a": "b"}, {"a": 1}, {"/x": "chat"}, "redis://a", "a.b"),
    *("http://a", "https://*.example", "default", "invoke"),
)
SCHEMA = settings_schema()


def definition(cls: Any) -> Any:
    return SCHEMA if cls is Settings else SCHEMA["$defs"][cls.__name__]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_the_schema_agrees_with_the_readers(cls):
    properties = definition(cls)["properties"]
    assert list(properties) == [key_of(one) for one in file_fields(cls)]
    skipped = {one.name for one in fields(cls)} - {one.name for one in file_fields(cls)}
    assert skipped <= {"name", "calibrations"}
    required = [key_of(one) for one in file_fields(cls) if one.default is NOTHING]
    assert definition(cls).get("required", []) == required
    for attribute in file_fields(cls):
        check = jsonschema_rs.validator_for({**properties[key_of(attribute)], "$defs": SCHEMA["$defs"]})
        for value in VALUES:
            place = (cls.__name__, attribute.name, value)
            try:
                reader_for(attribute)(value, "x")
            except SettingsError as error:
                if error.code == "wrong_type" and not strings_only(value):
                    assert not check.is_valid(value), place
            else:
                assert check.is_valid(value), place
        assert check.is_valid("env:SOME_KEY") or "table" in str(reader_for(attribute).schema)  # type: ignore[attr-defined]


def strings_only(value: Any) -> bool:
    """Return whether the readers know more about a value than its type: which strings are names, URLs and so on."""
    match value:
        case str():
            return True
        case list():
            return all(map(strings_only, value))
        case dict():
            return all(map(strings_only, value.values()))
    return False


def test_settings_in_the_docs_have_the_schema():
    check = jsonschema_rs.validator_for(SCHEMA)
    blocks = 0
    for page in [*ROOT.glob("docs/*.md"), ROOT / "README.md"]:
        for code in re.findall(r"(?<!-->\n)^```toml\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            blocks += 1
            assert not list(check.iter_errors(tomllib.loads(code))), (page.name, code)
    assert blocks > 10


def test_fields_are_described():
    told = settings_schema()["properties"]
    assert told["recordings"]["description"].startswith("A directory where exchanges")
    assert told["retries"]["default"] == 2


@pytest.mark.parametrize(
    ("text", "path", "line"),
    [
        ("a = 1\nb = [\n1,\n2]\nc = 3", "c", 5),
        ("a = 1\nb = [\n1,\n2]\nc = 3", "b[1]", 2),
        ('[tool."x.y"]\narguments = 1', "tool.x.y.arguments", 2),
        ("[a]\nb.c = 1", "a.b.c", 2),
        ("[a]\n\n[a.b]\nc = 1", "a.b.missing", 3),
        ("[[m]]\n[[m]]\n# x\nd = 1", "m[1].d", 4),
        ('a = "# b = 1"\nb = 2', "b", 2),
        ("a = 1", "b", None),
        ("a = 1\r\nb = 2", "b", 2),
        ("a = ", "a", None),
    ],
)
def test_the_line_of_a_setting(text, path, line):
    assert line_of(text, path) == line
