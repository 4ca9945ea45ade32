"""Per-minute limits of a client: shared by all processes with the same store, reported in the client's protocol."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from support.dialects import CLIENTS, PATHS, Ask, chat, write
from support.redis_server import redis_server
from support.servers import hypercorn_server, uvicorn_server

from streamtool.core.errors import SettingsError, StoreError, TooManyError
from streamtool.proxy import Proxy
from streamtool.server.budgets import Budgets
from streamtool.settings import StoreSettings, load
from streamtool.store.replies import open_store
from streamtool.testing import Hang, ScriptedUpstream, text

SERVERS = {"uvicorn": uvicorn_server, "hypercorn": hypercorn_server}
KEYS = '[client_keys]\nalice = "alice-has-a-long-key"\nbob = "bob-has-a-long-key-too"\n'
ALICE, BOB = "alice-has-a-long-key", "bob-has-a-long-key-too"
EMPTY: Any = {"type": "object", "properties": {}}
both = pytest.mark.anyio


async def model(scope: Any, receive: Any, send: Any) -> None:
    """Return an upstream that answers with one word."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    await send({"type": "http.response.body", "body": b"".join(chat(["A word."], "stop"))})


def proxy(limits: str, more: str = "") -> Proxy:
    text = f'chat_template = "none"\n{more}\n{KEYS}[upstream.u]\nurl = "http://u"\n{limits}'
    return Proxy(load(text, {}, {}), apps={"u": model})


def of(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Bearer " + key.encode())]


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_request_over_the_limit_is_rejected_in_the_clients_protocol(server: str, client: str):
    ask = Ask((("user", "Hi"),), (("ping", "Pings.", EMPTY),), stream=True)
    with SERVERS[server](proxy("[limits]\nrequests_per_minute = 2\n")) as served:

        def post(key: str) -> httpx.Response:
            headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
            body = json.dumps({**write(client, ask), "model": "m"})
            return httpx.post(served.url + PATHS[client], content=body, headers=headers, trust_env=False)

        answers = [post(ALICE) for _ in range(5)]  # a new minute, which allows two more, may begin once
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused
        assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in refused)
        assert all("2 requests a minute" in answer.text for answer in refused)
        assert post(BOB).status_code == 200


def test_the_sdks_raise_a_rate_limit_error():
    with uvicorn_server(proxy("[limits.keys.alice]\nrequests_per_minute = 1\n")) as served:
        ask: Any = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
        with (
            openai.OpenAI(
                base_url=f"{served.url}/v1", api_key=ALICE, max_retries=0, http_client=httpx.Client(trust_env=False)
            ) as client,
            pytest.raises(openai.RateLimitError),
        ):
            for _ in range(3):
                client.chat.completions.create(**ask)
        with (
            anthropic.Anthropic(
                base_url=served.url, api_key=ALICE, max_retries=0, http_client=httpx2.Client(trust_env=False)
            ) as other,
            pytest.raises(anthropic.RateLimitError),
        ):
            for _ in range(3):
                other.messages.create(max_tokens=9, **ask)


def test_tokens_are_counted_at_the_end_of_a_reply():
    with uvicorn_server(proxy("[limits]\ntokens_per_minute = 5\n")) as served:
        tool: Any = {"type": "function", "function": {"name": "ping", "parameters": EMPTY}}
        with (
            openai.OpenAI(
                base_url=f"{served.url}/v1", api_key=ALICE, max_retries=0, http_client=httpx.Client(trust_env=False)
            ) as client,
            pytest.raises(openai.RateLimitError, match="5 tokens a minute"),
        ):
            for _ in range(20):  # the next request may arrive before the tokens of the last one are counted
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}], tools=[tool])


@pytest.fixture(params=["memory", "file", "redis"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreSettings]:
    match request.param:
        case "memory":
            yield StoreSettings()
        case "file":
            yield StoreSettings(file=str(tmp_path / "store"))
        case _:
            with redis_server(tmp_path) as server:
                yield StoreSettings(redis=server.url)


@both
async def test_processes_that_share_a_store_share_the_counts(shared: StoreSettings):
    settings = load(f"{KEYS}[limits]\nrequests_per_minute = 4\n[limits.keys.bob]\nrequests_per_minute = 0\n", {}, {})
    now = 600.0
    one = open_store(shared)
    other = one if shared == StoreSettings() else open_store(shared)
    first, second = Budgets(settings, one, lambda: now), Budgets(settings, other, lambda: now)
    for _ in range(2):
        await first.admit(of(ALICE))
        await second.admit(of(ALICE))
    for budgets in (first, second):
        with pytest.raises(TooManyError) as refused:
            await budgets.admit(of(ALICE))
        assert refused.value.headers == ((b"retry-after", b"60"),)
        for _ in range(9):
            await budgets.admit(of(BOB))
    now = 660.0
    await second.admit(of(ALICE))
    one.close()
    other.close()


@both
async def test_a_failing_store_rejects_no_request():
    class Broken:
        blocks = False

        def count(self, *_: object) -> int:
            raise StoreError("gone")

    settings = load(f"{KEYS}[limits]\nrequests_per_minute = 1\ntokens_per_minute = 1\n", {}, {})
    budgets = Budgets(settings, Broken())  # type: ignore[arg-type]
    for _ in range(3):
        await budgets.admit(of(ALICE))
        await budgets.spend(of(ALICE), 10)


def test_open_requests_are_limited_per_key():
    settings = load(f"{KEYS}[limits]\nexchanges_per_client = 7\n[limits.keys.bob]\nexchanges = 2\n", {}, {})
    budgets = Budgets(settings, open_store(StoreSettings()))
    assert (budgets.limits_for(of(ALICE)).exchanges, budgets.limits_for(of(BOB)).exchanges) == (7, 2)


def test_limits_of_an_unknown_key_are_a_settings_error():
    with pytest.raises(SettingsError, match='unknown client key "carol"'):
        load(f"{KEYS}[limits.keys.carol]\nexchanges = 2\n", {}, {})


@pytest.mark.parametrize("server", SERVERS)
def test_a_key_may_have_its_own_limit_on_open_requests(server: str):
    upstream = ScriptedUpstream(text("Some words.", finish=None, done=False).then(Hang()))
    settings = load(
        f'chat_template = "none"\n{KEYS}[upstream.u]\nurl = "http://u"\n[limits.keys.bob]\nexchanges = 1', {}, {}
    )
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True})

    with (
        SERVERS[server](Proxy(settings, apps={"u": upstream})) as served,
        httpx.Client(base_url=served.url, headers={"content-type": "application/json"}, trust_env=False) as http,
        ExitStack() as stack,
    ):

        def status(key: str) -> int:
            headers = {"authorization": f"Bearer {key}"}
            reply = stack.enter_context(http.stream("POST", PATHS["chat"], content=body, headers=headers))
            return int(reply.status_code)

        assert [status(key) for key in (ALICE, BOB, ALICE, BOB)] == [200, 200, 200, 429]


@pytest.mark.parametrize("server", SERVERS)
def test_forwarded_requests_count_but_their_tokens_do_not(server: str):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}]})
    headers = {"authorization": f"Bearer {ALICE}", "content-type": "application/json"}
    for limits, refused in (("tokens_per_minute = 5", False), ("requests_per_minute = 2", True)):
        with SERVERS[server](proxy(f"[limits]\n{limits}")) as served:
            answers = [
                httpx.post(served.url + PATHS["chat"], content=body, headers=headers, trust_env=False)
                for _ in range(5)  # a new minute may begin once
            ]
        assert (429 in {answer.status_code for answer in answers}) is refused
