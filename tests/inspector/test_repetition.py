"""Views of exchanges, which are repeated from their inputs: equal to those of a listener that was attached live."""

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, field, frozen
from support.continuing import Continuing, Fault, engine_of, settings_for
from support.dialects import ALL_CLIENTS, Ask, path, refusal, said, write
from support.inspected import CALL, inspected, model, timeline

from streamtool.exchange.inputs import INPUT_OVERHEAD, InputStep, RepeatedExchange
from streamtool.middleware import ToolMiddleware
from streamtool.observe.line_listener import LineListener
from streamtool.observe.observers import Observers
from streamtool.observe.summary import summary
from streamtool.protocols.shared.wire import encode
from streamtool.proxy import Proxy
from streamtool.server.served_exchange import COUNT_STEP
from streamtool.settings import LimitSettings, Settings
from streamtool.testing import Die, Hang, Pause, ScriptedUpstream, status, stream_asgi

both = pytest.mark.anyio

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = ("get_weather", "The weather in a city.", CITY)
MAIL = ("send_email", "Sends an email.", {"type": "object", "properties": {"address": {"type": "string"}}})
ASK = Ask((("system", "Be brief."), ("user", "What is the weather in Paris?")), (TOOL,))
HISTORY = (*ASK.turns, ("call", "c1", "get_weather", {"city": "Rome"}), ("result", "c1", "rainy"))
DENIED = "I'm sorry, but I don't have access to any tools in this conversation."
REPLY = f"<think>Let me see.</think>Let me look.\n{CALL}"
SEARCH = '<tool_call>{"name": "tool_search", "arguments": {"query": "an email"}}</tool_call>'
UNREADABLE = '<tool_call>{"arguments": {}}</tool_call>'
FAR = REPLY.index("Paris") + 2
BREAK = REPLY.index('"Paris')
NO_TOOLS = status(400, "this model does not support tools")
REFUSED = {"error": {"message": "response_format is not supported", "type": "invalid_request_error"}}


@frozen
class Case:
    """An exchange."""

    upstream: Any
    ask: Ask = ASK
    client: str = "chat"
    settings: Settings | None = None
    kind: str = ""
    """The kind of upstream that is recognized."""
    leaves: bool = False
    """Whether the client disconnects before the end."""
    fields: Mapping[str, Any] = field(factory=dict)
    """Other fields of the request."""
    compressed: bool = False
    """Whether the request's body is compressed."""


def case(*replies: Any, ask: Ask = ASK, client: str = "chat", leaves: bool = False, **options: Any) -> Case:
    scripts = [said("chat", reply) if isinstance(reply, str) else reply for reply in replies]
    return Case(ScriptedUpstream(*scripts), ask, client, Settings(**{"app_protocol": "chat", **options}), leaves=leaves)


def resumed(kind: str, *faults: Fault, client: str = "chat", **options: Any) -> Case:
    return Case(Continuing(kind, REPLY, *faults), ASK, client, settings_for(kind, **options), kind)


