"""Installed agents run the recipes that `streamtool recipe` prints: each reads a file with its own tool.

The model knows which tool to call, but learns the contents of the file only from the
agent: so unless the file is in the second request, the agent has read nothing.
"""

import json
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.installed_agents import COMMANDS, SECONDS, Agent, run_agent

from streamtool.cli.recipe import filled, recipes
from streamtool.proxy import Proxy
from streamtool.settings import load
from streamtool.testing import Recorded, Script, ScriptedUpstream, text

pytestmark = pytest.mark.agents
TASK = shlex.quote("What does notes.txt say?")
WORD = "marigold"
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
    work = tmp_path / "work"
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

    done = run_agent(agent, tmp_path, app, more)
    told = f"{done.stdout}\n{done.stderr}"[-4000:]
    assert done.returncode == 0, told
    assert WORD[::-1] in done.stdout, told
    read = [request for request in upstream.requests if WORD in json.dumps(request.json["messages"])]
    assert read, told
    return asked
