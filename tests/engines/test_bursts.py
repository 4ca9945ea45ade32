"""Requests without a pause, to a server that closes each connection after a stream: none of them fails."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import anyio
import httpx
import pytest
from support.engine import START, Engine
from support.servers import hypercorn_server, uvicorn_server

from streamtool import Proxy, Settings, SyncToolTransport, ToolTransport
from streamtool.agent import Agent, Final, ToolCallResult
from streamtool.probe import probe
from streamtool.settings import UpstreamSettings

pytestmark = pytest.mark.engines
BURST = 500
SMALL = 150
CALL_OR_ANSWER = r'root ::= "<tool_call>{\"name\": \"ping\", \"arguments\": {}}</tool_call>" | "Done."'
TOOL = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}


def body(*, stream: bool) -> dict[str, Any]:
    messages = [{"role": "user", "content": "Hello."}]
    return {"model": "noise", "messages": messages, "tools": [TOOL], "max_tokens": 2, "stream": stream}


@pytest.fixture(params=[uvicorn_server, hypercorn_server], ids=["uvicorn", "hypercorn"])
def proxy(request: pytest.FixtureRequest, llama: Engine) -> Iterator[str]:
    """Yield a proxy for the engine."""
    with request.param(Proxy(Settings(upstreams={"llama": {"url": llama.url}}))) as served:
        yield served.url


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_burst_through_the_proxy(proxy: str, stream: bool):
    seen: Counter[tuple[int, bool]] = Counter()
    with httpx.Client(base_url=proxy, timeout=START) as client:
        for _ in range(BURST):
            reply = client.post("/v1/chat/completions", json=body(stream=stream))
            seen[reply.status_code, '"error"' in reply.text] += 1
    assert seen == {(200, False): BURST}


@pytest.mark.parametrize("proxy", [uvicorn_server], indirect=True, ids=["uvicorn"])
def test_a_burst_of_several_clients_through_the_proxy(proxy: str):
    seen: Counter[tuple[int, bool]] = Counter()

    async def ask() -> None:
        async with httpx.AsyncClient(base_url=proxy, timeout=START) as client:
            for _ in range(BURST // 10):
                reply = await client.post("/v1/chat/completions", json=body(stream=True))
                seen[reply.status_code, '"error"' in reply.text] += 1

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(ask)

    anyio.run(main)
    assert seen == {(200, False): BURST}


@pytest.mark.anyio
async def test_a_burst_through_the_transport(llama: Engine):
    async with httpx.AsyncClient(transport=ToolTransport(), base_url=llama.url, timeout=START) as client:
        for _ in range(BURST):
            reply = await client.post("/v1/chat/completions", json=body(stream=True))
            assert '"finish_reason":"length"' in reply.text


@pytest.mark.parametrize("tools", [True, False], ids=["tools", "none"])
def test_a_burst_through_the_synchronous_transport(llama: Engine, tools: bool):
    asked = body(stream=True)
    if not tools:
        del asked["tools"]
    with httpx.Client(transport=SyncToolTransport(), base_url=llama.url, timeout=START) as client:
        for _ in range(SMALL):
            reply = client.post("/v1/chat/completions", json=asked)
            assert '"finish_reason":"length"' in reply.text


@pytest.mark.anyio
async def test_a_burst_of_an_agent(llama: Engine):
    async with Agent(llama.url, [ping], model="noise", options={"max_tokens": 2}) as agent:
        for _ in range(SMALL):
            assert await agent.ask("Hello.")


def ping() -> str:
    """Pings."""
    return "pong"


@pytest.mark.anyio
async def test_runs_of_an_agent_that_calls_its_tool(llama: Engine):
    """Each reply is randomly a call or the answer."""
    async with Agent(llama.url, [ping], model="noise", options={"grammar": CALL_OR_ANSWER}, max_turns=100) as agent:
        events = []
        for _ in range(15):
            async with agent.run("Ping.") as run:
                events += [event async for event in run]
    results = [event for event in events if isinstance(event, ToolCallResult)]
    assert {result.text for result in results} == {"pong"}
    assert [event.text for event in events if isinstance(event, Final)] == ["Done."] * 15


def test_probe_findings_do_not_depend_on_connections(llama: Engine):
    found = anyio.run(probe, UpstreamSettings("llama", llama.url))
    answers = [found.stream, found.tools, found.system, found.neighbours, found.prefill, found.json_schema, found.stop]
    assert found.target.protocol == "chat"
    assert "failed" not in [*(answer.word for answer in answers), *(taught.word for taught in found.formats)]
    assert found.stream.word == "streamed"
    assert found.json_schema.word in (
        "yes",
        "unclear",
    )  # noise may not end its string within the limit
