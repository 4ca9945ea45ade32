"""`streamtool demo`: a model that only writes text calls a tool, and one watches.

A real server (uvicorn, a free loopback port, a thread of its own) runs the proxy with the sample model behind it. A
client in the main thread holds a conversation over the socket: the standard library's, so that the first delta comes
within a second, or the official openai client, which takes half a second to import. `Tap` stands between proxy and
model and shows what the model writes; `Board` prints it beside what the client receives, a row for each of the model's
deltas. The rows come as the deltas come, on a terminal and in a pipe alike.

The sample writes in the format that it is taught and never refuses. So for the sample the proxy listens for that format
alone and for no refusals; otherwise a first reply would wait while tables are compiled that it does not need.
"""

import http.client
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from typing import Any

import uvicorn
from attrs import define, evolve, field

from streamtool.cli.common import Screen
from streamtool.cli.demo_board import Board, Tap
from streamtool.cli.serve import address, bind
from streamtool.errors import SettingsError, StreamtoolError, UpstreamError
from streamtool.exchange import Record
from streamtool.http.asgi import ASGIApp, Receive, Scope, Send
from streamtool.http.upstream import HttpUpstream
from streamtool.proxy import Proxy
from streamtool.sample import Sample
from streamtool.settings import load
from streamtool.sse import SseReader

QUESTION = "What is the weather in Paris today?"
TOOLS: Sequence[Mapping[str, Any]] = (
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                },
                "required": ["city"],
            },
        },
    },
)
TURNS = 6
"""Replies after which a model that never stops calling is left."""
_READ = 64 * 1024
_DELTA = 6  # characters of the sample's deltas
_RECORD = 1.0  # seconds that the record of an exchange may come after its reply
_START = 10.0  # seconds that the server may take to start
CLIENTS = {"http": "http.client", "openai": "the openai client"}
"""What may be asked for, and what it is."""
FURTHER = (
    ("your own model", "streamtool serve --upstream http://127.0.0.1:11434"),
    ("other formats", "streamtool demo --format qwen3_coder"),
    ("OpenAI's client", "streamtool demo --client openai"),
    ("on a page", "streamtool demo --page"),
)
"""Where to go from here."""


def get_weather(city: str, unit: str = "celsius") -> str:
    """The tool: a result that needs no network."""
    return f"18 °C in {city}, light rain" if unit == "celsius" else f"64 °F in {city}, light rain"


@define
class DemoFlags:
    """The flags of `demo`; None: not given."""

    upstream: str | None = None
    model: str = "sample"
    key_env: str | None = None
    format: str | None = None
    delay: float = 0.06
    """Seconds between the sample's deltas."""
    client: str = "http"
    """One of `CLIENTS`."""
    page: bool = False
    """The inspector is opened in a browser."""


def run(flags: DemoFlags) -> None:
    """Show the demo. Raises StreamtoolError when there is no final answer in the end."""
    key = None if flags.key_env is None else f"env:{flags.key_env}"
    values = {"upstream": {"demo": {"url": flags.upstream or "sample", "key": key}}, "format": flags.format}
    # no other settings: the demo is the same for everybody
    settings = load(None, {name: value for name, value in os.environ.items() if name == flags.key_env}, values)
    target = settings.upstreams["demo"]
    sample = target.url == "sample"
    ask = client_for(flags.client)
    screen = Screen()
    board, page = Board(screen), None
    if flags.page:
        from streamtool.cli.demo_page import DemoPage  # noqa: PLC0415  the first delta need not wait for it

        page = DemoPage(screen)
        settings = evolve(settings, inspect=True, contents=True)
    if sample:
        settings = evolve(settings, formats=(settings.for_model(flags.model).format,), refusals="pass")
    app: ASGIApp = Sample(delta=_DELTA, delay=flags.delay) if sample else HttpUpstream(target)
    tap = Tap(app, board, TOOLS, settings.for_model(flags.model).listens)
    records: queue.SimpleQueue[Record] = queue.SimpleQueue()
    proxy = Proxy(settings, apps={"demo": tap}, on_exchange=records.put)

    async def stage(scope: Scope, receive: Receive, send: Send) -> None:
        await proxy(scope, receive, send)
        if scope["type"] == "lifespan" and isinstance(app, HttpUpstream):  # the server has stopped
            await app.aclose()

    with served(stage if page is None else page.around(stage)) as url:
        board.introduce(CLIENTS[flags.client], url, "the sample model" if sample else target.url)
        with nullcontext() if page is None else page.opened(url):
            try:
                answer = converse(lambda request: ask(url, request), board, flags.model)
            except BrokenPipeError:  # whoever looks on has enough
                raise
            except Exception as error:
                raise cause(records, error) from error
            if not answer:
                raise StreamtoolError("the conversation ended without a final answer")
            board.conclude(answer, FURTHER)


