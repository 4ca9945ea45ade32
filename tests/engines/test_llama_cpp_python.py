"""llama-cpp-python's server: it is recognized, and forces a demanded call with a grammar."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import openai
import pytest
from support.engine import Engine, served
from support.servers import uvicorn_server, wait_for

from streamtool import Proxy, Settings
from streamtool.exchange.record import Record

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("asking")]
SCHEMA: Any = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Oslo"]}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
"""A schema without unbounded strings, which the random model would rarely close."""
TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "description": "A tool.", "parameters": SCHEMA}}]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    pytest.importorskip("llama_cpp.server.app", reason="llama-cpp-python is not installed; see docs/engines.md")
    with served("llama_cpp_python_server.py", str(tmp_path_factory.mktemp("model")), health="/v1/models") as found:
        yield found


@pytest.fixture
def client(engine: Engine, request: pytest.FixtureRequest) -> Iterator[tuple[openai.OpenAI, Proxy, list[Record]]]:
    """Yield an SDK's client of a proxy in front of the server, and the records."""
    records: list[Record] = []
    upstream = {"url": engine.url, "protocol": getattr(request, "param", "auto")}
    app = Proxy(Settings(upstreams={"u": upstream}, retries=0), on_exchange=records.append)
    with uvicorn_server(app) as running:
        yield openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0), app, records


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": "hi"}]
    return client.chat.completions.create(
        **{"model": "noise", "messages": messages, "tools": TOOLS, "max_tokens": 300, **fields}
    )


def test_the_server_is_recognized(client: Any, engine: Engine):
    _, app, _ = client
    assert app.engines["u"].startswith("llama-cpp-python 0.")
    assert app.engines["u"].endswith(f" at {engine.url}: chat, window unknown, calls forced by grammar")


@pytest.mark.parametrize("client", ["auto", "completions"], indirect=True)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_demanded_call_is_forced_by_a_grammar(client: Any, stream: bool):
    sdk, _, records = client
    reply = ask(sdk, tool_choice="required", stream=stream)
    if stream:
        deltas = [call for chunk in reply if chunk.choices for call in chunk.choices[0].delta.tool_calls or ()]
        name, arguments = deltas[0].function.name, "".join(call.function.arguments or "" for call in deltas)
    else:
        (call,) = reply.choices[0].message.tool_calls
        name, arguments = call.function.name, call.function.arguments
    assert name == "get_weather"
    assert jsonschema_rs.is_valid(SCHEMA, json.loads(arguments))
    wait_for(lambda: records, "the exchange is recorded")
    assert (records[0].forced, records[0].attempts) == ("grammar", ())


def test_a_free_choice_is_not_constrained(client: Any):
    sdk, _, records = client
    assert ask(sdk, max_tokens=20).choices[0].finish_reason == "length"
    wait_for(lambda: records, "the exchange is recorded")
    assert records[0].forced == ""


def test_a_prompt_that_is_too_long_breaks_the_connection(client: Any):
    """The server does not report its window, and breaks the connection; `context` avoids that."""
    with pytest.raises(openai.InternalServerError) as caught:
        ask(client[0], messages=[{"role": "user", "content": "word " * 4000}])
    assert caught.value.status_code == 502
