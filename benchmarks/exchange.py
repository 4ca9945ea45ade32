"""Measures the exchange and the middleware per delta, in one process and without a network; run by `path.py`.

The exchange is measured from bytes to bytes for each pair of protocols. The cost of the middleware is that of a whole
ASGI call minus that of the same call to the bare app. For comparison, `plain` is the straightforward solution, measured
in the same run: decode the event, feed the parser, encode one JSON string, join. The exchange can be faster than
`plain`, because it can recognize an event without decoding it.
"""

import asyncio
import itertools
import re
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import anyio
import msgspec
from common import (
    CLIENTS,
    FEW,
    GROWTH,
    KINDS,
    MANY,
    UPSTREAMS,
    Row,
    Table,
    deltas,
    first_texts,
    opening,
    request,
    taking_turns,
)

from statemachine import Parser, precompile
from streamtool import ToolMiddleware
from streamtool.bench import unit
from streamtool.exchange.exchange import Exchange
from streamtool.protocols.registry import client_protocol
from streamtool.settings import Settings, UpstreamSettings

TOOLS = 20
CALLS = 10
"""Requests per event loop; the first one starts the loop's threads."""
STREAMS = 40
"""Number of open streams while memory is measured."""
TARGETS = {"text": 40, "arguments": 80}
"""Maximum cost in u with Chat Completions on both sides."""
TRANSLATED = 96
"""Maximum cost in u for all other pairs."""
HELD = 32
"""Maximum memory of an open stream, in KB."""
FIRST = 2.0
"""Maximum time until the app is called, in ms."""


def target(client: str, upstream: str, kind: str) -> int:
    return TARGETS[kind] if client == upstream == "chat" else TRANSLATED


# --- the exchange


def settings(upstream: str) -> Settings:
    """Return settings with one upstream that speaks this protocol."""
    return Settings(upstreams={"u": UpstreamSettings(name="u", url="http://127.0.0.1", protocol=upstream)})


def through_exchange(client: str, upstream: str, kind: str, count: int) -> Callable[[], float]:
    """Return a function that measures the seconds per delta."""
    given, body, numbers = settings(upstream), request(client, TOOLS), itertools.count()
    before, events = opening(upstream, kind), deltas(upstream, kind, count)

    def run() -> float:
        exchange = Exchange(
            given,
            client_protocol(client, CLIENTS[client]),
            body,
            (),
            new_id=lambda prefix: f"{prefix}{next(numbers)}",
            now=1,
        )
        exchange.request()
        exchange.respond(200, ())
        shown = b"".join(exchange.feed(data) for data in before)
        assert (b"Paris" in shown) == (kind == "text")
        feed = exchange.feed
        began = time.process_time()
        for data in events:
            feed(data)
        spent = time.process_time() - began
        assert not exchange.done
        return spent / count

    return run


_TEXT: dict[str, Callable[[Any], str]] = {
    "chat": lambda value: value["choices"][0]["delta"]["content"],
    "messages": lambda value: value["delta"]["text"],
    "responses": lambda value: value["delta"],
    "ollama": lambda value: value["message"]["content"],
    "gemini": lambda value: value["candidates"][0]["content"]["parts"][0]["text"],
    "completions": lambda value: value["choices"][0]["text"],
}


def plain(upstream: str, kind: str, count: int) -> Callable[[], float]:
    """Return a function that measures the seconds per delta for the straightforward solution."""
    events, text_of = deltas(upstream, kind, count), _TEXT[upstream]
    decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode
    prefix, suffix = b"data: " + b"x" * 150, b"x" * 50 + b"\n\n"

    def run() -> float:
        parser = Parser({name: {} for name in ("write_file", *map("tool_{}".format, range(1, TOOLS)))})
        for text in first_texts(kind):
            parser.feed(text)
        began = time.process_time()
        for data in events:
            found = parser.feed(text_of(decode(data[data.index(b"{") :])))
            b"".join((prefix, encode(found[0].text), suffix))  # type: ignore[union-attr]  # text or arguments
        return (time.process_time() - began) / count

    return run