def cause(records: "queue.SimpleQueue[Record]", error: Exception) -> Exception:
    """Why the client saw an error: what the proxy recorded, else the error itself."""
    try:
        while True:  # the record of the last exchange may come a moment after its reply
            found = records.get(timeout=_RECORD).error
            if found is not None:
                return found
    except queue.Empty:
        if isinstance(error, OSError | http.client.HTTPException):
            return StreamtoolError(f"the conversation broke off: {error}")
        return error


Chunk = Mapping[str, Any]
Ask = Callable[[Mapping[str, Any]], Iterator[Chunk]]


def converse(ask: Ask, board: "Board", model: str) -> str:
    """The final answer; "" if none came."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    board.question(QUESTION, [tool["function"]["name"] for tool in TOOLS])
    for _ in range(TURNS):
        board.turn()
        reply = DemoReply()
        for chunk in ask({"model": model, "messages": messages, "tools": list(TOOLS), "stream": True}):
            for kind, text in reply.add(chunk):
                board.client(kind, text)
        board.end_turn()
        if not reply.calls:
            return reply.text
        messages.append({"role": "assistant", "content": reply.text or None, "tool_calls": reply.calls})
        for call in reply.calls:
            result = execute(call["function"]["name"], call["function"]["arguments"])
            board.result(call["function"]["name"], call["function"]["arguments"], result)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return ""


def execute(name: str, arguments: str) -> str:
    """What the call gives back; a mistake of the model is a result too."""
    if name != "get_weather":
        return f"there is no tool {name}"
    try:
        given = json.loads(arguments)
        return get_weather(str(given["city"]), str(given.get("unit", "celsius")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"the arguments are wrong: {error!r}"


@define
class DemoReply:
    """What the chunks of one reply amount to."""

    text: str = ""
    calls: list[dict[str, Any]] = field(factory=list)

    def add(self, chunk: Chunk) -> Iterator[tuple[str, str]]:
        """What this chunk brings, as kind and text."""
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            if text := delta.get("reasoning_content"):
                yield "reasoning", text
            if text := delta.get("content"):
                self.text += text
                yield "text", text
            for part in delta.get("tool_calls") or ():
                function = part.get("function") or {}
                if part.get("id"):
                    made = {"name": function.get("name") or "", "arguments": ""}
                    self.calls.append({"id": part["id"], "type": "function", "function": made})
                    yield "call", made["name"]
                if text := function.get("arguments"):
                    self.calls[part["index"]]["function"]["arguments"] += text
                    yield "arguments", text
            if choice.get("finish_reason"):
                yield "finish", choice["finish_reason"]


def client_for(name: str) -> Callable[[str, Mapping[str, Any]], Iterator[Chunk]]:
    """The client of this name: the server's address and a request in, the chunks of the reply out, as they come.

    Raises SettingsError if it is not installed, or there is no such client.
    """
    if name == "http":
        return ask_plainly
    if name not in CLIENTS:
        raise SettingsError(f"--client: expected {' or '.join(CLIENTS)}, found {name!r}", param="--client")
    try:
        import openai  # noqa: PLC0415  optional, and half a second
    except ImportError:
        raise SettingsError("--client openai needs the openai client: pip install openai", param="--client") from None

    def ask(url: str, request: Mapping[str, Any]) -> Iterator[Chunk]:
        # no proxy of the environment stands between two ends of one machine
        with (
            openai.DefaultHttpxClient(trust_env=False) as http,
            openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http) as client,
            client.chat.completions.create(**request) as stream,
        ):
            for chunk in stream:
                yield chunk.model_dump()

    return ask


def ask_plainly(url: str, request: Mapping[str, Any]) -> Iterator[Chunk]:
    """The chunks of a reply, by the standard library's client. Raises OSError and HTTPException as that does."""
    reader = SseReader()
    with closing(http.client.HTTPConnection(url.removeprefix("http://"))) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(request), {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise StreamtoolError(f"the proxy answered {response.status}: {response.read().decode()}")
        while data := response.read1(_READ):
            for event in reader.feed(data):
                if event.data == b"[DONE]":
                    continue
                chunk = json.loads(event.data)
                if "error" in chunk:
                    raise UpstreamError(str(chunk["error"].get("message")))
                yield chunk


@contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """The address at which a server in a thread of its own serves `app`."""
    with bind("127.0.0.1", 0) as sock:
        config = uvicorn.Config(app, log_level="error", ws="none", lifespan="on", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: server.run(sockets=[sock]), name="demo server", daemon=True)
        thread.start()
        try:
            deadline = time.monotonic() + _START
            while not server.started:
                if not thread.is_alive() or time.monotonic() > deadline:
                    raise StreamtoolError("the server did not start")
                time.sleep(0.01)
            yield f"http://{address('127.0.0.1', sock.getsockname()[1])}"
        finally:
            server.should_exit = True
            thread.join(_START)
