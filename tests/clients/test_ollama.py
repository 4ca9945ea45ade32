"""The official ollama client, synchronous and asynchronous, with `/api/chat`, `/api/generate` and the lists."""

import json
from collections.abc import Iterator
from typing import Any

import ollama
import pytest
from support.clients import KINDS, TIMEOUT, Outcome, Task
from support.servers import uvicorn_server

from streamtool.middleware import ToolMiddleware
from streamtool.proxy import Proxy
from streamtool.settings import Settings
from streamtool.testing import Script, ScriptedUpstream, event, status, text

kinds = pytest.mark.parametrize("kind", KINDS)
ways = pytest.mark.parametrize("way", ["streamed", "whole"])


@pytest.fixture(scope="module")
def client(place: Any) -> Iterator[ollama.Client]:
    with ollama.Client(host=place.url, timeout=TIMEOUT) as client:
        yield client


def tools(task: Task) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {"name": offer.name, "description": offer.description, "parameters": offer.parameters},
        }
        for offer in task.offers
    ]


def turn(client: ollama.Client, way: str, **request: Any) -> tuple[ollama.Message, str | None]:
    """Return the message as users assemble it, and its done reason."""
    if way == "whole":
        reply = client.chat(stream=False, **request)
        return reply.message, reply.done_reason
    content, calls, parts = "", [], []
    for part in client.chat(stream=True, **request):
        content += part.message.content or ""
        calls += part.message.tool_calls or ()
        parts.append(part)
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert (parts[-1].prompt_eval_count, parts[-1].eval_count) == (11, 7)
    return ollama.Message(role="assistant", content=content, tool_calls=calls or None), parts[-1].done_reason


@kinds
@ways
def test_chat(place: Any, client: ollama.Client, way: str, kind: str):
    task = place.model.task(kind)
    messages: list[Any] = [
        {"role": "system", "content": task.system},
        {"role": "user", "content": task.question},
    ]
    request = {"model": task.model, "tools": tools(task)}
    first, reason = turn(client, way, messages=messages, **request)
    made = [(call.function.name, dict(call.function.arguments)) for call in first.tool_calls]
    results = [{"role": "tool", "tool_name": name, "content": task.result(name, given)} for name, given in made]
    second, end = turn(client, way, messages=[*messages, first, *results], **request)
    assert not second.tool_calls
    calls = [(f"call_{number}", name, given) for number, (name, given) in enumerate(made)]  # the client drops their ids
    place.model.check(task, Outcome(calls, [first.content, second.content], [reason, end]), calls="stop", end="stop")


@pytest.fixture(scope="module")
def upstream() -> Iterator[tuple[ollama.Client, ScriptedUpstream]]:
    """Return the client of a proxy with an upstream other than Ollama."""
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    models = Script((json.dumps({"data": [{"id": "m"}]}).encode(),), content_type="application/json")
    app = ScriptedUpstream(
        lambda request: models if request.path.endswith("/models") else text("Good day.", usage=usage)
    )
    settings = Settings(
        upstreams={"u": {"url": "http://model.test", "key": "secret"}},
        models=[{"match": "m", "context": 4096}],
    )
    with (
        uvicorn_server(Proxy(settings, apps={"u": app})) as served,
        ollama.Client(host=served.url, timeout=TIMEOUT) as client,
    ):
        yield client, app


@ways
def test_generate(upstream: tuple[ollama.Client, ScriptedUpstream], way: str):
    client, app = upstream
    asked = {"model": "m", "prompt": "hi", "system": "Be short.", "options": {"temperature": 0.5, "num_predict": 9}}
    if way == "whole":
        reply = client.generate(stream=False, **asked)
        said = reply.response
    else:
        parts = list(client.generate(stream=True, **asked))
        said, reply = "".join(part.response or "" for part in parts), parts[-1]
    assert (said, reply.done, reply.done_reason, reply.eval_count) == ("Good day.", True, "stop", 2)
    body = app.requests[-1].json
    assert body["messages"] == [{"role": "system", "content": "Be short."}, {"role": "user", "content": "hi"}]
    assert (body["temperature"], body["max_tokens"]) == (0.5, 9)


@pytest.mark.anyio
async def test_the_asynchronous_client(place: Any):
    task = place.model.task("one")
    messages = [{"role": "user", "content": task.question}]
    async with ollama.AsyncClient(host=place.url, timeout=TIMEOUT) as client:
        stream = await client.chat(task.model, messages, tools=tools(task), stream=True)
        calls = [call.function async for part in stream for call in part.message.tool_calls or ()]
    assert [(call.name, call.arguments) for call in calls] == [(call.name, call.arguments) for call in task.calls]


def test_models_are_listed_and_shown(upstream: tuple[ollama.Client, ScriptedUpstream]):
    client, _ = upstream
    assert "m" in [model.model for model in client.list().models]
    shown = client.show("m")
    assert shown.capabilities == ["completion", "tools"]
    assert shown.modelinfo["streamtool.context_length"] == 4096
    assert list(client.ps().models) == []
    with pytest.raises(ollama.ResponseError) as caught:
        client.show("no-such-model")
    assert caught.value.status_code == 404
    assert "no-such-model" in caught.value.error


def test_unsupported_features_are_rejected_with_the_clients_own_error(upstream: tuple[ollama.Client, ScriptedUpstream]):
    client, _ = upstream
    with pytest.raises(ollama.ResponseError) as caught:
        client.embed("m", "x")
    assert caught.value.status_code == 404
    assert "/api/embed" in caught.value.error


SLOW = status(429, "slow down")
BROKEN = Script((*text("Good", done=False, finish=None).steps, event({"error": {"message": "broken pipe"}})))


@ways
@pytest.mark.parametrize(("script", "code", "said"), [(SLOW, 429, "slow down"), (BROKEN, None, "broken pipe")])
def test_errors(way: str, script: Script, code: int | None, said: str):
    """Including errors in a stream that has begun, where an error has no status."""
    with (
        uvicorn_server(ToolMiddleware(ScriptedUpstream(script), app_protocol="chat")) as served,
        ollama.Client(host=served.url, timeout=TIMEOUT) as client,
        pytest.raises(ollama.ResponseError, match=said) as caught,
    ):
        turn(client, way, model="m", messages=[{"role": "user", "content": "hi"}])
    if code is not None:
        assert caught.value.status_code == code
