"""The first requests of a process find everything imported and compiled: a server does this before it is ready.

Counted, so that a busy machine makes no difference; `benchmarks/start.py` measures how long these requests take.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.agent_requests import AgentRequest, claude_code, codex, hermes, opencode
from support.dialects import PATHS, said
from support.servers import ROOT, free_port, uvicorn_server, wait_for

from streamtool.exchange.exchange import Exchange
from streamtool.exchange.interfaces import NO_SERVICES
from streamtool.server import services
from streamtool.settings import Settings
from streamtool.testing import Recorded, Script, ScriptedUpstream

SERVE = """
import re, sys
compiler = re._compiler.compile
def compile(pattern, flags=0):
    print("compiled", repr(pattern))
    return compiler(pattern, flags)
re._compiler.compile = compile
sys.addaudithook(lambda event, given: print("imported", given[0]) if event == "import" else None)
from streamtool.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""A server that prints the modules it imports and the regular expressions it compiles."""
CALL = '<tool_call>\n{"name": "Read", "arguments": {"file_path": "shapes.py"}}\n</tool_call>'
REQUESTS = (claude_code(2), codex(2), opencode("chat", 2), hermes("chat", 1))


def answer(request: Recorded) -> Script:
    """Return a call to the first turn, some text to others, and 404 to questions about the server."""
    if not request.path.endswith(PATHS["chat"]):
        return Script((b"{}",), 404, "application/json")
    return said("chat", "The file contains <two> shapes." if b"assistant" in request.body else CALL)


def ask(url: str, asked: AgentRequest) -> None:
    """Send the request of an agent and read the whole reply."""
    headers = [(name, value) for name, value in asked.headers if name not in (b"host", b"content-length")]
    sent = httpx.post(url + PATHS[asked.protocol], content=asked.data, headers=headers, timeout=60)
    assert sent.status_code == 200, sent.text


def test_a_first_request_imports_no_module_and_compiles_no_expression(tmp_path: Path):
    output, port = tmp_path / "output", free_port()
    url = f"http://127.0.0.1:{port}"
    with uvicorn_server(ScriptedUpstream(answer)) as upstream, output.open("w") as out:
        argv = ("serve", "--port", str(port), "--upstream", upstream.url)
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen([sys.executable, "-u", "-c", SERVE, *argv], env=env, stdout=out, stderr=out)
        try:
            wait_for(lambda: _is_ready(url) or process.poll() is not None, "it is ready")
            before = len(output.read_text().splitlines())
            for asked in REQUESTS:
                ask(url, asked)
        finally:
            process.terminate()
            process.wait(60)
    lines = output.read_text().splitlines()
    assert any(line.startswith("imported streamtool") for line in lines[:before])
    assert [line for line in lines[before:] if line.startswith(("imported", "compiled"))] == []


def test_the_requests_of_a_rehearsal_are_served_in_every_protocol_of_agents(monkeypatch: pytest.MonkeyPatch):
    made: list[Exchange] = []

    def begin(*given: Any, **options: Any) -> Exchange:
        made.append(Exchange(*given, **options))
        return made[-1]

    monkeypatch.setattr(services, "Exchange", begin)
    services._rehearse(Settings(upstreams={"u": {"url": "http://u"}}), NO_SERVICES)  # type: ignore[dict-item]
    found = [(one.record().protocol, one.record().tools, one.record().history, one.record().outcome) for one in made]
    assert found == [
        (client, 2, True, outcome) for client in ("chat", "messages", "responses") for outcome in ("text", "calls")
    ]


@pytest.mark.parametrize("limits", [{"body": 10}, {"values": 1}, {"depth": 1}, {"tools": 1}])
def test_a_rehearsal_that_the_limits_reject_is_left_out(limits: dict[str, int]):
    services._rehearse(Settings(upstreams={"u": {"url": "http://u"}}, limits=limits), NO_SERVICES)  # type: ignore[dict-item,arg-type]


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False
