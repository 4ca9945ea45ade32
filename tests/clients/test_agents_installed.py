"""Installed agents run the recipes that `streamtool recipe` prints: each reads a file with its own tool.

`STREAMTOOL_AGENTS` is the folder of their commands (`node_modules/.bin`); a missing agent is skipped. Each has an empty
home, an empty working folder, and an HTTP proxy that only reaches this machine (which restricts only programs that use
the proxy of their environment). The model knows which tool to call, but learns the contents of the file only from the
agent: so unless the file is in the second request, the agent has read nothing.
"""

import json
import os
import re
import shlex
import socket
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from attrs import field, frozen
from support.servers import uvicorn_server

from streamtool.cli.recipe import PROXY, block, filled, recipes
from streamtool.proxy import Proxy
from streamtool.settings import load
from streamtool.testing import Recorded, Script, ScriptedUpstream, text

pytestmark = pytest.mark.agents
COMMANDS = Path(os.environ.get("STREAMTOOL_AGENTS", "."))
ADDRESS = PROXY.partition("//")[2]
TASK = shlex.quote("What does notes.txt say?")
WORD = "marigold"
SECONDS = 200
BYTES = 65536


@frozen
class Agent:
    """An installed agent."""

    name: str
    """Its name in the command."""
    task: str
    """Command that replaces the last one of its recipe, in order to work on a task without a terminal."""
    tool: str
    """Its tool that reads a file."""
    arguments: Callable[[Path], dict[str, Any]]
    quiet: dict[str, str] = field(factory=dict)
    """Settings that suppress traffic and processes unnecessary for the recipes (updates, statistics)."""

    @property
    def command(self) -> str:
        """Name of its program."""
        return self.task.partition(" ")[0]


