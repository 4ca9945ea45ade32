"""Installed agents survive the endings of replies that cannot be completed, and run nothing that was cut.

The first reply to each agent ends in a fault, and nothing resumes it. The model would answer the second request. The
call in the reply runs a command that creates a file, and is cut after a part that is a complete command itself: so the
file shows whether an agent has run a call that the model had not finished.

`python-agents` is a Python with langgraph, langchain, langchain-openai, langchain-anthropic and openai-agents. `python
tests/clients/test_endings_installed.py` repeats all runs, or those of the agents named, and writes `endings.json`, from
which a table of the docs is made.
"""

import json
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from support.installed_agents import SECONDS, Agent, run_agent
from support.servers import uvicorn_server

from streamtool.proxy import Proxy
from streamtool.settings import load
from streamtool.testing import DONE, Die, Recorded, Script, ScriptedUpstream, chunk, event, text

pytestmark = pytest.mark.agents
TASK = shlex.quote("Create the file.")
ANSWER = "marigold"
RESULTS = Path(__file__).with_name("endings.json")
LIBRARIES = Path(__file__).parent.parent / "support" / "python_agents.py"


@frozen
class Client:
    """An agent, and its tool that runs a shell command."""

    title: str
    """Its name in the docs."""
    agent: Agent
    code: bool = False
    """Whether the tool takes a script as raw text."""


def client(  # noqa: PLR0917  a row of a table
    title: str, name: str, task: str, tool: str, arguments: Callable[[str], Any], quiet: dict[str, str] | None = None
) -> Client:
    """Return a client; `arguments` returns the tool's arguments for a command."""
    return Client(title, Agent(name, task, tool, arguments, quiet or {}), code=tool == "exec")


def library(title: str, name: str, protocol: str, mode: str) -> Client:
    """Return a client that uses a Python library."""
    task = f"python-agents -P {LIBRARIES} {name} {protocol} {mode} {TASK}"
    return client(title, "", task, "shell", lambda command: {"command": command})