def exchanges(rounds: int) -> Iterator[Table]:
    """Yield the table for all pairs of protocols."""
    pairs = list(itertools.product(KINDS, CLIENTS, UPSTREAMS))
    ways = list(itertools.product(UPSTREAMS, KINDS))
    u, *costs = taking_turns(
        rounds,
        unit,
        *(through_exchange(client, up, kind, count) for count in (FEW, MANY) for kind, client, up in pairs),
        *(plain(upstream, kind, FEW) for upstream, kind in ways),
    )
    bounds = dict(zip(ways, costs[2 * len(pairs) :], strict=True))
    rows = []
    for (kind, client, upstream), cost, late in zip(pairs, costs, costs[len(pairs) : 2 * len(pairs)], strict=False):
        reach = target(client, upstream, kind)
        cells = (kind, client, upstream, f"{cost * 1e6:.2f}", f"{cost / u:.0f}", f"{bounds[upstream, kind] / u:.0f}")
        ok = cost / u <= reach and late / cost <= GROWTH
        rows.append(Row((*cells, f"{late / cost:.2f}"), f"{reach} u, {GROWTH}", ok))
    columns = ("delta", "client", "upstream", "µs", "u", "plain u", f"{MANY:,} / {FEW:,}")
    yield Table(f"Exchange: CPU per delta, bytes in and bytes out; u = {u * 1e6:.3f} µs", columns, rows)


# --- the middleware


class Upstream:
    """An ASGI app that sends a reply to each request and measures the time its deltas take."""

    def __init__(self, before: Sequence[bytes], events: Sequence[bytes]) -> None:
        self.before = before
        self.events = events
        self.spent = 0.0
        self.called = 0.0
        self.waits: asyncio.Event | None = None
        """If set, each reply pauses until this event."""
        self.waiting = 0
        """Number of paused replies."""

    async def __call__(self, _scope: Any, receive: Any, send: Any) -> None:
        self.called = time.perf_counter()
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for data in self.before:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        began = time.process_time()
        for data in self.events:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        self.spent = time.process_time() - began
        if self.waits is not None:
            self.waiting += 1
            await self.waits.wait()
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def call(app: Any, client: str, body: bytes) -> None:
    """Send one request and discard the response."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        return await asyncio.Event().wait()

    async def send(_message: Any) -> None:
        pass

    path, _, query = CLIENTS[client].partition("?")
    scope = {"type": "http", "method": "POST", "path": path, "query_string": query.encode(), "headers": []}
    await app(scope, receive, send)


def through_asgi(client: str, kind: str, count: int, *, wrapped: bool) -> Callable[[], float]:
    """Return a function that measures the seconds per delta for a whole call, with or without the middleware."""
    upstream = Upstream(opening("chat", kind), deltas("chat", kind, count))
    app = ToolMiddleware(upstream, app_protocol="chat") if wrapped else upstream
    body = request(client, TOOLS)

    def run() -> float:
        asyncio.run(call(app, client, body))
        return upstream.spent / count

    return run


def until_called(client: str, tools: int, *, known: bool) -> Callable[[], float]:
    """Return a function that measures the seconds from the request to the call to the app. The tools are `known` from
    earlier requests, or new in every request.
    """
    upstream = Upstream(opening("chat", "text"), ())
    app, body, numbers = ToolMiddleware(upstream, app_protocol="chat"), request(client, tools), itertools.count()

    async def once() -> float:
        nonlocal body
        if not known:
            body = request(client, tools, about=f"Does something useful, in way {next(numbers)} of {client}.")
        began = time.perf_counter()
        await call(app, client, body)
        return upstream.called - began

    async def some() -> float:
        return min([await once() for _ in range(CALLS)])

    return lambda: asyncio.run(some())


class Necessary:
    """An ASGI app that attends to a client like the middleware: a task waits for the client to disconnect, or for
    silence. It keeps the model's text, which a continuation needs.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        first = await receive()
        kept = bytearray()

        async def body() -> Any:
            return first

        async def keep(message: Any) -> None:
            for text in _CONTENT.findall(message.get("body", b"")):
                kept.extend(text)
            await send(message)

        async def watch() -> None:
            with anyio.move_on_after(60):
                await receive()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            await self.app(scope, body, keep)
            tasks.cancel_scope.cancel()


