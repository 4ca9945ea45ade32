"""The dependencies of each part: attrs for the parser, the core's for the drivers, an extra for validation."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from streamtool import Agent, Settings, SettingsError, SyncToolTransport, ToolMiddleware, ToolTransport
from streamtool.settings import ToolSettings

ROOT = Path(__file__).resolve().parent.parent

ATTRS = {"attr", "attrs"}
CORE = ATTRS | {
    *("anyio", "httpx", "msgspec", "trio"),
    *("certifi", "h11", "httpcore", "idna", "outcome", "sniffio", "sortedcontainers", "typing_extensions"),
}
"""Packages that `pip install streamtool` installs, by import name."""

ONLY = """
import sys

class Only:
    def find_spec(name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in ({allowed!r} | sys.stdlib_module_names | {{"streamtool", "statemachine"}}):
            raise ModuleNotFoundError(f"No module named {{top!r}}", name=top)

sys.meta_path.insert(0, Only)
"""

PARSE = """
from streamtool import Parser
tools = [{"type": "function", "function": {"name": "ping", "parameters": {"properties": {"x": {"type": "integer"}}}}}]
parser = Parser(tools)
for event in [*parser.feed('Hi. <tool_call>{"name": "ping", "arguments": {"x": 1'), *parser.feed("}}</tool_call>"), *parser.close()]:
    print(event)
"""
EVENTS = """\
TextDelta(text='Hi. ')
CallStart(index=0, name='ping', id=None, format='tool_call')
ArgumentsDelta(index=0, text='{"x": 1')
ArgumentsDelta(index=0, text='}')
CallEnd(index=0, complete=True, repairs=())
"""

SERVE = """
import anyio, httpx
from streamtool import ToolMiddleware, ToolTransport

CALL = '<tool_call>{"name": "ping", "arguments": {"x": 1}}</tool_call>'
PING = {"type": "function", "function": {"name": "ping", "parameters": {"properties": {"x": {"type": "integer"}}}}}
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [PING]}

async def app(scope, receive, send):
    while (await receive())["more_body"]:
        pass
    body = b'data: {"choices": [{"index": 0, "delta": {"content": "%s"}}]}\\n\\ndata: [DONE]\\n\\n'
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body % CALL.replace('"', '\\\\"').encode()})

async def main():
    wrapped, bare = httpx.ASGITransport(ToolMiddleware(app)), httpx.ASGITransport(app)
    for transport in (wrapped, ToolTransport(bare)):
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = (await client.post("/v1/chat/completions", json=BODY)).json()
            print(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])

for backend in ("asyncio", "trio"):
    anyio.run(main, backend=backend)
"""


def run(code: str, allowed: set[str]) -> str:
    command = [sys.executable, "-W", "error", "-c", ONLY.format(allowed=allowed) + code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_parser_needs_only_attrs():
    assert run(PARSE, ATTRS) == EVENTS


def test_the_drivers_need_only_the_core_dependencies():
    assert run(SERVE, CORE) == '{"x": 1}\n' * 4


def test_the_core_dependencies_match_the_distribution():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {one.partition(">")[0] for one in project["dependencies"]} == {"anyio", "attrs", "httpx", "msgspec", "trio"}
    extras = project["optional-dependencies"]
    assert extras["validate"] == ["jsonschema-rs>=0.60"]
    assert all("streamtool[validate]" in extras[name] for name in ("serve", "mcp"))


async def app(scope, receive, send):
    raise AssertionError("nothing is asked")


SHELLS = {
    "middleware": lambda settings: ToolMiddleware(app, settings=settings),
    "transport": lambda settings: ToolTransport(settings=settings),
    "sync transport": lambda settings: SyncToolTransport(settings=settings),
}
CHECKED = {
    "all tools": Settings(arguments="complete"),
    "one tool": Settings(tools={"ping": ToolSettings(arguments="complete")}),
}
MISSING = r'{}: jsonschema-rs is missing; install the extra "validate": pip install "streamtool\[validate\]"'


@pytest.mark.parametrize("settings", CHECKED.values(), ids=CHECKED)
@pytest.mark.parametrize("shell", SHELLS.values(), ids=SHELLS)
def test_a_setting_that_needs_validation_names_the_extra(shell, settings, monkeypatch):
    shell(settings)
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    shell(Settings(tools={"ping": ToolSettings(arguments="stream")}))
    with pytest.raises(SettingsError, match=f"^{MISSING.format('arguments')}$"):
        shell(settings)


def test_an_agent_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(SettingsError, match=f"^{MISSING.format('agent')}$"):
        Agent("sample")


def test_a_driver_loads_no_unused_library():
    code = "import sys; from streamtool import Proxy; Proxy(); print('jsonschema_rs' in sys.modules)"
    assert run(code, CORE) == "False\n"
