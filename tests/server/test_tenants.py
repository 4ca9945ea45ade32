"""Clients of a proxy are isolated: each is identified by its own key, and none can evict what others have stored."""

import base64
import json
import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.dialects import said, sse
from support.redis_server import places
from support.servers import Served, hypercorn_server, uvicorn_server, wait_for

from streamtool.core.clients import client_of, key_of
from streamtool.exchange.record import Record
from streamtool.observe.otel import OpenTelemetry
from streamtool.proxy import Proxy
from streamtool.settings import StoreSettings
from streamtool.store.replies import Store, client_store_of, open_store
from streamtool.store.shared_store import SharedStore
from streamtool.testing import Script, ScriptedUpstream

BASIC = "Basic " + base64.b64encode(b"gateway:secret").decode()
RESPONSES = "/v1/responses"


@pytest.fixture(params=[uvicorn_server, hypercorn_server], ids=["uvicorn", "hypercorn"])
def serve(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Return a function that serves a proxy with these settings."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(request.param(Proxy(**settings)))


@pytest.fixture(params=["memory", "file", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """Return a store of 1,600 bytes."""
    with places(tmp_path, request.param) as place:
        made = open_store(StoreSettings(**place, size=1600))
        yield made
        made.close()


def written(store: Store) -> None:
    """Wait until all writes are in the file: closing flushes them, and the next use opens the file again."""
    if isinstance(store, SharedStore):
        store.close()


def of(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"x-api-key", key.encode())]


def ask(served: Served, headers: dict[str, str], **fields: Any) -> httpx.Response:
    with httpx.Client(trust_env=False) as client:
        return client.post(served.url + RESPONSES, json={"model": "sample", **fields}, headers=headers)


@pytest.mark.parametrize("keys", [[], ["one", "two"]], ids=["without keys", "with keys"])
def test_clients_with_shared_credentials_cannot_read_each_other(serve: Any, keys: list[str]):
    served = serve(client_keys=keys)
    one, two = ({"authorization": BASIC, "x-api-key": key} for key in ("one", "two"))
    first = ask(served, one, input="My word is tulip.")
    assert first.status_code == 200
    stolen = ask(served, two, input="Which word?", previous_response_id=first.json()["id"])
    assert stolen.status_code in (400, 404)
    assert "tulip" not in stolen.text
    own = ask(served, {"authorization": "Bearer one"}, input="Which word?", previous_response_id=first.json()["id"])
    assert own.status_code == 200


WAYS = {
    "bearer": lambda key: {"authorization": f"Bearer {key}"},
    "x-api-key": lambda key: {"x-api-key": key},
    "shared Basic": lambda key: {"authorization": BASIC, "x-api-key": key},
}
"""How two clients send their keys."""
ways = pytest.mark.parametrize("shown", WAYS.values(), ids=WAYS)
PING = {"type": "function", "function": {"name": "ping", "description": "Pings the tulip.", "parameters": {}}}
WRITTEN = '<tool_call>{"name":  "ping",   "arguments": {}}</tool_call>'
"""In a spelling that our templates never use."""


def chat(served: Served, headers: dict[str, str], *turns: dict[str, Any], **fields: Any) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": "Ping."}, *turns], **fields}
    with httpx.Client(trust_env=False) as client:
        answer = client.post(served.url + "/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def called(answer: httpx.Response) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the message with the call of this response, without the fields that most clients drop, and the call's
    result.
    """
    [call] = answer.json()["choices"][0]["message"]["tool_calls"]
    kept = {name: call[name] for name in ("id", "type", "function")}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "pong"}
    return {"role": "assistant", "content": None, "tool_calls": [kept]}, result


@ways
def test_transcripts_and_tools_belong_to_the_client_that_received_them(serve: Any, shown: Any):
    upstream = ScriptedUpstream(said("chat", WRITTEN), said("chat", "Done."))
    with uvicorn_server(upstream) as behind:
        served = serve(upstreams={"up": {"url": behind.url}})
        history = called(chat(served, shown("one"), tools=[PING]))
        for key in ("two", "one"):
            chat(served, shown(key), *history)
    others, own = (request.body.decode() for request in upstream.requests[1:])
    assert (json.dumps(WRITTEN)[1:-1] in others, "Pings the tulip." in others) == (False, False)
    assert (json.dumps(WRITTEN)[1:-1] in own, "Pings the tulip." in own) == (True, True)


@ways
def test_signatures_belong_to_the_client_that_received_the_calls(serve: Any, shown: Any):
    part = {"functionCall": {"name": "ping", "args": {}}, "thoughtSignature": "tulip"}
    reply = {"candidates": [{"content": {"parts": [part], "role": "model"}, "index": 0, "finishReason": "STOP"}]}
    upstream = ScriptedUpstream(Script((sse(reply),)), said("gemini", "Done."))
    with uvicorn_server(upstream) as behind:
        served = serve(upstreams={"up": {"url": behind.url, "protocol": "gemini"}}, mode="native")
        history = called(chat(served, shown("one"), tools=[PING]))
        for key in ("two", "one"):
            chat(served, shown(key), *history, tools=[PING])
    others, own = (request.body.decode() for request in upstream.requests[1:])
    assert ('tulip"' in others.replace("Pings the tulip.", ""), '"thoughtSignature":"tulip"' in own) == (False, True)


class Accounts:
    """A Chat Completions upstream without tools for the key `poor`; records each key and whether tools were sent."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bool]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name: value.decode() for name, value in scope["headers"]}
        key = headers.get(b"x-api-key") or headers.get(b"authorization", "").partition(" ")[2]
        body = b""
        while (message := await receive()) and message["type"] == "http.request":
            body += message["body"]
            if not message["more_body"]:
                break
        self.seen.append((key, "tools" in json.loads(body)))
        status, steps = 200, said("chat", "Done.").steps
        if self.seen[-1] == ("poor", True):
            status, steps = 400, (b'{"error": {"message": "this model does not support tools"}}',)
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"".join(steps), "more_body": False})


@pytest.mark.parametrize("way", ["bearer", "x-api-key"])
def test_a_missing_capability_of_a_clients_account_is_not_applied_to_others(serve: Any, way: str):
    upstream = Accounts()
    with uvicorn_server(upstream, lifespan="off") as behind:
        served = serve(upstreams={"up": {"url": behind.url}}, mode="auto")
        for key in ("poor", "rich", "poor"):
            chat(served, WAYS[way](key), tools=[PING])
    assert upstream.seen == [("poor", True), ("poor", False), ("rich", True), ("poor", False)]


@pytest.mark.parametrize("keys", [[], ["one", "two"]], ids=["without keys", "with keys"])
def test_a_missing_capability_of_the_proxys_account_applies_to_all(serve: Any, keys: list[str]):
    upstream = Accounts()
    with uvicorn_server(upstream, lifespan="off") as behind:
        served = serve(upstreams={"up": {"url": behind.url, "key": "poor"}}, mode="auto", client_keys=keys)
        for key in ("one", "two"):
            chat(served, {"x-api-key": key}, tools=[PING])
    assert upstream.seen == [("poor", True), ("poor", False), ("poor", False)]


def test_log_record_metrics_and_spans_name_the_client_but_never_show_its_key(
    serve: Any, caplog: pytest.LogCaptureFixture
):
    keys = {"alice": "sk-alice-0123456789", "bob": "sk-bob-0123456789"}
    records: list[Record] = []
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    span = OpenTelemetry(provider)
    caplog.set_level(logging.DEBUG, logger="streamtool")
    served = serve(client_keys=keys, metrics=True, debug=True, on_exchange=lambda one: (span(one), records.append(one)))
    alice, bob = {"authorization": f"Bearer {keys['alice']}"}, {"authorization": BASIC, "x-api-key": keys["bob"]}
    assert ask(served, alice, input="Hello.").status_code == 200
    assert ask(served, bob, input="Hello.").status_code == 200
    assert ask(served, bob, input=[]).status_code == 400
    assert ask(served, {"authorization": "Bearer mallory"}, input="Hello.").status_code == 401
    wait_for(lambda: len(records) == 2, "both exchanges end")
    assert sorted(record.client for record in records) == ["alice", "bob"]
    assert sorted(span.attributes["streamtool.client"] for span in spans.get_finished_spans()) == ["alice", "bob"]
    logged = [record for record in caplog.records if record.name == "streamtool.exchange"]
    assert sorted(record.streamtool["client"] for record in logged) == ["", "alice", "bob", "bob"]
    assert any(", client alice (" in record.getMessage() for record in logged)
    assert "a request (responses) from bob was rejected with 400 at input" in [one.getMessage() for one in logged]
    with httpx.Client(trust_env=False) as client:
        page = client.get(served.url + "/metrics", headers=alice).text
    counted = [line for line in page.splitlines() if "_total{" in line]
    assert {line.partition("_total{")[0] for line in counted if 'client="bob"' in line} == {
        "streamtool_exchanges", "streamtool_tokens", "streamtool_errors"
    }  # fmt: skip
    assert any('client="alice"' in line for line in counted)
    shown = (
        page
        + caplog.text
        + repr(records)
        + repr([(span.name, *span.attributes.items()) for span in spans.get_finished_spans()])
    )
    for secret in (*keys.values(), "mallory", BASIC.partition(" ")[2]):
        assert secret not in shown
        assert client_of(of(secret)) not in shown


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([], b""),
        ([(b"Authorization", b"bearer  k ")], b"k"),
        ([(b"x-api-key", b"k")], b"k"),
        ([(b"x-api-key", b"other"), (b"authorization", b"Bearer k")], b"k"),
        ([(b"x-goog-api-key", b"other"), (b"X-Api-Key", b"k")], b"k"),
        ([(b"authorization", b"Basic YTpi"), (b"x-api-key", b"k")], b"k"),
        ([(b"authorization", b"Bearer "), (b"x-api-key", b"k")], b"k"),
        ([(b"authorization", b"Basic YTpi")], b""),
        ([(b"authorization", b"Basic YTpi"), (b"x-goog-api-key", b"k")], b"k"),
        ([(b"x-api-key", b"k"), (b"x-api-key", b"other")], b"k"),
    ],
)
def test_a_client_is_identified_by_its_key_in_any_header(headers: list[tuple[bytes, bytes]], key: bytes):
    assert key_of(headers) == key
    assert (client_of(headers) == client_of([(b"x-api-key", b"k")])) is (key == b"k")


