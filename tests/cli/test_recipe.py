"""`streamtool recipe`: each recipe is complete and valid, and the streamtool command in it works."""

import json
import os
import re
import shlex
import subprocess
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import anthropic
import pytest
import yaml
from support.dialects import PATHS, read, said
from support.servers import uvicorn_server
from support.sweeps import each

from streamtool.cli import main
from streamtool.cli.recipe import CONTEXT, PROXY, block, recipes
from streamtool.cli.serve import ServeFlags
from streamtool.proxy import Proxy
from streamtool.settings import Settings
from streamtool.testing import ScriptedUpstream, stream_asgi

RECIPES = recipes()
CLIENTS, SERVERS = RECIPES.clients, RECIPES.servers
READERS = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}
CALL = 'So.\n<tool_call>\n{"name": "ping", "arguments": {"n": 1}}\n</tool_call>'
one = pytest.mark.parametrize("anyio_backend", ["asyncio"])


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("STREAMTOOL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs `streamtool recipe`: exit code, standard output, standard error."""

    def call(*argv: str) -> tuple[int, str, str]:
        return main(["recipe", *argv]), *capsys.readouterr()

    return call


def steps(text: str) -> dict[str, str]:
    """Return the steps of a printed recipe by their headings."""
    parts = re.split(r"^# \d\. (.*)\n", text, flags=re.MULTILINE)[1:]
    return {heading: body.strip() for heading, body in zip(parts[::2], parts[1::2], strict=True)}


def values(value: Any) -> set[Any]:
    """Return all keys, and all values that are not containers."""
    if isinstance(value, dict):
        return {*value, *(inner for member in value.values() for inner in values(member))}
    return {inner for member in value for inner in values(member)} if isinstance(value, list) else {value}


def served(server: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return the settings of the streamtool command in the recipes for a server."""
    words = shlex.split(steps(block(CLIENTS["codex"], SERVERS[server]))["streamtool, in a second terminal"])
    at = words.index("streamtool")
    for assignment in words[:at]:
        monkeypatch.setenv(*assignment.split("=", 1))
    found: list[ServeFlags] = []
    monkeypatch.setattr("streamtool.cli.serve.run", lambda flags, only_check: found.append(flags))
    assert main(words[at + 1 :]) == 0
    return found[0].settings()


def test_without_names_all_are_listed(run):
    code, out, err = run()
    assert (code, err) == (0, "")
    listed = [line.split()[0] for line in out.splitlines() if " " in line]
    assert listed == ["client", *CLIENTS, "server", *SERVERS, "streamtool"]


def test_a_recipe_consists_of_numbered_steps(run):
    code, out, err = run("codex", "ollama", "--model", "qwen3:8b", "--context", "32768")
    assert (code, err) == (0, "")
    assert re.findall(r"^# .*", out, re.MULTILINE) == [
        "# 1. Ollama",
        "# 2. streamtool, in a second terminal",
        "# 3. Codex: ~/.codex/config.toml",
        "# 4. Codex, in a third terminal",
    ]
    assert "ollama pull qwen3:8b\n" in out
    assert " --protocol ollama --model qwen3:8b --context 32768\n" in out
    assert 'model = "qwen3:8b"\n' in out
    assert "model_context_window = 32768\n" in out


@each(
    ("client", "server"),
    [("claude-code", "llama.cpp"), ("Claude Code", "llamacpp"), ("claude", "LLAMA"), ("CLAUDE_CODE", "llama-cpp")],
)
def test_names_may_be_spelled_in_several_ways(client: str, server: str, run: Any):
    assert run(client, server)[1] == f"{block(CLIENTS['claude-code'], SERVERS['llama.cpp'])}\n"


@each(
    ("argv", "message"),
    [
        (("cluade", "ollama"), 'unknown client "cluade"; did you mean "claude-code"?'),
        (("open", "ollama"), 'unknown client "open"; did you mean "opencode"?'),
        (("", "ollama"), 'unknown client ""'),
        (("codex", "olama"), 'unknown server "olama"; did you mean "ollama"?'),
        (("codex",), "SERVER is missing: llama.cpp, ollama, vllm, lm-studio"),
        (("codex", "vllm", "--model", "a b"), "--model: expected letters, digits and .:/@+-_, found 'a b'"),
        (("codex", "vllm", "--model", "x;y"), "found 'x;y'"),
        (("codex", "vllm", "--model=-x"), "found '-x'"),
    ],
)
def test_a_wrong_name_is_explained(argv: tuple[str, ...], message: str, run: Any):
    code, out, err = run(*argv)
    assert (code, out) == (2, "")
    assert message in err


@each(("client", "server"), list(product(CLIENTS, SERVERS)))
def test_every_recipe_is_complete(client: str, server: str):
    known = CLIENTS[client]
    text = block(known, SERVERS[server])
    assert "$" not in text
    assert len(steps(text)) == 2 + len(known.steps)
    assert PROXY in text.partition("# 3. ")[2]
    assert known.source
    assert SERVERS[server].source
    assert all(source.startswith("https://") for source in known.source + SERVERS[server].source)
    for step, (heading, body) in zip(known.steps, list(steps(text).items())[2:], strict=True):
        if step.file:
            assert f": {step.file}" in heading
            found = values(READERS[step.language](body))
            assert ("$context" in step.text) == (CONTEXT in found)
            assert ("$proxy/v1" in step.text) == (f"{PROXY}/v1" in found)


def test_shell_steps_are_valid():
    shell = "\n".join(body for key in CLIENTS for body in _shell(key) if body)
    subprocess.run(["/bin/sh", "-n", "-c", shell], check=True)


def _shell(client: str) -> list[str]:
    known = CLIENTS[client]
    bodies = list(steps(block(known, SERVERS["lm-studio"])).values())
    return bodies[:2] + [body for step, body in zip(known.steps, bodies[2:], strict=True) if not step.file]


def test_every_path_is_one_of_the_proxy():
    paths = [re.sub("…", "m", client.path) for client in CLIENTS.values()]
    assert {*paths} <= {*PATHS.values(), "/v1beta/models/m:streamGenerateContent"}


@one
@each("server", SERVERS)
async def test_the_command_of_a_server_works(server: str, monkeypatch: pytest.MonkeyPatch, anyio_backend: str):
    settings = served(server, monkeypatch)
    known = SERVERS[server]
    [upstream] = settings.upstreams.values()
    protocol = "ollama" if server == "ollama" else "chat"
    assert (upstream.url, settings.context) == (known.upstream, CONTEXT)
    model = ScriptedUpstream(said(protocol, "Fine."))
    proxy = Proxy(settings, apps=dict.fromkeys(settings.upstreams, model))
    body = {"model": "any", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    async with proxy.running(), stream_asgi(proxy, PATHS["chat"], body=json.dumps(body).encode()) as reply:
        assert read("chat", await reply.body(), stream=True).parts == ("Fine.",)
    sent = model.requests[-1].json
    assert sent["model"] == known.model
    assert sent.get("options", {}).get("num_ctx") == (CONTEXT if protocol == "ollama" else None)


def test_the_environment_of_claude_code_leads_its_sdk_to_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The Anthropic SDK, which Claude Code contains, reads the same variables."""
    model = ScriptedUpstream(said("chat", CALL))
    settings = served("llama.cpp", monkeypatch)
    lines = steps(block(CLIENTS["claude-code"], SERVERS["llama.cpp"]))["Claude Code, in a third terminal"]
    exported = dict(re.findall(r"^export (\w+)=(.*)$", lines, re.MULTILINE))
    with uvicorn_server(Proxy(settings, apps=dict.fromkeys(settings.upstreams, model))) as server:
        for name, value in exported.items():
            monkeypatch.setenv(name, value.replace(PROXY, server.url))
        monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
        message = anthropic.Anthropic().messages.create(
            model=exported["ANTHROPIC_MODEL"],
            max_tokens=100,
            messages=[{"role": "user", "content": "Ping it."}],
            tools=[{"name": "ping", "input_schema": {"type": "object", "properties": {"n": {"type": "integer"}}}}],
        )
    assert [(part.name, part.input) for part in message.content if part.type == "tool_use"] == [("ping", {"n": 1})]


@pytest.mark.parametrize(
    ("flags", "text", "shown"),
    [
        ({}, "", True),
        ({"host": "0.0.0.0", "insecure": True}, "", False),
        ({}, "contents = false", False),
        ({"host": "0.0.0.0", "insecure": True, "contents": True}, "", True),
    ],
)
def test_inspect_shows_contents_on_this_machine(flags, text, shown):
    found = ServeFlags(inspect=True, **flags).with_file(text)
    assert (found.inspect, found.contents) == (True, shown)