CASES: dict[str, Callable[[], Case]] = {
    **{f"{client}, streamed": lambda client=client: case(REPLY, client=client) for client in ALL_CLIENTS},
    **{
        f"{client}, whole": lambda client=client: case(REPLY, client=client, ask=evolve(ASK, stream=False))
        for client in ALL_CLIENTS
    },
    "history": lambda: case("It rains.", ask=evolve(ASK, turns=HISTORY), client="messages"),
    "refused, then called": lambda: case(DENIED, REPLY),
    "refused to the end": lambda: case(DENIED),
    "unreadable, then corrected": lambda: case(UNREADABLE, CALL, malformed="retry"),
    "searched for tools": lambda: case(
        f"Wait.\n{SEARCH}", CALL, ask=evolve(ASK, tools=(TOOL, MAIL)), select_tools=1, format="tool_call"
    ),
    "quoted": lambda: case(f"It is {CALL}.", ask=Ask((("user", f"Explain {CALL}."),), (TOOL,))),
    "resumed": lambda: resumed("llama.cpp", Fault(FAR, "reset"), Fault(FAR + 2, "fin")),
    "resumed after a broken call": lambda: resumed("completions", Fault(BREAK, "broken", "the city}}</tool_call>")),
    "not resumed": lambda: resumed("completions", Fault(FAR, "error"), client="responses", resume=0),
    "forced by a prefill": lambda: case(
        CALL, ask=evolve(ASK, choice="required"), app_forcing="prefill", format="tool_call"
    ),
    "forced by a grammar": lambda: case(CALL, ask=evolve(ASK, choice="get_weather"), app_forcing="grammar"),
    "forced, and declined": lambda: case(
        evolve(refusal("chat", 400), steps=(json.dumps(REFUSED).encode(),)), CALL, ask=evolve(ASK, choice="required")
    ),
    "native": lambda: case(REPLY, client="messages", mode="native"),
    "tools declined by the server": lambda: case(NO_TOOLS, REPLY, mode="auto"),
    "rescue": lambda: case(REPLY, mode="rescue"),
    "passed through": lambda: case("Hello.", ask=Ask((("user", "Hi."),))),
    "translated": lambda: case("Hello.", ask=Ask((("user", "Hi."),)), client="gemini"),
    "folded": lambda: case("Hello.", ask=Ask((("user", "Hi."),), stream=False)),
    "an error": lambda: case(refusal("chat")),
    "dead": lambda: case(evolve(said("chat", REPLY, "die"), steps=(*said("chat", REPLY, "die").steps, Die()))),
    "too long": lambda: case(said("chat", REPLY, "length"), client="messages"),
    "several choices": lambda: case(said("chat", REPLY, n=2), ask=evolve(ASK, n=2)),
    "in large pieces": lambda: case(said("chat", "word " * 3_000 + CALL).resized(9_000)),
    "in the background": lambda: evolve(
        case(DENIED, REPLY, client="responses"), fields={"background": True, "store": True}
    ),
    "compressed": lambda: evolve(case(REPLY), compressed=True),
    "several choices, first declined": lambda: case(
        evolve(refusal("chat", 400), steps=(json.dumps(REFUSED).encode(),)),
        said("chat", CALL, n=2),
        ask=evolve(ASK, choice="required", n=2),
    ),
    "resumed with a limit": lambda: evolve(
        resumed("completions", Fault(FAR, "reset"), Fault(FAR + 2, "reset")), fields={"max_tokens": 60}
    ),
    "left": lambda: case(said("chat", "One two three. ", "die").then(Hang()), leaves=True),
}


def listen(observers: Observers) -> list[list[Any]]:
    """Attach a listener to each exchange, and return its lines by exchange."""
    watch, found = observers.watch, []

    def listening(exchange: Any, *given: Any) -> Any:
        watched = watch(exchange, *given)
        found.append([])
        exchange.listener = LineListener(found[-1].append, lambda: 0.0)
        return watched

    observers.watch = listening  # type: ignore[method-assign]
    return found