AGENTS = (
    Agent(
        "claude-code",
        f"claude -p {TASK}",
        "Read",
        lambda file: {"file_path": str(file)},
        quiet={"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
    ),
    Agent(
        "codex",
        f"codex exec --skip-git-repo-check {TASK}",
        "exec_command",
        lambda file: {"cmd": f"cat {file.name}"},
    ),
    Agent(
        "opencode",
        f"opencode run {TASK}",
        "read",
        lambda file: {"filePath": str(file)},
        quiet={"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
    ),
    Agent(
        "cline",
        f"cline {TASK}",
        "read_files",
        lambda file: {"paths": [str(file)]},
        quiet={"CLINE_SESSION_BACKEND_MODE": "local", "CLINE_NO_AUTO_UPDATE": "1"},
    ),
    Agent("qwen-code", f"qwen -p {TASK}", "read_file", lambda file: {"file_path": str(file)}),
    Agent("gemini-cli", f"gemini --skip-trust -p {TASK}", "read_file", lambda file: {"file_path": str(file)}),
    Agent(
        "continue",
        f"cn --config ~/.continue/config.yaml -p {TASK}",
        "Read",
        lambda file: {"filepath": str(file)},
    ),
)


def model(agent: Agent, file: Path) -> Callable[[Recorded], Script]:
    """Return a model that calls the tool if it is offered, and answers when it has seen the file."""
    call = json.dumps({"name": agent.tool, "arguments": agent.arguments(file)})

    def says(request: Recorded) -> Script:
        said = json.dumps(request.json["messages"])
        if WORD in said:
            return text(f"It says {WORD[::-1]}.")
        return text(f"<tool_call>{call}</tool_call>" if f"{agent.tool}(" in said else "Notes")

    return says


class Tunnel(socketserver.StreamRequestHandler):
    """An HTTP proxy that only reaches this machine."""

    timeout = SECONDS

    def handle(self) -> None:
        asked = self.rfile.readline(BYTES).decode().split()
        while self.rfile.readline(BYTES).strip():
            pass
        host, _, port = asked[1].rpartition(":") if asked[:1] == ["CONNECT"] else ("", "", "")
        if host != "127.0.0.1":
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
            return
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with socket.create_connection((host, int(port)), SECONDS) as there:
            back = threading.Thread(target=pump, args=(there, self.connection))
            back.start()
            pump(self.connection, there)
            back.join()


def pump(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes from one socket to the other until either ends."""
    with suppress(OSError):
        while data := source.recv(BYTES):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextmanager
def tunnel() -> Iterator[str]:
    """Yield the URL of a proxy that only reaches this machine."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Tunnel) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("agent", AGENTS, ids=[agent.command for agent in AGENTS])
def test_an_agent_reads_a_file_with_its_recipe(agent: Agent, tmp_path: Path):
    reads_a_file(agent, tmp_path)


@pytest.mark.timeout(SECONDS + 60)
def test_codex_uses_a_websocket(tmp_path: Path):
    [codex] = [agent for agent in AGENTS if agent.command == "codex"]
    asked = reads_a_file(codex, tmp_path, "supports_websockets = true\n")
    assert "websocket" in asked
    assert "POST" not in asked


def test_roo_codes_types_accept_its_settings(tmp_path: Path):
    types = COMMANDS.parent / "@roo-code" / "types" / "package.json"
    if not types.exists():
        pytest.skip("@roo-code/types is not installed beside STREAMTOOL_AGENTS")
    [step] = recipes().clients["roo-code"].steps
    profiles = json.loads(filled(step.text, "qwen3-coder", 65536))["providerProfiles"]["apiConfigs"]
    script = (
        f"const {{ createRequire }} = require('module'); const types = createRequire({json.dumps(str(types))})('./');"
        f"for (const one of Object.values({json.dumps(profiles)}))"
        " types.discriminatedProviderSettingsWithIdSchema.and(types.providerSettingsWithIdSchema.strict()).parse(one)"
    )
    subprocess.run(["node", "-e", script], check=True, cwd=tmp_path, timeout=SECONDS)


def reads_a_file(agent: Agent, tmp_path: Path, more: str = "") -> list[str]:
    """Let the agent read a file, with its recipe and `more` settings; return how it sent requests: method or
    `websocket`.
    """
    if not (COMMANDS / agent.command).exists():
        pytest.skip(f"{agent.command} is not in STREAMTOOL_AGENTS")
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    file = work / "notes.txt"
    file.write_text(f"The word is {WORD}.\n")
    upstream = ScriptedUpstream(model(agent, file))
    settings = load('[upstream.u]\nurl = "http://127.0.0.1:9"\n', {})
    proxy = Proxy(settings, apps={"u": upstream})
    asked: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope.get("method", scope["type"]))
        await proxy(scope, receive, send)

    with tunnel() as out, uvicorn_server(app, ws="websockets-sansio") as server:
        recipe = block(recipes().clients[agent.name], recipes().servers["llama.cpp"])
        recipe = recipe.replace(ADDRESS, server.url.partition("//")[2])
        commands: list[str] = []
        for heading, body in re.findall(r"^# [3-9]\. (.*)\n((?:(?!# \d\. ).*\n?)*)", recipe, re.MULTILINE):
            name = heading.partition(": ~/")[2]
            if name:
                (home / name).parent.mkdir(parents=True)
                (home / name).write_text(body + more)
            else:
                *commands, last = body.splitlines()
                assert agent.task.startswith(last)
        lines = "\n".join([*commands, agent.task])
        done = subprocess.run(
            ["/bin/sh", "-e", "-c", lines],
            cwd=work,
            env={
                "PATH": f"{COMMANDS.resolve()}:{os.environ['PATH']}",
                "HOME": str(home),
                "HTTP_PROXY": out,
                "HTTPS_PROXY": out,
                "NO_PROXY": "127.0.0.1,localhost",
                **agent.quiet,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    told = f"{done.stdout}\n{done.stderr}"[-4000:]
    assert done.returncode == 0, told
    assert WORD[::-1] in done.stdout, told
    read = [request for request in upstream.requests if WORD in json.dumps(request.json["messages"])]
    assert read, told
    return asked
