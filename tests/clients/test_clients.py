"""The official openai client completes a two-turn conversation with a tool, in every deployment.

The model is the sample model, which knows the tools only from its prompt; tool name, argument names and the result are
random in each run. Each format is taught in each deployment, with one of the request methods (streamed, complete, the
`.stream()` helper); without `-m long` only in some of the deployments.
"""

import itertools
import json
import random
import string
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import fastapi
import httpx
import httpx2
import openai
import pytest
from attrs import frozen
from starlette.applications import Starlette
from starlette.responses import StreamingResponse
from starlette.routing import Mount
from support.servers import Served, hypercorn_server, uvicorn_server
from support.validators import assert_valid, validate_chat_stream, validate_chat_whole

from statemachine import FORMATS
from streamtool import sample
from streamtool.middleware import ToolMiddleware
from streamtool.models.families import is_teachable
from streamtool.proxy import Proxy
from streamtool.settings import Settings
from streamtool.testing import text
from streamtool.transport import SyncToolTransport, ToolTransport

WAYS = ("streamed", "whole", "helper")
TAUGHT = sorted(filter(is_teachable, FORMATS))
"""Formats that a model may be taught; formats of special tokens take the same code path here."""
SETTINGS = Settings(models=[{"match": name, "format": name} for name in TAUGHT])
"""A model for each format, named after the format that it is taught."""

PLACES = (
    "proxy, uvicorn",
    "proxy, hypercorn-trio",
    "bare, hypercorn-trio",
    "fastapi, uvicorn",
    "starlette mount, uvicorn",
    "bare, uvicorn",
    "transport, httpx",
    "transport, httpx2",
)
formats = pytest.mark.parametrize("format_", TAUGHT)
ways = pytest.mark.parametrize("way", WAYS)


def word(least: int = 4) -> str:
    return random.choice(string.ascii_lowercase) + "".join(
        random.choices(string.ascii_lowercase + string.digits + "_", k=random.randint(least, 12))
    )


@frozen
class Task:
    """Tools with unknown names, and the user's request for them."""

    tools: list[Any]
    results: dict[str, str]
    """Tool name → its result."""

    @classmethod
    def new(cls) -> "Task":
        kinds = [
            {"type": "string"},
            {"type": "integer"},
            {"type": "boolean"},
            {"type": "array", "items": {"type": "string"}},
        ]
        first = {word(8): kind for kind in kinds}
        tools = {word(8): first, word(8): {word(): {"type": "string"}}}
        results = {name: f'Result {word(8)} & <b>"{random.randint(0, 10**9)}"</b>' for name in tools}
        return cls([cls.tool(name, properties) for name, properties in tools.items()], results)

    @staticmethod
    def tool(name: str, properties: dict[str, Any]) -> dict[str, Any]:
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        return {"type": "function", "function": {"name": name, "description": "Does it.", "parameters": parameters}}

    @property
    def question(self) -> list[Any]:
        return [
            {"role": "system", "content": "You are a helper."},
            {"role": "user", "content": f'Use {next(iter(self.results))}, please, with "Grüße <&> 🌡" and 42.'},
        ]

    def check_call(self, name: str, arguments: str) -> None:
        found = next(tool["function"] for tool in self.tools if tool["function"]["name"] == name)
        properties = found["parameters"]["properties"]
        given = json.loads(arguments)
        assert set(given) == set(properties)
        types = {"string": str, "integer": int, "boolean": bool, "array": list}
        for key, value in given.items():
            assert type(value) is types[properties[key]["type"]], (key, value)

    def answered(self, message: Any) -> list[Any]:
        calls = [
            {"id": c.id, "type": "function", "function": {"name": c.function.name, "arguments": c.function.arguments}}
            for c in message.tool_calls
        ]
        return [
            *self.question,
            {"role": "assistant", "content": message.content, "tool_calls": calls},
            *({"role": "tool", "tool_call_id": c["id"], "content": self.results[c["function"]["name"]]} for c in calls),
        ]