def plain(lines: Sequence[Any]) -> list[Any]:
    """Return the lines as they would be sent, without the times, and without the first and the last one."""
    left_out = ("exchange", "record")
    found = [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
    return [json.loads(encode(line)) for line in found if line["type"] not in left_out]


async def serve(app: Any, one: Case) -> None:
    body = json.dumps({**write(one.client, one.ask), **one.fields}).encode()
    given = [(b"content-type", b"application/json"), (b"authorization", b"Bearer secret")]
    if one.compressed:
        body = gzip.compress(body)
        given.append((b"content-encoding", b"gzip"))
    async with stream_asgi(app, path(one.client, stream=one.ask.stream), body=body, headers=given) as reply:
        if one.leaves:
            await anext(reply.chunks())
            return
        await reply.body()
        await reply.finished.wait()


def app_for(one: Case, **options: Any) -> ToolMiddleware:
    app = inspected(getattr(one.upstream, "app", one.upstream), settings=one.settings, **options)
    found = engine_of(one.kind)
    if found is not None:
        app.templates.engines.note("u", found)
    return app


@both
@pytest.mark.parametrize("name", CASES)
async def test_a_repeated_exchange_has_the_lines_of_a_live_listener(name: str):
    one = CASES[name]()
    app = app_for(one)
    (live,) = [listen(app.observers)]
    await serve(app, one)
    lines = list(app.observers.ring.lines("1"))
    assert plain(lines) == plain(live[0])
    assert [line["type"] for line in (lines[0], lines[-1])] == ["exchange", "record"]
    assert b"secret" not in encode(lines)
    times = [line["seconds"] for line in lines if "seconds" in line and line["type"] != "record"]
    assert times == sorted(times)


@both
@pytest.mark.parametrize("size", [300, 9_000, 100_000])
async def test_the_pieces_of_a_reply_are_counted_while_they_arrive(size: int):
    script = said("chat", "word " * 10_000).resized(size)
    one = case(script)
    app = app_for(one)
    ring, sizes = app.observers.ring, [0]

    async def counted(scope: Any, receive: Any, send: Any) -> None:
        async def sends(message: Any) -> None:
            await send(message)
            sizes.append(ring.exchanges["1"].size)

        await upstream(scope, receive, sends)

    upstream, app.app = app.app, counted
    await serve(app, evolve(one, upstream=None))
    found = ring.exchanges["1"]
    pieces = [step for step in script.steps if isinstance(step, bytes)]
    assert sum(map(len, pieces)) < found.size - found._log.origin.size < sum(map(len, pieces)) * 1.5 + 10_000
    assert max(after - before for before, after in pairwise(sizes)) < size + 2 * COUNT_STEP
    assert not differs(app)


@both
async def test_pieces_without_bytes_are_counted():
    empty = 1_000
    one = case(said("chat", REPLY))
    app = app_for(one)

    async def pausing(scope: Any, receive: Any, send: Any) -> None:
        async def sends(message: Any) -> None:
            if message["type"] == "http.response.body":
                for _ in range(empty):
                    await send({**message, "body": b"", "more_body": True})
                sizes.append(app.observers.ring.exchanges["1"].size)
            await send(message)

        await upstream(scope, receive, sends)

    sizes: list[int] = []
    upstream, app.app = app.app, pausing
    await serve(app, evolve(one, upstream=None))
    assert sizes[1] - sizes[0] > empty * INPUT_OVERHEAD - COUNT_STEP
    assert not differs(app)


@both
@pytest.mark.parametrize("request_size", [10, 2_000_000])
async def test_a_reply_that_is_cut_is_no_longer_kept(request_size: int):
    one = case(said("chat", "word " * 40_000).resized(400), inspect_size=1024 * 1024)
    app = app_for(one)
    ring, kept = app.observers.ring, []

    async def looking(scope: Any, receive: Any, send: Any) -> None:
        async def sends(message: Any) -> None:
            await send(message)
            if ring.exchanges["1"].is_final:
                kept.append(send.__self__._entries)

        await upstream(scope, receive, sends)

    upstream, app.app = app.app, looking
    await serve(app, evolve(one, upstream=None, ask=evolve(ASK, turns=(("user", "x" * request_size),))))
    assert [line["type"] for line in ring.lines("1")] == ["exchange", "cut", "record"]
    assert not ring.exchanges["1"]._log.entries
    assert len(kept) > 100
    assert not any(kept)


@both
@pytest.mark.parametrize("size", [20_000, 500_000])
async def test_a_piece_that_is_refused_is_not_counted(size: int):
    script = said("chat", "word " * 20_000).resized(size)
    one = case(script, limits=LimitSettings(reply=1_000))
    app = app_for(one)
    await serve(app, one)
    found = app.observers.ring.exchanges["1"]
    assert found.size - found._log.origin.size < 10_000


@pytest.mark.trio
@pytest.mark.usefixtures("autojump_clock")
async def test_a_keepalive_comment_is_repeated():
    script = said("chat", REPLY)
    one = case(evolve(script, steps=(Pause(15), *script.steps)))
    app = app_for(one, keepalive=10)
    await serve(app, one)
    log = app.observers.ring.exchanges["1"]._log
    assert InputStep.KEEPALIVE in log.inputs
    assert not differs(app)


@both
@pytest.mark.parametrize("fails", [False, True])
async def test_a_background_response_whose_inputs_are_stored_is_repeated(fails: bool, tmp_path: Path):
    one = case(refusal("chat") if fails else REPLY, client="responses", store={"file": str(tmp_path / "store.db")})
    app = app_for(one)
    live = listen(app.observers)
    await serve(app, evolve(one, fields={"background": True, "store": True}))
    assert app.observers.ring.exchanges["1"]._log.journaled
    assert plain(list(app.observers.ring.lines("1"))) == plain(live[0])
    assert not differs(app)
    app.store.close()


def differs(app: ToolMiddleware) -> bool:
    return any(line["type"] == "differs" for line in app.observers.ring.lines("1"))


@both
async def test_an_exchange_served_by_a_fallback_is_repeated():
    upstreams = {"a": {"url": "http://a", "fallbacks": ["b"]}, "b": {"url": "http://b"}}
    apps = {"a": ScriptedUpstream(refusal("chat", 503)), "b": model(REPLY)}
    proxy = Proxy(Settings(upstreams=upstreams, inspect=True, contents=True), apps=apps)
    live = listen(proxy._tools.observers)
    await serve(proxy, Case(apps["b"]))
    assert len(apps["b"].requests) == 1
    assert plain(list(proxy._tools.observers.ring.lines("1"))) == plain(live[0])


@both
async def test_a_stored_conversation_that_is_deleted_later_is_repeated():
    app = app_for(case(REPLY, "It is sunny.", client="responses"))
    live = listen(app.observers)
    body = {**write("responses", ASK), "stream": False, "store": True}
    async with stream_asgi(app, "/v1/responses", body=json.dumps(body).encode()) as reply:
        first = json.loads(await reply.body())
    (call,) = [item for item in first["output"] if item["type"] == "function_call"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
    follow = {**body, "input": [result], "previous_response_id": first["id"], "instructions": "Say it."}
    async with stream_asgi(app, "/v1/responses", body=json.dumps(follow).encode()) as reply:
        assert b"It is sunny." in await reply.body()
    app.store.forget(f"{app.observers.ring.exchanges['2']._log.origin.client} {first['id']}")
    app.store = app.services = None  # type: ignore[assignment]
    lines = list(app.observers.ring.lines("2"))
    assert plain(lines) == plain(live[1])
    assert "What is the weather in Paris?" in str(lines[0]["request"])


@both
async def test_an_open_exchange_is_repeated_once_however_often_it_is_viewed(monkeypatch: pytest.MonkeyPatch):
    begun = []

    class Counted(RepeatedExchange):
        def __init__(self, *given: Any, **named: Any) -> None:
            begun.append(self)
            super().__init__(*given, **named)

    monkeypatch.setattr("streamtool.observe.ring.RepeatedExchange", Counted)
    app = app_for(case(DENIED, REPLY))
    live = listen(app.observers)
    ring = app.observers.ring
    seen: list[int] = []

    async def viewed(scope: Any, receive: Any, send: Any) -> None:
        async def sends(message: Any) -> None:
            await send(message)
            lines = list(ring.lines("1"))
            assert plain(lines) == plain(live[0])
            seen.append(len(lines))

        await upstream(scope, receive, sends)

    upstream, app.app = app.app, viewed
    await serve(app, Case(upstream))
    assert plain(list(ring.lines("1"))) == plain(live[0])
    assert seen == sorted(seen)
    assert len(seen) > 20
    assert len(begun) == 2, "one while it was open, and one for the view after its end"
    assert not ring._repetitions, "it has ended"


@both
@pytest.mark.parametrize("change", ["ids", "inputs", "requests"])
async def test_a_repetition_that_differs_is_reported(change: str):
    app = app_for(case(DENIED, REPLY))
    await serve(app, Case(None))
    log = app.observers.ring.exchanges["1"]._log
    if change == "ids":
        log.ids.clear()
    elif change == "requests":
        log.requests.clear()
    else:
        del log.entries[-12:-10]
    *_, last, _ = app.observers.ring.lines("1")
    assert (last["type"], last["why"]) == ("differs", "another result" if change == "inputs" else "IndexError")
    assert last in timeline(app)["notes"]


@both
async def test_the_first_call_is_that_of_one_choice():
    app = app_for(CASES["several choices"]())
    await serve(app, CASES["several choices"]())
    assert app.observers.ring.summary("1")["called"] == 'get_weather({"city": "Paris"})'
    assert summary(app.observers.ring.lines("1"), id="1")["called"] == 'get_weather({"city": "Paris"})'