def test_other_credentials_identify_a_client_without_a_key():
    basic, goog = (b"authorization", b"Basic YTpi"), (b"x-goog-api-key", b"k")
    shown = ([], [basic], [(b"authorization", b"Basic x")], [basic, goog], [basic, (goog[0], b"other")])
    assert len({client_of(headers) for headers in shown}) == 5
    assert client_of([basic, goog]) == client_of([(b"x-api-key", b"k")])


def test_a_client_that_stores_endlessly_evicts_only_its_own_values(store: Store):
    quiet, loud = client_store_of(store, of("quiet")), client_store_of(store, of("loud"))
    quiet.remember("a", b"x" * 300)
    for number in range(100):
        loud.remember(f"r{number}", b"y" * 100)
        written(store)
    assert quiet.recall("a") == b"x" * 300
    kept = [number for number in range(100) if loud.recall(f"r{number}") is not None]
    assert kept == list(range(kept[0], 100))
    assert 8 <= len(kept) <= 14


def test_a_value_as_large_as_the_store_evicts_nothing_of_others(store: Store):
    quiet, loud = client_store_of(store, of("quiet")), client_store_of(store, of("loud"))
    quiet.remember("a", b"x" * 300)
    written(store)
    loud.remember("r", b"y" * 1600)
    written(store)
    assert (quiet.recall("a"), loud.recall("r")) == (b"x" * 300, None)


def test_a_client_that_filled_the_store_makes_room_for_others(store: Store):
    first, second = client_store_of(store, of("first")), client_store_of(store, of("second"))
    for number in range(16):
        first.remember(f"r{number}", b"x" * 100)
        written(store)
    for number in range(8):
        second.remember(f"r{number}", b"y" * 100)
        written(store)
    assert [number for number in range(8) if second.recall(f"r{number}") is None] == []
    assert [number for number in range(16) if first.recall(f"r{number}") is not None][-7:] == list(range(9, 16))


def test_many_clients_get_equal_shares(store: Store):
    shelves = [client_store_of(store, of(f"client {number}")) for number in range(4)]
    for number in range(40):
        for one in shelves:
            one.remember(f"r{number}", b"x" * 50)
            written(store)
    kept = [sum(one.recall(f"r{number}") is not None for number in range(40)) for one in shelves]
    assert min(kept) >= 6
    assert max(kept) - min(kept) <= 2
