"""`streamtool demo`: show live how a model that only writes text calls a tool.

A real server (uvicorn in a separate thread, on a free loopback port) runs the proxy with the sample model as its
upstream. A client in the main thread holds a conversation over the socket. By default, it uses the standard library's
HTTP client, so that the first delta arrives within a second; the official openai client takes half a second to import.
`Tap`, between the proxy and the model, reports the text that the model writes. `Board` prints one row per model delta,
with the data that the client receives for it. Rows are printed as the deltas arrive, whether the output is a terminal
or a pipe.

The sample writes the format that it is taught and never refuses. When the sample is used, the proxy therefore listens
only for that format and does not look for refusals; otherwise the first reply would wait for the compilation of tables
that it does not need.
"""

import http.client
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import Any

import uvicorn
from attrs import define, evolve, field

from streamtool.asgi.types import ASGIApp, Receive, Scope, Send
from streamtool.cli.common import Screen
from streamtool.cli.demo_board import Board, Tap
from streamtool.cli.serve import address, bind
from streamtool.core.errors import SettingsError, StreamtoolError, UpstreamError
from streamtool.core.sse import SseReader
from streamtool.exchange.record import Record
from streamtool.observe.verdicts import verdict
from streamtool.proxy import Proxy
from streamtool.sample import Sample
from streamtool.settings import load
from streamtool.upstream.app import HttpUpstream

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
"""Maximum number of replies, in case the model never stops making calls."""
_READ = 64 * 1024
_DELTA = 6  # characters in each of the sample's deltas
_RECORD = 1.0  # maximum seconds to wait for an exchange's record after its reply
_START = 10.0  # maximum seconds to wait for the server to start
CLIENTS = {"http": "http.client", "openai": "the openai client"}
"""Values of `--client` and their descriptions."""
SUGGESTIONS = (
    ("your own model", "streamtool serve --upstream http://127.0.0.1:11434"),
    ("other formats", "streamtool demo --format qwen3_coder"),
    ("OpenAI's client", "streamtool demo --client openai"),
    ("on a page", "streamtool demo --page"),
)
"""Suggestions for what to try next."""


def get_weather(city: str, unit: str = "celsius") -> str:
    """Return a fixed weather report. This is the demo's tool."""
    return f"18 °C in {city}, light rain" if unit == "celsius" else f"64 °F in {city}, light rain"


@define
class DemoFlags:
    """Flags of `streamtool demo`. None means that the flag was not given."""

    upstream: str | None = None
    model: str = "sample"
    key_env: str | None = None
    format: str | None = None
    delay: float = 0.06
    """Seconds between the sample's deltas."""
    client: str = "http"
    """A key of `CLIENTS`."""
    page: bool = False
    """Whether to open the inspector in a browser."""


def run(flags: DemoFlags) -> None:
    """Run the demo. Raises StreamtoolError if the conversation ends without a final answer."""
    key = None if flags.key_env is None else f"env:{flags.key_env}"
    values = {"upstream": {"demo": {"url": flags.upstream or "sample", "key": key}}, "format": flags.format}
    # ignore all other settings, so that the demo is the same everywhere
    settings = load(None, {name: value for name, value in os.environ.items() if name == flags.key_env}, values)
    target = settings.upstreams["demo"]
    sample = target.url == "sample"
    ask = client_for(flags.client)
    screen = Screen()
    board, page = Board(screen), None
    if flags.page:
        from streamtool.cli.demo_page import DemoPage  # noqa: PLC0415  imported on demand

        page = DemoPage(screen)
        settings = evolve(settings, inspect=True, contents=True)
    if sample:
        settings = evolve(settings, formats=(settings.for_model(flags.model).format,), refusals="pass")
    app: ASGIApp = Sample(delta=_DELTA, delay=flags.delay) if sample else HttpUpstream(target)
    tap = Tap(app, board, TOOLS, settings.for_model(flags.model).listened_formats)
    records: queue.SimpleQueue[Record] = queue.SimpleQueue()
    proxy = Proxy(settings, apps={"demo": tap}, on_exchange=records.put)

    async def stage(scope: Scope, receive: Receive, send: Send) -> None:
        await proxy(scope, receive, send)
        if scope["type"] == "lifespan" and isinstance(app, HttpUpstream):  # the server has stopped
            await app.aclose()

    with running_server(stage if page is None else page.wrap(stage)) as url:
        board.introduce(CLIENTS[flags.client], url, "the sample model" if sample else target.url)
        with nullcontext() if page is None else page.open_page(url):
            try:
                answer = converse(lambda request: ask(url, request), board, flags.model, records)
            except BrokenPipeError:  # the reader of our output has closed the pipe
                raise
            except Exception as error:
                raise find_cause(records, error) from error
            if not answer:
                raise StreamtoolError("the conversation ended without a final answer")
            board.conclude(answer, SUGGESTIONS)