def together(chunks: list[Any]) -> Any:
    """Return the message accumulated from streamed chunks."""
    content, reason = "", None
    calls: list[dict[str, Any]] = []
    for chunk in chunks:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reason = choice.finish_reason or reason
            for part in choice.delta.tool_calls or ():
                if part.index == len(calls):
                    function = {"name": part.function.name, "arguments": ""}
                    calls.append({"id": part.id, "type": "function", "function": function})
                assert part.index == len(calls) - 1
                calls[-1]["function"]["arguments"] += part.function.arguments or ""
    message = {"role": "assistant", "content": content, "tool_calls": calls or None}
    return openai.types.chat.ChatCompletionMessage.model_validate(message), reason


def ask(client: openai.OpenAI, way: str, **request: Any) -> tuple[Any, str]:
    match way:
        case "streamed":
            return together(list(client.chat.completions.create(stream=True, **request)))
        case "whole":
            choice = client.chat.completions.create(**request).choices[0]
        case _:
            with client.chat.completions.stream(**request) as stream:
                for _ in stream:
                    pass
                choice = stream.get_final_completion().choices[0]
    return choice.message, choice.finish_reason


async def ask_async(client: openai.AsyncOpenAI, way: str, **request: Any) -> tuple[Any, str]:
    match way:
        case "streamed":
            async with await client.chat.completions.create(stream=True, **request) as stream:
                return together([chunk async for chunk in stream])
        case "whole":
            choice = (await client.chat.completions.create(**request)).choices[0]
        case _:
            async with client.chat.completions.stream(**request) as helper:
                async for _ in helper:
                    pass
                choice = (await helper.get_final_completion()).choices[0]
    return choice.message, choice.finish_reason


def first(task: Task, message: Any, reason: str) -> list[Any]:
    """Check the first reply, and return the messages of the second turn."""
    assert reason == "tool_calls"
    assert message.tool_calls[0].function.name == next(iter(task.results))
    for call in message.tool_calls:
        task.check_call(call.function.name, call.function.arguments)
    return task.answered(message)


def second(task: Task, messages: list[Any], message: Any, reason: str) -> None:
    assert reason == "stop"
    assert not message.tool_calls
    for result in messages:
        if result["role"] == "tool":
            assert result["content"] in message.content


def converse(client: openai.OpenAI, way: str, model: str) -> None:
    task = Task.new()
    messages = first(task, *ask(client, way, model=model, messages=task.question, tools=task.tools))
    second(task, messages, *ask(client, way, model=model, messages=messages, tools=task.tools))


async def converse_async(client: openai.AsyncOpenAI, way: str, model: str) -> None:
    task = Task.new()
    messages = first(task, *await ask_async(client, way, model=model, messages=task.question, tools=task.tools))
    second(task, messages, *await ask_async(client, way, model=model, messages=messages, tools=task.tools))


