"""`streamtool init` writes settings for the servers that answer, and `streamtool schema` describes all settings."""

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from support.servers import free_port, uvicorn_server

from streamtool.cli import init, main
from streamtool.settings import load

MODELS = {"object": "list", "data": [{"id": "qwen3:8b"}, {"id": "nomic-embed"}, {"id": "gemma3:1b"}]}
OLLAMA = {
    "/api/version": {"version": "0.13.1"},
    "/api/tags": {"models": [{"name": one["id"]} for one in MODELS["data"]]},  # type: ignore[index]
    "/api/ps": {"models": []},
    "/v1/models": {**MODELS, "data": [{**one, "owned_by": "library"} for one in MODELS["data"]]},  # type: ignore[dict-item]
}


def answering(answers: Mapping[str, Any]) -> Callable[..., Any]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        found = answers.get(scope["path"])
        await send({"type": "http.response.start", "status": 404 if found is None else 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(found or {}).encode()})

    return app


pytestmark = pytest.mark.usefixtures("asking")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def is_valid() -> Callable[[str], bool]:
    check = jsonschema_rs.validator_for(json.loads(init.schema_text()))
    return lambda text: check.is_valid(tomllib.loads(text))


def test_settings_for_ollama(folder, is_valid, capsys):
    with uvicorn_server(answering(OLLAMA)) as served:
        assert main(["init", served.url, "--model", "qwen3:8b"]) == 0
        text = (folder / "streamtool.toml").read_text()
        assert main(["serve", "--check"]) == 0
    assert text.startswith("#:schema streamtool.schema.json\n")
    assert "# Ollama 0.13.1, num_ctx as needed\n" in text
    assert "# other models: nomic-embed, gemma3:1b\n" in text
    found = load(text)
    assert found.upstreams["ollama"].url == served.url
    (rule,) = found.models
    assert (rule.match, rule.use, rule.upstream) == ("*", "qwen3:8b", "ollama")
    assert f"# taught format: {found.for_model('any').format} (" in text
    assert is_valid(text)
    assert not is_valid(text.replace("listen =", "lisen ="))
    assert not is_valid(text.replace("\nurl", "\nulr"))
    assert (folder / "streamtool.schema.json").read_text() == init.schema_text()
    assert "found     Ollama 0.13.1" in capsys.readouterr().out


def test_the_usual_ports_are_asked(folder, monkeypatch):
    listed = {"/v1/models": MODELS}
    with uvicorn_server(answering(listed)) as one, uvicorn_server(answering(OLLAMA)) as other:
        ports = [int(served.url.rpartition(":")[2]) for served in (one, other)]
        monkeypatch.setattr(init, "USUAL", (free_port(), *ports))
        assert main(["init"]) == 0
    found = load((folder / "streamtool.toml").read_text())
    assert list(found.upstreams) == ["local", "ollama"]
    assert found.models[0].use == "qwen3:8b"


def test_models_for_embeddings_are_not_chosen(folder):
    listed = {"/v1/models": {"data": [{"id": "nomic-embed"}, {"id": 'a "quoted"\nname'}]}}
    with uvicorn_server(answering(listed)) as served:
        assert main(["init", served.url]) == 0
    assert load((folder / "streamtool.toml").read_text()).models[0].use == 'a "quoted"\nname'


def test_a_model_whose_name_is_not_unicode_is_left_out(folder):
    models = {"data": [{"id": "\ud800"}, {"id": "qwen3:8b"}]}
    with uvicorn_server(answering({**OLLAMA, "/v1/models": models})) as served:
        assert main(["init", served.url]) == 0
    assert 'use = "qwen3:8b"' in (folder / "streamtool.toml").read_text(encoding="utf-8")


def test_a_key_is_not_written(folder, monkeypatch):
    monkeypatch.setenv("SOME_KEY", "secret-value")
    with uvicorn_server(answering(OLLAMA)) as served:
        assert main(["init", served.url, "--key-env", "SOME_KEY"]) == 0
    text = (folder / "streamtool.toml").read_text()
    assert 'key = "env:SOME_KEY"' in text
    assert "secret-value" not in text


def test_nothing_is_overwritten(folder, capsys):
    (folder / "streamtool.toml").write_text("mine")
    with uvicorn_server(answering(OLLAMA)) as served:
        assert main(["init", served.url]) == 2
        assert capsys.readouterr().err == "streamtool: streamtool.toml exists; --force overwrites it\n"
        assert (folder / "streamtool.toml").read_text() == "mine"
        assert not (folder / "streamtool.schema.json").exists()
        assert main(["init", served.url, "--force"]) == 0
        assert main(["init", served.url, "--output", "other.toml"]) == 0  # the schema is ours
        (folder / "streamtool.schema.json").write_text("{}")
        assert main(["init", served.url, "--output", "third.toml"]) == 2
    assert not (folder / "third.toml").exists()


def test_without_a_server_nothing_is_written(folder, capsys):
    assert main(["init", f"http://127.0.0.1:{free_port()}"]) == 3
    assert "no model server answers at http://127.0.0.1:" in capsys.readouterr().err
    assert not list(folder.iterdir())


def test_the_sample(folder):
    assert main(["init", "sample"]) == 0
    assert load((folder / "streamtool.toml").read_text()).upstreams["sample"].url == "sample"


def test_the_schema_is_printed(capsys):
    assert main(["schema"]) == 0
    assert capsys.readouterr().out == init.schema_text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\nretries = 2\nmdoe = 1", '3: mdoe: unknown setting; did you mean "mode"?'),
        ('a = """\n\n', "2: the settings file is not valid TOML: "),
        ('[[model]]\nmatch = "a"\n[[model]]\nmatch = "b"\nmode = "x"', "5: model[1].mode: expected one of"),
        ('mode = "native"\n[upstream.a]\nweight = 1', "2: upstream.a.url: this setting is required"),
    ],
)
def test_an_error_names_the_file_and_the_line(folder, capsys, text, says):
    (folder / "streamtool.toml").write_text(text)
    assert main(["serve", "--check"]) == 2
    assert f"streamtool: streamtool.toml:{says}" in capsys.readouterr().err


def test_rules_of_flags_precede_those_of_the_file(folder, capsys):
    (folder / "streamtool.toml").write_text('[[model]]\nmatch = "a"\nmode = "x"')
    assert main(["serve", "--check", "--model", "m"]) == 2
    assert "streamtool: streamtool.toml:3: model[1].mode: " in capsys.readouterr().err


def test_an_error_about_a_flag_or_a_variable_names_no_line(folder, capsys, monkeypatch):
    (folder / "streamtool.toml").write_text('mode = "native"')
    assert main(["serve", "--check", "--mode", "x"]) == 2
    assert "streamtool: mode: expected one of" in capsys.readouterr().err
    monkeypatch.setenv("STREAMTOOL_MODE", "x")
    assert main(["serve", "--check"]) == 2
    assert "streamtool: mode: expected one of" in capsys.readouterr().err
