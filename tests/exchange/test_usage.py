"""The token usage reported to a client: that of the last attempt; estimates are marked."""

import json
from typing import Any

import anthropic
import httpx
import openai
import pytest
import trio
from support.dialects import CLIENTS, PATHS, UPSTREAMS, USAGE, Ask, events, read, said, write
from support.servers import uvicorn_server
from support.sweeps import each

from streamtool.exchange.interfaces import MOMENT
from streamtool.exchange.record import Record
from streamtool.middleware import ToolMiddleware
from streamtool.settings import Settings
from streamtool.testing import Die, Hang, Script, ScriptedUpstream, stream_asgi
from streamtool.transport import SyncToolTransport, ToolTransport

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
ASK = Ask((("user", "Ping it."),), (("ping", "Pings.", SCHEMA),))
CALL = '<tool_call>{"name": "ping", "arguments": {"x": 1}}</tool_call>'
UNKNOWN = '<tool_call>{"name": "pong", "arguments": {}}</tool_call>'
ONE = {"chat": {"parallel_tool_calls": False}, "responses": {"parallel_tool_calls": False},
       "messages": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}}  # fmt: skip
"""How each client limits a reply to one call."""
COUNTED = {"chat": {"stream_options": {"include_usage": True}}}

both = pytest.mark.anyio
clients = each("client", CLIENTS)
streamed = each("stream", [True, False], ids=["streamed", "whole"])


class Talk:
    """A request against scripted replies."""

    def __init__(self, *replies: Script, upstream: str = "chat") -> None:
        self.upstream = ScriptedUpstream(*replies)
        self.records: list[Record] = []
        self.app = ToolMiddleware(
            self.upstream, settings=Settings(), app_protocol=upstream, on_exchange=self.records.append
        )

    async def ask(self, client: str, *, stream: bool, **fields: Any) -> bytes:
        ask = Ask(ASK.turns, ASK.tools, stream)
        body = {**write(client, ask), **(COUNTED.get(client, {}) if stream else {}), **fields}
        async with stream_asgi(self.app, PATHS[client], body=json.dumps(body).encode()) as reply:
            return await reply.body()

    @property
    def record(self) -> Record:
        return self.records[0]


@pytest.mark.trio
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_client_that_takes_the_end_slowly_gets_all_of_it(stream: bool, autojump_clock: Any):
    """The time limit for the usage does not cancel the last write."""
    app = ToolMiddleware(ScriptedUpstream(said("ollama", CALL)), settings=Settings(), app_protocol="ollama")
    body = json.dumps({**write("chat", Ask(ASK.turns, ASK.tools, stream)), **ONE["chat"]}).encode()
    sent: list[bytes] = []

    async def receive() -> Any:
        if sent or asked:
            await trio.sleep_forever()
        asked.append(True)
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        await trio.sleep(3 * MOMENT)
        sent.append(message.get("body", b""))

    asked: list[bool] = []
    scope = {"type": "http", "method": "POST", "path": PATHS["chat"], "headers": [], "query_string": b""}
    await app(scope, receive, send)
    got = read("chat", b"".join(sent), stream=stream)
    assert (got.parts, got.reason) == ((("ping", '{"x": 1}'),), "calls")


def own(data: bytes, *, stream: bool) -> Any:
    """Return our extra field next to the last usage that the client receives, or None."""
    for told in reversed(events(data) if stream else [json.loads(data)]):
        for holder in (told, told.get("response") or {}):
            if holder.get("usage"):
                return holder["usage"].get("streamtool")
    raise AssertionError("no counts")


def silent(script: Script, *steps: Any) -> Script:
    """Return the same reply without its end: the finish reason, the usage and the end marker."""
    return Script((*script.steps[:-3], *steps), script.status, script.content_type)


@both
@clients
@streamed
async def test_the_usage_is_that_of_the_last_attempt(client: str, stream: bool):
    talk = Talk(said("chat", UNKNOWN), said("chat", CALL))
    data = await talk.ask(client, stream=stream)
    assert talk.record.attempts == ("unknown tool",)
    assert read(client, data, stream=stream).usage == USAGE
    cost = own(data, stream=stream)["retried"]
    assert cost["input_tokens"] > 0
    usage = talk.record.usage
    assert (usage.input, usage.output, usage.estimated) == (*USAGE, False)
    assert usage.retried is not None
    assert (usage.retried.input, usage.retried.output) == (cost["input_tokens"], cost["output_tokens"])


@both
@clients
@streamed
@each("upstream", UPSTREAMS)
async def test_a_reply_that_ends_after_one_call_waits_for_its_usage(client: str, stream: bool, upstream: str):
    talk = Talk(said(upstream, CALL), upstream=upstream)
    data = await talk.ask(client, stream=stream, **ONE[client])
    got = read(client, data, stream=stream)
    assert (got.parts, got.usage, got.reason) == ((("ping", '{"x": 1}'),), USAGE, "calls")
    assert own(data, stream=stream) is None
    assert not talk.record.usage.estimated


@pytest.mark.trio
@clients
@streamed
async def test_a_silent_upstream_is_abandoned_and_the_estimate_is_marked(
    autojump_clock: Any, client: str, stream: bool
):
    talk = Talk(silent(said("chat", CALL), Hang()))
    began = trio.current_time()
    data = await talk.ask(client, stream=stream, **ONE[client])
    assert trio.current_time() - began == pytest.approx(MOMENT)
    assert read(client, data, stream=stream).reason == "calls"
    assert own(data, stream=stream) == {"estimated": True}
    assert talk.record.usage.estimated
    assert talk.record.usage.input > 100
    assert 10 < talk.record.usage.output < 30