CODEX = "codex exec --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox"
QUIET = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}
CLINE = {"CLINE_SESSION_BACKEND_MODE": "local", "CLINE_NO_AUTO_UPDATE": "1"}
CLIENTS = {
    "claude": client(
        "Claude Code",
        "claude-code",
        f"claude -p {TASK} --allowedTools Bash",
        "Bash",
        lambda command: {"command": command},
        {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
    ),
    "codex": client("Codex", "codex", f"{CODEX} {TASK}", "exec_command", lambda command: {"cmd": command}),
    "codex-code": client(
        "Codex in code mode",
        "codex",
        f"{CODEX} --enable code_mode {TASK}",
        "exec",
        lambda command: f"await tools.exec_command({{cmd: {json.dumps(command)}}});\n",
    ),
    "opencode": client(
        "opencode",
        "opencode",
        f"opencode run {TASK}",
        "bash",
        lambda command: {"description": "Creates it", "command": command},
        QUIET,
    ),
    "cline": client("Cline", "cline", f"cline {TASK}", "run_commands", lambda command: {"commands": [command]}, CLINE),
    "qwen": client(
        "Qwen Code",
        "qwen-code",
        f"qwen -p {TASK} --yolo",
        "run_shell_command",
        lambda command: {"is_background": False, "command": command},
    ),
    "gemini": client(
        "Gemini CLI",
        "gemini-cli",
        f"gemini --skip-trust --yolo -p {TASK}",
        "run_shell_command",
        lambda command: {"command": command},
    ),
    "cn": client(
        "Continue",
        "continue",
        f"cn --config ~/.continue/config.yaml --auto -p {TASK}",
        "Bash",
        lambda command: {"command": command},
    ),
    "langgraph": library("LangGraph (Chat)", "langgraph", "chat", "streamed"),
    "langgraph-whole": library("LangGraph (Chat, not streamed)", "langgraph", "chat", "whole"),
    "langgraph-responses": library("LangGraph (Responses)", "langgraph", "responses", "streamed"),
    "langgraph-messages": library("LangGraph (Messages)", "langgraph", "messages", "streamed"),
    "langgraph-messages-whole": library("LangGraph (Messages, not streamed)", "langgraph", "messages", "whole"),
    "agents": library("openai-agents (Responses)", "openai-agents", "responses", "streamed"),
    "agents-chat": library("openai-agents (Chat)", "openai-agents", "chat", "streamed"),
}


def cut_off(client: Client, file: Path, *steps: Any) -> Script:
    """Return a reply that is cut inside the arguments of a call, followed by other steps."""
    whole = call(client, f"touch {file} && echo created")
    begun, _, _ = whole.partition(" && echo" if not client.code else "\\n")
    if client.code:
        begun, _, _ = whole.partition("// more")
    return text("I create it.\n", begun, finish=None, done=False).then(*steps)


def call(client: Client, command: str) -> str:
    """Return the call as text."""
    made = client.agent.arguments(command)  # type: ignore[arg-type]  a command in place of a path
    if client.code:
        made = {"input": f"{made}// more\n"}
    return f"<tool_call>{json.dumps({'name': client.agent.tool, 'arguments': made})}</tool_call>"


def malformed(client: Client, file: Path) -> Script:
    """Return a complete reply with a call that the model has ended, but whose arguments cannot be read."""
    begun = call(client, f"touch {file}").partition(str(file))[0]
    return text("I create it.\n", f'{begun}{file}", : ]]}}</tool_call>')


FAULTS: dict[str, Callable[[Client, Path], Script]] = {
    "limit in a call": lambda client, file: cut_off(client, file, chunk({}, finish="length"), DONE),
    "reset in a call": lambda client, file: cut_off(client, file, Die()),
    "error in a call": lambda client, file: cut_off(client, file, event({"error": {"message": "out of memory"}})),
    "malformed call": malformed,
    "unknown tool": lambda _client, file: text(
        f'<tool_call>{{"name": "make_file", "arguments": {{"path": "{file}"}}}}</tool_call>'
    ),
    "reset in text": lambda _client, _file: text("I create the ", finish=None, done=False).then(Die()),
}


def run(client: Client, fault: str, folder: Path, more: str = "") -> dict[str, Any]:
    """Run the client; return what was executed, and whether the session continued."""
    work = folder / "work"
    work.mkdir()
    file = work / "made"
    turns = 0

    def model(request: Recorded) -> Script:
        if f"{client.agent.tool}(" not in json.dumps(request.json["messages"]):
            return text("A file")  # a title
        return FAULTS[fault](client, file) if turns == 1 else text(f"{ANSWER[::-1].upper()}.")

    with uvicorn_server(ScriptedUpstream(model), log_level="critical") as upstream:
        settings = load(f'resume = 0\n{more}\n[upstream.u]\nurl = "{upstream.url}"\n', {})
        proxy = Proxy(settings)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            body = b""

            async def listen() -> Any:
                nonlocal body, turns
                message = await receive()
                body += message.get("body") or (message.get("text") or "").encode()
                if body and not message.get("more_body"):
                    tools, body = json.dumps(json.loads(body).get("tools")), b""
                    turns += f'"name": "{client.agent.tool}"' in tools
                return message

            await proxy(scope, listen, send)

        done = run_agent(client.agent, folder, app)
    return {
        "executed": file.exists(),
        "continued": turns > 1 and ANSWER[::-1].upper() in done.stdout,
        "requests": turns,
        "status": done.returncode,
        "shown": f"{done.stdout}\n{done.stderr}".strip()[-600:],
    }


@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", CLIENTS)
def test_an_agent_survives_an_ending_and_runs_nothing_that_was_cut(name: str, fault: str, tmp_path: Path):
    found = run(CLIENTS[name], fault, tmp_path)
    assert not found["executed"], found
    expected = json.loads(RESULTS.read_text())["endings"][name][fault]
    assert found["continued"] == expected["continued"], found


def main(names: list[str]) -> None:
    """Repeat the runs of these clients, or of all of them, and write their results."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"endings": {}}
    results["titles"] = {name: client.title for name, client in CLIENTS.items()}
    for name in names or CLIENTS:
        for fault in FAULTS:
            with tempfile.TemporaryDirectory() as folder:
                found = run(CLIENTS[name], fault, Path(folder))
            print(name, "|", fault, "|", found)
            row = {key: found[key] for key in ("executed", "continued", "requests", "status")}
            results["endings"].setdefault(name, {})[fault] = row
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