def find_cause(records: "queue.SimpleQueue[Record]", error: Exception) -> Exception:
    """Return the error recorded by the proxy, falling back to the error that the client saw."""
    try:
        while True:  # the record of the last exchange may arrive shortly after the reply
            found = records.get(timeout=_RECORD).error
            if found is not None:
                return found
    except queue.Empty:
        if isinstance(error, OSError | http.client.HTTPException):
            return StreamtoolError(f"the conversation failed: {error}")
        return error


_ReplyChunk = Mapping[str, Any]
Ask = Callable[[Mapping[str, Any]], Iterator[_ReplyChunk]]


def converse(ask: Ask, board: "Board", model: str, records: "queue.SimpleQueue[Record]") -> str:
    """Hold the conversation and return the final answer, or "" if the model gives no answer."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    board.question(QUESTION, [tool["function"]["name"] for tool in TOOLS])
    for _ in range(TURNS):
        board.turn()
        reply = DemoReply()
        for chunk in ask({"model": model, "messages": messages, "tools": list(TOOLS), "stream": True}):
            for kind, text in reply.add(chunk):
                board.client(kind, text)
        board.end_turn()
        with suppress(queue.Empty):
            board.verdict(str(verdict(records.get(timeout=_RECORD), contents=True)))
        if not reply.calls:
            return reply.text
        messages.append({"role": "assistant", "content": reply.text or None, "tool_calls": reply.calls})
        for call in reply.calls:
            result = execute(call["function"]["name"], call["function"]["arguments"])
            board.result(call["function"]["name"], call["function"]["arguments"], result)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    return ""


def execute(name: str, arguments: str) -> str:
    """Run the tool and return its result. If the model's call is invalid, the result describes the error."""
    if name != "get_weather":
        return f"there is no tool {name}"
    try:
        given = json.loads(arguments)
        return get_weather(str(given["city"]), str(given.get("unit", "celsius")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"the arguments are wrong: {error!r}"


@define
class DemoReply:
    """A reply, accumulated from its chunks."""

    text: str = ""
    calls: list[dict[str, Any]] = field(factory=list)

    def add(self, chunk: _ReplyChunk) -> Iterator[tuple[str, str]]:
        """Add a chunk and yield its parts as (kind, text)."""
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


def client_for(name: str) -> Callable[[str, Mapping[str, Any]], Iterator[_ReplyChunk]]:
    """Return the client with this name: a function that takes the server's URL and a request, and yields the reply's
    chunks.

    Raises SettingsError if the name is unknown or the client is not installed.
    """
    if name == "http":
        return ask_with_http_client
    if name not in CLIENTS:
        raise SettingsError(f"--client: expected {' or '.join(CLIENTS)}, found {name!r}", param="--client")
    try:
        import openai  # noqa: PLC0415  optional, and slow to import
    except ImportError:
        raise SettingsError("--client openai needs the openai client: pip install openai", param="--client") from None

    def ask(url: str, request: Mapping[str, Any]) -> Iterator[_ReplyChunk]:
        # ignore the environment's proxy settings: both ends are on this machine
        with (
            openai.DefaultHttpxClient(trust_env=False) as http,
            openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http) as client,
            client.chat.completions.create(**request) as stream,
        ):
            for chunk in stream:
                yield chunk.model_dump()

    return ask


def ask_with_http_client(url: str, request: Mapping[str, Any]) -> Iterator[_ReplyChunk]:
    """Yield the chunks of a reply, using the standard library's HTTP client. Raises OSError and HTTPException."""
    reader = SseReader()
    with closing(http.client.HTTPConnection(url.removeprefix("http://"))) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(request), {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise StreamtoolError(f"the proxy responded with status {response.status}: {response.read().decode()}")
        while data := response.read1(_READ):
            for event in reader.feed(data):
                if event.data == b"[DONE]":
                    continue
                chunk = json.loads(event.data)
                if "error" in chunk:
                    raise UpstreamError(str(chunk["error"].get("message")))
                yield chunk


@contextmanager
def running_server(app: ASGIApp) -> Iterator[str]:
    """Serve `app` in a separate thread for the duration of the block, and yield its URL."""
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