@pytest.mark.trio
@pytest.mark.parametrize("more", [f"\n{CALL}", "\nDone, and well.", "\n<think>Now</think>"])
async def test_a_model_that_continues_is_stopped_immediately(autojump_clock: Any, more: str):
    talk = Talk(silent(said("chat", CALL + more), Hang()))
    began = trio.current_time()
    data = await talk.ask("chat", stream=True, **ONE["chat"])
    assert trio.current_time() == began
    assert read("chat", data, stream=True).parts == (("ping", '{"x": 1}'),)
    assert own(data, stream=True) == {"estimated": True}


@both
@clients
@streamed
@each("end", [(), (Die(),), (b'data: {"error": {"message": "broken"}}\n\n',), (b"data: {{{\n\n",)])
async def test_the_reply_is_complete_however_the_wait_ends(client: str, stream: bool, end: tuple[Any, ...]):
    talk = Talk(silent(said("chat", CALL), *end))
    data = await talk.ask(client, stream=stream, **ONE[client])
    got = read(client, data, stream=stream)
    assert (got.parts, got.reason, got.error) == ((("ping", '{"x": 1}'),), "calls", None)
    assert talk.record.error is None
    assert own(data, stream=stream) == {"estimated": True}


@pytest.mark.trio
async def test_the_call_does_not_wait_for_the_usage(autojump_clock: Any):
    talk = Talk(silent(said("chat", CALL), Hang()))
    body = json.dumps({**write("chat", ASK), **ONE["chat"]}).encode()
    began = trio.current_time()
    async with stream_asgi(talk.app, PATHS["chat"], body=body) as reply:
        async for piece in reply:
            if b'"finish_reason":"tool_calls"' in piece:
                assert trio.current_time() == began


@both
@pytest.mark.parametrize(("upstream", "told"), [("chat", None), ("messages", USAGE[0])])
async def test_a_message_starts_with_the_input_tokens(upstream: str, told: int | None):
    talk = Talk(said(upstream, "Hello."), upstream=upstream)
    start = events(await talk.ask("messages", stream=True))[0]["message"]["usage"]["input_tokens"]
    size = len(talk.upstream.requests[0].body) // 4
    assert start == (size if told is None else told)


@both
async def test_missing_usage_is_estimated():
    script = said("chat", "Hello.")
    kept = tuple(step for step in script.steps if b'"usage"' not in step)
    talk = Talk(Script(kept, script.status, script.content_type))
    data = await talk.ask("messages", stream=True)
    assert own(data, stream=True) == {"estimated": True}
    assert events(data)[-2]["usage"]["input_tokens"] > 0


@both
async def test_a_transport_waits_for_the_usage_too():
    inner = httpx.ASGITransport(ScriptedUpstream(said("chat", CALL)))
    async with httpx.AsyncClient(transport=ToolTransport(inner), base_url="http://model.test") as client:
        body = {**write("chat", Ask(ASK.turns, ASK.tools, True)), **ONE["chat"], **COUNTED["chat"]}
        data = (await client.post("/v1/chat/completions", json=body)).content
    assert read("chat", data, stream=True).usage == USAGE


def test_the_official_clients_read_the_usage_over_sockets():
    """The synchronous transport cannot wait: it gives a marked estimate."""
    model = ScriptedUpstream(said("chat", UNKNOWN), said("chat", CALL), said("chat", UNKNOWN), said("chat", CALL))
    tool = {"name": "ping", "input_schema": SCHEMA}
    with uvicorn_server(ToolMiddleware(model, app_protocol="chat")) as served:
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            body = write("chat", Ask(ASK.turns, ASK.tools, False))
            usage = client.chat.completions.create(**body).usage
            assert usage is not None
            assert (usage.prompt_tokens, usage.completion_tokens) == USAGE
            assert usage.model_extra is not None
            assert usage.model_extra["streamtool"]["retried"]["input_tokens"] > 0
        with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as claude:
            question: Any = {"role": "user", "content": "Ping it."}
            with claude.messages.stream(model="m", max_tokens=99, messages=[question], tools=[tool]) as stream:  # type: ignore[list-item]  # as a dict
                message = stream.get_final_message()
            assert (message.usage.input_tokens, message.usage.output_tokens) == USAGE
    with uvicorn_server(ScriptedUpstream(said("chat", CALL))) as served:
        http = httpx.Client(transport=SyncToolTransport(httpx.HTTPTransport()))
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0, http_client=http) as client:
            usage = client.chat.completions.create(
                **write("chat", Ask(ASK.turns, ASK.tools, False)), **ONE["chat"]
            ).usage
            assert usage is not None
            assert usage.model_extra == {"streamtool": {"estimated": True}}


@pytest.mark.trio
async def test_an_app_may_continue_after_its_reply_has_ended(autojump_clock: Any):
    finished = []
    model = ScriptedUpstream(said("chat", CALL))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await model(scope, receive, send)
        await trio.sleep(2)
        finished.append(scope["path"])

    body = json.dumps({**write("chat", ASK), **ONE["chat"]}).encode()
    async with stream_asgi(ToolMiddleware(app, app_protocol="chat"), PATHS["chat"], body=body) as reply:
        await reply.body()
        await trio.sleep(3)
    assert finished == ["/v1/chat/completions"]