def fastapi_app() -> Any:
    app = fastapi.FastAPI()

    @app.post("/v1/chat/completions")
    async def complete(request: fastapi.Request) -> StreamingResponse:
        body = await request.json()
        script = text(
            sample.reply(body["messages"]), usage={"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
        )
        return StreamingResponse(iter(script.steps), media_type="text/event-stream")  # type: ignore[arg-type]

    app.add_middleware(ToolMiddleware, settings=SETTINGS)
    return app


APPS = {
    "proxy": (lambda: Proxy(SETTINGS), ""),
    "fastapi": (fastapi_app, ""),
    "starlette mount": (
        lambda: Starlette(routes=[Mount("/deep/llm", app=ToolMiddleware(sample.app, settings=SETTINGS))]),
        "/deep/llm",
    ),
    "bare": (lambda: ToolMiddleware(sample.app, settings=SETTINGS), ""),
}


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    """Yield base URLs by name."""
    with ExitStack() as stack:
        found: dict[str, str] = {}

        def add(name: str, served: Served, path: str) -> None:
            found[name] = served.url + path + "/v1"

        for name, (make, path) in APPS.items():
            add(f"{name}, uvicorn", stack.enter_context(uvicorn_server(make())), path)
        add("proxy, hypercorn-trio", stack.enter_context(hypercorn_server(Proxy(SETTINGS))), "")
        add(
            "bare, hypercorn-trio",
            stack.enter_context(hypercorn_server(ToolMiddleware(sample.app, settings=SETTINGS))),
            "",
        )
        add("sample", stack.enter_context(uvicorn_server(sample.app)), "")
        yield found


@pytest.fixture(scope="module")
def clients(servers: dict[str, str]) -> Iterator[dict[str, openai.OpenAI]]:
    with ExitStack() as stack:
        found = {
            name: stack.enter_context(openai.OpenAI(base_url=url, api_key="none", max_retries=0))
            for name, url in servers.items()
        }
        for package, kind in ((httpx, httpx.Client), (httpx2, httpx2.Client)):
            client = kind(transport=SyncToolTransport(settings=SETTINGS))  # type: ignore[arg-type, call-arg]
            found[f"transport, {package.__name__}"] = stack.enter_context(
                openai.OpenAI(base_url=servers["sample"], api_key="none", max_retries=0, http_client=client)  # type: ignore[arg-type]
            )
        yield found


def combinations() -> Iterator[Any]:
    """Yield combinations of place, format and method: each format in two places, each method in each place, others
    `long`.
    """
    for (at, place), (number, format_) in itertools.product(enumerate(PLACES), enumerate(TAUGHT)):
        rare = (number - at) % 8 or format_ == "tag"  # `tag` is compiled for each task
        marks = [pytest.mark.long] if rare and place != PLACES[0] else []
        yield pytest.param(place, format_, WAYS[(number + at) % len(WAYS)], marks=marks, id=f"{place}-{format_}")


@pytest.mark.parametrize(("place", "format_", "way"), list(combinations()))
def test_every_deployment(clients, place, format_, way):
    converse(clients[place], way, format_)


@ways
def test_every_request_method_with_the_proxy(clients, way):
    for format_ in ("tool_call", "invoke", "pythonic"):
        converse(clients["proxy, uvicorn"], way, format_)


# the openai client leaves its generators unfinished at [DONE], which trio warns about
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.anyio
@pytest.mark.parametrize("package", [httpx, httpx2], ids=["httpx", "httpx2"])
@ways
@pytest.mark.parametrize("taught", [TAUGHT[::16], pytest.param(TAUGHT, marks=pytest.mark.long)], ids=["some", "all"])
async def test_the_transport_without_a_server(package, way, taught):
    inner = package.ASGITransport(app=sample.app)
    async with package.AsyncClient(transport=ToolTransport(inner, settings=SETTINGS)) as http:
        client = openai.AsyncOpenAI(base_url="http://sample.test/v1", api_key="none", max_retries=0, http_client=http)
        for format_ in taught:
            await converse_async(client, way, format_)


@pytest.fixture(scope="module")
def http():
    with httpx.Client(timeout=30) as client:
        yield client


@formats
def test_every_stream_is_valid(servers, http, format_):
    task = Task.new()
    for way in ("streamed", "whole")[:: 1 if format_ in ("tool_call", "invoke") else 2]:
        body = {
            "model": format_, "messages": task.question, "tools": task.tools, "stream": way == "streamed",
            "tool_choice": "required", "stream_options": {"include_usage": True} if way == "streamed" else None,
        }  # fmt: skip
        body = {key: value for key, value in body.items() if value is not None}
        for place in ("proxy, uvicorn", "proxy, hypercorn-trio", "fastapi, uvicorn", "starlette mount, uvicorn"):
            response = http.post(servers[place] + "/chat/completions", json=body)
            if way == "streamed":
                assert_valid(validate_chat_stream(response.content, body, headers=dict(response.headers)))
            else:
                assert_valid(validate_chat_whole(response.content, body))


def test_errors_are_raised_as_the_clients_own_exceptions(clients):
    client = clients["proxy, uvicorn"]
    task = Task.new()
    with pytest.raises(openai.BadRequestError, match="tool_choice"):
        client.chat.completions.create(
            model="m",
            messages=task.question,
            tools=task.tools,
            tool_choice={"type": "function", "function": {"name": "nope"}},
        )
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="m", input="x")
    assert [model.id for model in client.models.list()][-1] == "sample"
