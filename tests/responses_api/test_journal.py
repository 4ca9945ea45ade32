"""Background responses whose process has stopped, or seems to have: exactly one other process continues each.

The processes are middlewares with their own connections to one file. A process "stops" when its lease is overwritten.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.continuing import Continuing, Fault, settings_for
from support.dialects import chat
from support.validators import assert_valid, validate_responses_stream

from streamtool.core.clients import client_of
from streamtool.core.errors import UpstreamError
from streamtool.exchange.inputs import ExchangeInput, repeat
from streamtool.exchange.interfaces import Services
from streamtool.middleware import ToolMiddleware
from streamtool.protocols import responses
from streamtool.responses_api.journal import JournaledRequest, Lease, claim, forget_journal, pack, read_lease, unpack
from streamtool.settings import Settings, StoreSettings
from streamtool.store.replies import ClientStoreView, open_store
from streamtool.testing import Hang, Script, ScriptedUpstream, stream_asgi

both = pytest.mark.anyio

KEY = b"sk-very-secret"
HEADERS = (
    (b"content-type", b"application/json"),
    (b"authorization", b"Bearer " + KEY),
    (b"api-key", KEY),
    (b"cookie", b"a=" + KEY),
)
WRITE = {"type": "function", "name": "write", "parameters": {"type": "object", "properties": {"text": {}}}}
GIVEN = '{"text": "größe = 3.14159"}'
WHOLE = f'Look: <tool_call>{{"name": "write", "arguments": {GIVEN}}}</tool_call>'
AT = WHOLE.index("3.14") + 3
MARK = "text"
"""A token of the arguments."""


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def process(file: str) -> Iterator[Any]:
    """Return a function that makes a process in front of an upstream."""
    with ExitStack() as stack:

        def made(upstream: Any, **given: Any) -> ToolMiddleware:
            settings = settings_for(getattr(upstream, "kind", "unknown"), store=StoreSettings(file=file), **given)
            app = ToolMiddleware(getattr(upstream, "app", upstream), settings=settings)
            stack.callback(app.store.close)
            return app

        yield made


def create(app: ToolMiddleware, **given: Any) -> Any:
    asked = {"model": "m", "input": "Write.", "background": True, "tools": [WRITE], "parallel_tool_calls": True}
    return stream_asgi(app, "/v1/responses", body=json.dumps({**asked, **given}).encode(), headers=HEADERS)


def read(app: ToolMiddleware, id: str, query: str = "") -> Any:
    return stream_asgi(app, f"/v1/responses/{id}{query}", method="GET", headers=HEADERS)


async def poll(app: ToolMiddleware, id: str) -> Any:
    """Poll until the response has ended, and return it."""
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            found: Any = {}
            while found.get("status", "in_progress") == "in_progress":
                reply = read(app, id)
                found = json.loads(await (await start(tasks, reply)).body())
                await anyio.sleep(0.05)
            tasks.cancel_scope.cancel()
    return found


async def start(tasks: Any, reply: Any) -> Any:
    """Return a reply whose app may run until the tasks are cancelled."""

    async def run(*, task_status: Any) -> None:
        async with reply as begun:
            task_status.started(begun)
            await anyio.sleep_forever()

    return await tasks.start(run)


def view(app: ToolMiddleware) -> ClientStoreView:
    return ClientStoreView(app.store, client_of(HEADERS))


async def stop(app: ToolMiddleware, id: str, text: str = "") -> None:
    """Let the process seem to have stopped, after it has stored this text."""
    memory = view(app)
    if text:
        await wait_until(
            lambda: text.encode() in b"".join(one for one in journal(memory, id) if isinstance(one, bytes))
        )
    generation = read_lease(memory, id).generation
    memory.remember(f"lease {id}", Lease(0, generation).write())


async def wait_until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not condition():  # noqa: ASYNC110  another process, or the upstream, makes it true
            await anyio.sleep(0.02)


def journal(memory: ClientStoreView, id: str) -> list[ExchangeInput]:
    inputs, number = [], 0
    while (piece := memory.demand(f"journal {id} {number}")) is not None:
        inputs += unpack(piece)
        number += 1
    return inputs


def arguments(found: Any) -> list[str]:
    return [item["arguments"] for item in found["output"] if item["type"] == "function_call"]


@both
async def test_many_polls_of_two_processes_continue_a_response_once_and_the_first_one_ends(process: Any, file: str):
    upstream = Continuing("completions", WHOLE, Fault(AT, "hang"))
    first, *others = (process(upstream) for _ in range(3))
    async with anyio.create_task_group() as tasks:
        made = json.loads(await (await start(tasks, create(first))).body())
        await stop(first, made["id"], MARK)
        with closing(sqlite3.connect(file)) as base, base:
            assert not [row for row in base.execute("SELECT value FROM replies") if KEY in bytes(row[0])]
        ended = []
        async with anyio.create_task_group() as polls:
            for app in others * 4:
                polls.start_soon(lambda app: keep(ended, poll(app, made["id"])), app)
        await wait_until(lambda: upstream.app.left > 0)
        tasks.cancel_scope.cancel()
    assert len(upstream.requests) == 2
    assert [(found["status"], arguments(found)) for found in ended] == [("completed", [GIVEN])] * 8
    assert dict(upstream.requests[1].headers)["authorization"] == f"Bearer {KEY.decode()}"
    assert not journal(view(first), made["id"])


async def keep(found: list[Any], one: Any) -> None:
    found.append(await one)


def test_only_one_process_claims_a_response(file: str):
    settings = StoreSettings(file=file)
    stores = [open_store(settings) for _ in range(4)]
    memory = ClientStoreView(stores[0], "c")
    scope = {"path": "/v1/responses", "headers": [], "query_string": b"a=b"}
    memory.remember("journal r", JournaledRequest.of(scope, b'{"a":\n1}', "seed").write())
    memory.remember("journal r 0", pack([b"x", b""]))
    stores[0].close()
    with ThreadPoolExecutor(8) as threads:
        claims = [*threads.map(lambda n: claim(ClientStoreView(stores[n % 4], "c"), "r", settings), range(24))]
    [found] = [one for one in claims if one is not None]
    assert (found.generation, found.inputs, found.pieces) == (1, [b"x", b""], 1)
    assert (found.asked.body, found.asked.query) == (b'{"a":\n1}', b"a=b")
    for store in stores:
        store.close()


@both
async def test_a_reply_that_cannot_be_continued_begins_again_if_no_client_has_seen_it(process: Any):
    scripts = Script((*chat([WHOLE[:AT]], "die"), Hang())), Script((*chat([WHOLE], "stop"),))
    upstream = ScriptedUpstream(*scripts)
    first, other = process(upstream), process(upstream)
    async with anyio.create_task_group() as tasks:
        made = json.loads(await (await start(tasks, create(first))).body())
        await stop(first, made["id"], MARK)
        found = await poll(other, made["id"])
        assert (found["status"], arguments(found)) == ("completed", [GIVEN])
        tasks.cancel_scope.cancel()


@both
async def test_a_stream_that_cannot_be_continued_ends_with_an_error(process: Any):
    upstream = ScriptedUpstream(Script((*chat([WHOLE[:AT]], "die"), Hang())))
    first, other = process(upstream), process(upstream)
    async with anyio.create_task_group() as tasks:
        begun = await anext(await start(tasks, create(first, stream=True)))
        id = json.loads(begun.split(b"data: ")[1].partition(b"\n")[0])["response"]["id"]
        await stop(first, id, MARK)
        async with read(other, id, "?stream=true") as reply:
            events = await reply.body()
        assert_valid(validate_responses_stream(events))
        assert b"the server that was generating this response has stopped" in events
        found = await poll(other, id)
        assert found["status"] == "failed"
        tasks.cancel_scope.cancel()
    assert len(upstream.requests) == 1


def test_a_forgotten_journal_leaves_nothing_and_cannot_be_claimed(file: str):
    settings = StoreSettings(file=file)
    store = open_store(settings)
    memory = ClientStoreView(store, "c")
    scope = {"path": "/v1/responses", "headers": [], "query_string": b""}
    memory.remember("journal r", JournaledRequest.of(scope, b"{}", "seed").write())
    for piece in range(3):
        memory.remember(f"journal r {piece}", pack([b"x"]))
    forget_journal(memory, "r")
    assert [memory.demand(f"journal r{part}") for part in ("", " 0", " 1", " 2")] == [None] * 4
    assert claim(memory, "r", settings) is None
    store.close()


@both
async def test_a_response_whose_tools_this_server_executes_is_not_continued(process: Any):
    upstream = Continuing("completions", WHOLE, Fault(AT, "hang"))
    first, other = process(upstream), process(upstream)
    first.hosted = True
    async with anyio.create_task_group() as tasks:
        made = json.loads(await (await start(tasks, create(first))).body())
        await wait_until(lambda: len(upstream.requests) > 0)
        await stop(first, made["id"])
        found = await poll(other, made["id"])
        tasks.cancel_scope.cancel()
    assert found["status"] == "failed"
    assert "may have executed tools" in found["error"]["message"]
    assert len(upstream.requests) == 1


def test_an_exchange_is_repeated_with_all_its_attempts():
    """A reply that was rejected, one that died, and one that is open."""
    body = json.dumps({"model": "m", "input": "Write.", "background": True, "stream": True, "tools": [WRITE]}).encode()
    asked = JournaledRequest.of({"path": "/v1/responses", "headers": []}, body, "seed")
    one, other = (
        asked.exchange(
            Settings(app_protocol="completions", chat_template="none"),
            responses,
            {"headers": []},
            clock=lambda: 0.0,
            services=Services(),
            client="c",
        )
        for _ in range(2)
    )
    events = one.announce()
    for texts, error in (
        (["I do not have access to ", "any tools."], None),
        (["Look: <tool_call>", '{"name": "write", "arg'], UpstreamError("it broke")),
    ):
        one.request()
        events += one.respond(200, [])
        events += b"".join(one.feed(written(text)) for text in texts)
        events += b"" if error is not None else one.feed(written("", "stop") + b"data: [DONE]\n\n")
        events += one.close() if error is None else one.fail(error)
        assert one.retry
    one.request()
    events += one.respond(200, [])
    events += one.feed(written('arguments": {"text": "gr'))
    inputs = unpack(pack(one.log.next_for_journal()))
    assert not one.log.next_for_journal()
    assert other.announce() + repeat(other, inputs) == events
    assert other.record().resumed == one.record().resumed
    assert b"".join(one for one in inputs if isinstance(one, bytes)).count(b"Look") == 1


def written(text: str, end: str | None = None) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": end}]}).encode()


@pytest.mark.parametrize(
    ("tool", "stored"),
    [
        ({"type": "function", "name": "get", "parameters": {"properties": {"headers": {"type": "object"}}}}, True),
        ({"type": "function", "name": "get", "headers": {"a": "b"}}, True),
        ({"type": "mcp", "server_label": "s", "headers": {}}, True),
        ({"type": "mcp", "server_label": "s", "headers": {"x-key": "k"}}, False),
        ({"type": "mcp", "server_label": "s", "authorization": "k"}, False),
    ],
)
def test_a_request_whose_tools_contain_keys_is_not_stored(tool: Any, stored: bool):
    assert JournaledRequest.may_store({"tools": [WRITE, tool]}) is stored


@both
async def test_no_key_in_a_request_is_stored(process: Any, file: str):
    upstream = Continuing("completions", WHOLE, Fault(AT, "hang"))
    first, other = process(upstream), process(upstream)
    mcp = {"type": "mcp", "server_label": "s", "server_url": "https://mcp.test", "authorization": "moon-secret"}
    async with anyio.create_task_group() as tasks:
        made = json.loads(await (await start(tasks, create(first, tools=[WRITE, mcp]))).body())
        await wait_until(lambda: len(upstream.requests) > 0)
        await stop(first, made["id"])
        found = await poll(other, made["id"])
        assert "moon-secret" not in json.dumps(found)
        tasks.cancel_scope.cancel()
    assert found["status"] == "failed"
    stored = b"".join(part.read_bytes() for part in Path(file).parent.iterdir())
    assert made["id"].encode() in stored
    assert b"moon-secret" not in stored
