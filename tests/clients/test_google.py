"""The official google-genai client, synchronous and asynchronous: replies, chats, token counts and models."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from google import genai
from google.genai import errors, types
from support.clients import KINDS, TIMEOUT, Outcome, Task
from support.servers import uvicorn_server

from streamtool.middleware import ToolMiddleware
from streamtool.proxy import Proxy
from streamtool.settings import Settings
from streamtool.testing import Script, ScriptedUpstream, event, status, text

pytestmark = pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession")
"""A warning raised by the client itself if aiohttp is installed."""

kinds = pytest.mark.parametrize("kind", KINDS)
ways = pytest.mark.parametrize("way", ["streamed", "whole", "chat"])


def client_of(url: str, key: str = "none") -> genai.Client:
    return genai.Client(
        api_key=key, vertexai=False, http_options=types.HttpOptions(base_url=url, timeout=int(1000 * TIMEOUT))
    )


@pytest.fixture(scope="module")
def client(place: Any) -> Iterator[genai.Client]:
    client = client_of(place.url)
    yield client
    client.close()


def config_of(task: Task) -> types.GenerateContentConfig:
    declared = [
        types.FunctionDeclaration(
            name=offer.name, description=offer.description, parameters_json_schema=offer.parameters
        )
        for offer in task.offers
    ]
    return types.GenerateContentConfig(
        system_instruction=task.system,
        tools=[types.Tool(function_declarations=declared)],
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )


class Talk:
    """One conversation, with one of the client's APIs."""

    def __init__(self, client: genai.Client, way: str, task: Task) -> None:
        self.config = config_of(task)
        self.client, self.way, self.model = client, way, task.model
        self.contents: list[types.Content] = []
        self.chat = client.chats.create(model=task.model, config=self.config) if way == "chat" else None

    def say(self, parts: list[types.Part]) -> tuple[str, list[types.FunctionCall], str]:
        """Return the text, the calls and the finish reason of the reply."""
        self.contents.append(types.Content(role="user", parts=parts))
        asked: dict[str, Any] = {"model": self.model, "contents": self.contents, "config": self.config}
        if self.chat is not None:
            chunks = list(self.chat.send_message_stream(parts))
        elif self.way == "streamed":
            chunks = list(self.client.models.generate_content_stream(**asked))
        else:
            chunks = [self.client.models.generate_content(**asked)]
        said = [part for chunk in chunks for part in chunk.candidates[0].content.parts]
        self.contents.append(types.Content(role="model", parts=[part for part in said if part != types.Part(text="")]))
        usage = chunks[-1].usage_metadata
        assert (usage.prompt_token_count, usage.candidates_token_count, usage.total_token_count) == (11, 7, 18)
        assert [chunk.candidates[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        calls = [part.function_call for part in said if part.function_call]
        return "".join(part.text or "" for part in said), calls, chunks[-1].candidates[0].finish_reason.value


@kinds
@ways
def test_two_turns(place: Any, client: genai.Client, way: str, kind: str):
    task = place.model.task(kind)
    talk = Talk(client, way, task)
    opening, made, reason = talk.say([types.Part(text=task.question)])
    calls = [(call.id, call.name, call.args) for call in made]
    answers = [
        types.Part(
            function_response=types.FunctionResponse(id=id, name=name, response={"output": task.result(name, args)})
        )
        for id, name, args in calls
    ]
    closing, more, end = talk.say(answers)
    assert not more
    place.model.check(task, Outcome(calls, [opening, closing], [reason, end]), calls="STOP", end="STOP")


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the only backend of this client
async def test_the_asynchronous_client(place: Any):
    task = place.model.task("one")
    with client_of(place.url) as client:
        async with client.aio as talk:
            stream = await talk.models.generate_content_stream(
                model=task.model, contents=task.question, config=config_of(task)
            )
            calls = [call async for chunk in stream for call in chunk.function_calls or ()]
    assert [(call.name, call.args) for call in calls] == [(call.name, call.arguments) for call in task.calls]


MODELS = Script((json.dumps({"data": [{"id": "m"}]}).encode(),), content_type="application/json")


@pytest.fixture(scope="module")
def keyed() -> Iterator[tuple[str, ScriptedUpstream]]:
    """Return a proxy with a client key, for an upstream that does not speak Gemini's protocol."""
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    app = ScriptedUpstream(lambda ask: MODELS if ask.path.endswith("/models") else text("Good day.", usage=usage))
    settings = Settings(
        upstreams={"u": {"url": "http://model.test", "key": "sk-upstream"}},
        models=[{"match": "m", "context": 4096}],
        client_keys={"me": "mine"},
    )
    with uvicorn_server(Proxy(settings, apps={"u": app})) as served:
        yield served.url, app


def test_tokens_are_counted_and_models_listed(keyed: tuple[str, ScriptedUpstream]):
    client = client_of(keyed[0], "mine")
    short = client.models.count_tokens(model="m", contents="hi").total_tokens
    assert 0 < short < client.models.count_tokens(model="m", contents="hi " * 100).total_tokens
    assert [model.name for model in client.models.list()] == ["models/m"]
    model = client.models.get(model="m")
    assert (model.input_token_limit, model.supported_actions) == (4096, ["generateContent", "countTokens"])
    with pytest.raises(errors.ClientError) as caught:
        client.models.get(model="no-such-model")
    assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")
    client.close()


def test_a_key_may_be_in_the_query(keyed: tuple[str, ScriptedUpstream]):
    url, app = keyed
    path = f"{url}/v1beta/models/m:generateContent"
    asked = {"contents": [{"parts": [{"text": "hi"}]}]}
    refused = httpx.post(path, json=asked, params={"key": "wrong"})
    assert (refused.status_code, refused.json()["error"]["status"]) == (401, "UNAUTHENTICATED")
    app.requests.clear()
    reply = httpx.post(path, json=asked, params={"key": "mine"})
    assert reply.json()["candidates"][0]["content"]["parts"] == [{"text": "Good day."}]
    assert "mine" not in f"{app.requests[0].scope['query_string']}{app.requests[0].scope['raw_path']}"


def test_a_stream_without_sse_is_an_array(keyed: tuple[str, ScriptedUpstream]):
    asked = {"contents": [{"parts": [{"text": "hi"}]}]}
    reply = httpx.post(
        f"{keyed[0]}/v1beta/models/m:streamGenerateContent", json=asked, headers={"x-goog-api-key": "mine"}
    )
    assert reply.headers["content-type"] == "application/json"
    chunks = [types.GenerateContentResponse.model_validate(chunk) for chunk in reply.json()]
    assert "".join(chunk.text or "" for chunk in chunks) == "Good day."
    assert [chunk.candidates[0].finish_reason for chunk in chunks[-2:]] == [None, types.FinishReason.STOP]


def test_unsupported_features_are_rejected_with_the_clients_own_error(keyed: tuple[str, ScriptedUpstream]):
    client = client_of(keyed[0], "mine")
    with pytest.raises(errors.ClientError) as caught:
        client.models.embed_content(model="m", contents="x")
    assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")
    assert "mbedContent" in caught.value.message
    client.close()


SLOW = status(429, "slow down")
BROKEN = Script((*text("Good", done=False, finish=None).steps, event({"error": {"message": "broken pipe"}})))


@pytest.mark.parametrize("way", ["streamed", "whole"])
@pytest.mark.parametrize(("script", "said"), [(SLOW, "slow down"), (BROKEN, "broken pipe")])
def test_errors(way: str, script: Script, said: str):
    """Including errors in a stream that has begun."""
    with uvicorn_server(ToolMiddleware(ScriptedUpstream(script), app_protocol="chat")) as served:
        client = client_of(served.url)
        ask = client.models.generate_content if way == "whole" else client.models.generate_content_stream
        with pytest.raises(errors.APIError, match=said) as caught:
            list(ask(model="m", contents="hi"))
        client.close()
    if script is SLOW:
        assert (caught.value.code, caught.value.status) == (429, "RESOURCE_EXHAUSTED")
