"""The JavaScript clients: openai, Anthropic's, Ollama's, Google's, and the AI SDK with each provider that we support.

One Node process runs all scenarios (tests/node/main.mjs); its output is checked here, one test per scenario.
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import asdict, frozen
from support.clients import KINDS, Model, Outcome, Task
from support.servers import uvicorn_server

from streamtool.proxy import Proxy
from streamtool.settings import Settings

NODE = Path(__file__).resolve().parent.parent / "node"
LIMIT = 60.0

ENDS = {"chat": ("tool_calls", "stop"), "responses": ("completed", "completed"), "messages": ("tool_use", "end_turn")}
AI = ("tool-calls", "stop")
CLIENTS = {
    "openai.chat": (("streamed", "whole", "helper"), ENDS["chat"]),
    "openai.runner": (("streamed", "whole"), ENDS["chat"]),
    "openai.responses": (("streamed", "whole", "helper"), ENDS["responses"]),
    "openai.chained": (("streamed", "whole", "helper"), ENDS["responses"]),
    "anthropic.messages": (("streamed", "whole", "helper"), ENDS["messages"]),
    "anthropic.runner": (("streamed", "whole"), ENDS["messages"]),
    "anthropic.threadRunner": (("streamed", "whole"), ENDS["messages"]),
    "ai.chat": (("streamed", "whole"), AI),
    "ai.compatible": (("streamed", "whole"), AI),
    "ai.responses": (("streamed", "whole"), AI),
    "ai.unstored": (("streamed", "whole"), AI),
    "ai.messages": (("streamed", "whole"), AI),
    "ollama.chat": (("streamed", "whole"), ("stop", "stop")),
    "google.generate": (("streamed", "whole"), ("STOP", "STOP")),
    "google.chat": (("streamed", "whole"), ("STOP", "STOP")),
}
"""Driver → its methods, and its names for the finish reasons of the two turns."""
SCENARIOS = [
    (f"{client}-{way}-{kind}", client, way, kind)
    for client, (ways, _) in CLIENTS.items()
    for way in ways
    for kind in KINDS
]


@frozen
class Run:
    """Output of the Node process."""

    model: Model
    tasks: dict[str, Task]
    lines: dict[str, Any]
    """Scenario id → its line."""
    errors: str


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    if not (NODE / "node_modules").is_dir():
        pytest.skip("tests/node/node_modules is missing: npm ci --prefix tests/node")
    model = Model()
    tasks = {id: model.task(kind) for id, _, _, kind in SCENARIOS}
    settings = Settings(upstreams={"model": {"url": "http://model.test"}})
    with uvicorn_server(Proxy(settings, apps={"model": model.app})) as served:
        told = [{"id": i, "client": client, "way": way, "task": asdict(tasks[i])} for i, client, way, _ in SCENARIOS]
        done = subprocess.run(
            [node, "main.mjs"],
            cwd=NODE,
            input=json.dumps({"url": served.url, "scenarios": told}),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=LIMIT,
            check=False,
        )
    lines = {line["id"]: line for line in map(json.loads, filter(None, done.stdout.split("\n")))}
    yield Run(model, tasks, lines, done.stderr)


@pytest.mark.parametrize(("id", "client"), [pytest.param(id, client, id=id) for id, client, _, _ in SCENARIOS])
def test_node(run, id, client):
    assert id in run.lines, run.errors
    line = run.lines[id]
    assert "error" not in line, line["error"]
    outcome = Outcome(**line["outcome"])
    calls, end = CLIENTS[client][1]
    run.model.check(run.tasks[id], outcome, calls=calls, end=end)