_CONTENT = re.compile(rb'"content":\s*"((?:[^"\\]|\\.)*)"')


def held(client: str, kind: str, tools: int, *, wrapped: bool, necessary: bool = False) -> float:
    """Return the memory per stream in bytes, with many open streams, after FEW deltas: with the app alone, with
    the middleware around it, or with the `necessary` work around it.
    """
    upstream = Upstream(opening("chat", kind), deltas("chat", kind, FEW))
    app: Any = ToolMiddleware(upstream, app_protocol="chat") if wrapped else upstream
    if necessary:
        app = Necessary(upstream)

    async def run() -> float:
        await call(app, client, request(client, tools))  # create everything that the streams share
        upstream.waits = asyncio.Event()
        tracemalloc.start()
        calls = [asyncio.ensure_future(call(app, client, request(client, tools))) for _ in range(STREAMS)]
        while upstream.waiting < STREAMS:  # noqa: ASYNC110  threads are still starting
            await asyncio.sleep(0.001)
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        upstream.waits.set()
        await asyncio.gather(*calls)
        return size / STREAMS

    return asyncio.run(run())


def warm() -> None:
    """Compile everything that replies need. Otherwise, a thread does this during the first requests."""
    precompile()
    from streamtool.refusals import default_phrases  # noqa: PLC0415  an earlier revision has no such package

    default_phrases()


def middlewares(rounds: int) -> Iterator[Table]:
    """Yield the tables for each client protocol, with Chat Completions as the app's protocol."""
    warm()
    ways = list(itertools.product(KINDS, CLIENTS))
    u, bare, *costs = taking_turns(
        rounds,
        unit,
        through_asgi("chat", "text", FEW, wrapped=False),
        *(through_asgi(client, kind, count, wrapped=True) for count in (FEW, MANY) for kind, client in ways),
    )
    rows = []
    for (kind, client), cost, late in zip(ways, costs, costs[len(ways) :], strict=False):
        added, reach = cost - bare, target(client, "chat", kind)
        cells = (kind, client, f"{added * 1e6:.2f}", f"{added / u:.0f}", f"{bare * 1e6:.2f}", f"{late / cost:.2f}")
        rows.append(Row(cells, f"{reach} u, {GROWTH}", added / u <= reach and late / cost <= GROWTH))
    columns = ("delta", "client", "added µs", "added u", "bare µs", f"{MANY:,} / {FEW:,}")
    title = f"Middleware around an app that speaks chat: CPU per delta, minus the app alone; u = {u * 1e6:.3f} µs"
    yield Table(title, columns, rows)
    rows = []
    for client in CLIENTS:
        both = taking_turns(3 * rounds, *(until_called(client, 50, known=known) for known in (False, True)))
        new, again = (value * 1e3 for value in both)
        rows.append(Row((client, f"{new:.2f}", f"{again:.2f}"), f"{FIRST:g} ms", max(new, again) <= FIRST))
    yield Table("From a request with 50 tools until the app is called", ("client", "ms, new tools", "ms, known"), rows)
    rows = []
    for tools, kind, client in itertools.product((2, 50), KINDS, CLIENTS):
        size = (held(client, kind, tools, wrapped=True) - held("chat", kind, tools, wrapped=False)) / 1024
        cells = (kind, client, str(tools), f"{size:.1f}", f"{len(request(client, tools)) / 1024:.1f}")
        rows.append(Row(cells, f"{HELD} KB", size <= HELD))
    columns = ("delta", "client", "tools", "KB", "request, KB")
    yield Table(f"Memory of an open stream in the middleware, after {FEW:,} deltas, minus the app alone", columns, rows)
