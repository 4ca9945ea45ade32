"""The official openai client executes the tools of a real MCP server, as called by a model that only writes text.

openai client ─▶ proxy under uvicorn ─▶ a model that reads its tools and results in the prompt
      └─▶ official MCP client ─▶ MCP server, a separate process
"""

import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from support.clients import TIMEOUT, word
from support.servers import uvicorn_server

from streamtool.exchange.record import Record
from streamtool.proxy import Proxy
from streamtool.settings import Settings
from streamtool.testing import Recorded, Script, ScriptedUpstream, text

mcp = pytest.importorskip("mcp")
SERVER = str(Path(__file__).parent / "shelf_server.py")
OF_THE_SERVER = ["mcp_shelf_put", "mcp_shelf_find", "mcp_shelf_count-all"]
COUNT = 46
"""Tools that an agent with a few MCP servers registers."""
_RESULT = re.compile(r'<tool_response name="[\w-]+">\n(.*?)\n</tool_response>', re.DOTALL)


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def model(request: Recorded) -> Script:
    """Return a model that stores the thing of the task, finds it, counts, and then answers with what it has read."""
    messages = request.json["messages"]
    listed = messages[0]["content"]
    assert all(f"\n{name}(" in listed for name in OF_THE_SERVER)
    title, place = re.findall(r"`(\w+)`", messages[1]["content"])
    results = [found for message in messages[2:] for found in _RESULT.findall(message["content"])]
    match results:
        case []:
            return text("I put it there.\n", called("mcp_shelf_put", title=title, place=place))
        case [_]:
            return text(called("mcp_shelf_find", title=title, near=["here"]), "\n", called("mcp_shelf_count-all"))
        case _:
            return text(f"Found: {' / '.join(results)}")


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[str, ScriptedUpstream, list[Record]]]:
    records: list[Record] = []
    upstream = ScriptedUpstream(model)
    proxy = Proxy(Settings(upstreams={"m": {"url": "http://m.test"}}), apps={"m": upstream}, on_exchange=records.append)
    with uvicorn_server(proxy) as found:
        yield f"{found.url}/v1", upstream, records


def as_function(name: str, about: str, schema: Any) -> Any:
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


async def reply(client: openai.AsyncOpenAI, stream: bool, **request: Any) -> tuple[Any, str]:
    if not stream:
        choice = (await client.chat.completions.create(**request)).choices[0]
    else:
        async with client.chat.completions.stream(**request) as events:
            choice = (await events.get_final_completion()).choices[0]
    return choice.message, choice.finish_reason


@pytest.fixture
def anyio_backend() -> str:
    """Select asyncio: the openai client leaves generators unfinished, which trio warns about."""
    return "asyncio"


async def converse(client: openai.AsyncOpenAI, shelf: Any, tools: list[Any], task: str, stream: bool) -> Any:
    """Run the whole loop: return the names of the executed tools, the finish reason of each turn, and the last text."""
    messages: list[Any] = [{"role": "user", "content": task}]
    names: list[str] = []
    reasons: list[str] = []
    while "stop" not in reasons and len(reasons) < 5:
        message, reason = await reply(client, stream, model="m", messages=messages, tools=tools)
        reasons.append(reason)
        messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        for call in message.tool_calls or ():
            names.append(call.function.name)
            made = await shelf.call_tool(call.function.name, json.loads(call.function.arguments))
            assert not made.is_error
            messages.append({"role": "tool", "tool_call_id": call.id, "content": made.content[0].text})
    return names, reasons, message.content


@pytest.mark.anyio
async def test_a_client_executes_the_tools_of_an_mcp_server(served):
    url, upstream, records = served
    parameters = mcp.StdioServerParameters(command=sys.executable, args=[SERVER])
    async with (
        mcp.Client(mcp.stdio_client(parameters)) as shelf,
        openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=TIMEOUT) as client,
    ):
        listed = (await shelf.list_tools()).tools
        assert [tool.name for tool in listed] == OF_THE_SERVER
        tools = [as_function(tool.name, tool.description, tool.input_schema) for tool in listed]
        others = [as_function(f"own_tool_{i}", "Rests.", {"type": "object"}) for i in range(COUNT - len(tools))]
        ways = itertools.product((tools, tools + others), (True, False))
        for number, (offered, stream) in enumerate(ways, start=1):
            upstream.requests.clear()
            title, place = word(), word()
            task = f"Put `{title}` at `{place}` and see whether it is there."
            names, reasons, answer = await converse(client, shelf, offered, task, stream)
            assert names == OF_THE_SERVER
            assert reasons == ["tool_calls", "tool_calls", "stop"]
            assert answer == f"Found: {title} stands at {place} / {place}, not at ['here'] / {number}"
            prompts = [request.json["messages"] for request in upstream.requests]
            assert all(later[: len(before)] == before for before, later in itertools.pairwise(prompts))
            assert records[-1].tools == len(offered)
