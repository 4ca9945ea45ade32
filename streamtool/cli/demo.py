"""`streamtool demo`: a model that only writes text calls a tool, and one watches.

A real server (uvicorn, a free loopback port, a thread of its own) runs the proxy with the sample model behind it. A
client in the main thread holds a conversation over the socket: the official openai client if it is installed, else
httpx. `Tap` stands between proxy and model and shows what the model writes; `Board` prints it beside what the client
receives, a row for each of the model's deltas. The rows come as the deltas come, on a terminal and in a pipe alike.
"""

import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import httpx
import uvicorn
from attrs import define, field

from streamtool.cli.common import Screen, quoted
from streamtool.cli.serve import address, bind
from streamtool.errors import StreamtoolError, UpstreamError
from streamtool.exchange import Record
from streamtool.http.asgi import ASGIApp, Message, Receive, Scope, Send
from streamtool.http.upstream import HttpUpstream
from streamtool.protocols import chat
from streamtool.proxy import Proxy
from streamtool.reply import ReplyTextDelta
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
_DELTA = 6  # characters of the sample's deltas
_LEFT = 22  # columns of what the model writes
_RECORD = 1.0  # seconds that the record of an exchange may come after its reply
_START = 10.0  # seconds that the server may take to start


def get_weather(city: str, unit: str = "celsius") -> str:
    """The tool: a result that needs no network."""
    return f"18 °C in {city}, light rain" if unit == "celsius" else f"64 °F in {city}, light rain"


def run(upstream: str | None, model: str, key_env: str | None, format_name: str | None, delay: float) -> None:
    """Show the demo. Raises StreamtoolError when there is no final answer in the end."""
    key = None if key_env is None else f"env:{key_env}"
    flags = {"upstream": {"demo": {"url": upstream or "sample", "key": key}}, "format": format_name}
    # no other settings: the demo is the same for everybody
    settings = load(None, {name: value for name, value in os.environ.items() if name == key_env}, flags)
    target = settings.upstreams["demo"]
    board = Board(Screen())
    app: ASGIApp = Sample(delta=_DELTA, delay=delay) if target.url == "sample" else HttpUpstream(target)
    records: queue.SimpleQueue[Record] = queue.SimpleQueue()
    proxy = Proxy(settings, apps={"demo": Tap(app, board)}, on_exchange=records.put)

    async def stage(scope: Scope, receive: Receive, send: Send) -> None:
        await proxy(scope, receive, send)
        if scope["type"] == "lifespan" and isinstance(app, HttpUpstream):  # the server has stopped
            await app.aclose()

    with served(stage) as url:
        client, ask = client_for(url)
        board.introduce(client, url, "the sample model" if target.url == "sample" else target.url)
        try:
            answer = converse(ask, board, model)
        except BrokenPipeError:  # whoever looks on has enough
            raise
        except Exception as error:
            raise cause(records, error) from error
    if not answer:
        raise StreamtoolError("the conversation ended without a final answer")
    board.conclude(answer)


def cause(records: "queue.SimpleQueue[Record]", error: Exception) -> Exception:
    """Why the client saw an error: what the proxy recorded, else the error itself."""
    try:
        while True:  # the record of the last exchange may come a moment after its reply
            found = records.get(timeout=_RECORD).error
            if found is not None:
                return found
    except queue.Empty:
        if isinstance(error, OSError | httpx.HTTPError):
            return StreamtoolError(f"the conversation broke off: {error}")
        return error


Chunk = Mapping[str, Any]
Ask = Callable[[Mapping[str, Any]], Iterator[Chunk]]


def converse(ask: Ask, board: "Board", model: str) -> str:
    """The final answer; "" if none came."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    board.question(QUESTION)
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


def client_for(url: str) -> tuple[str, Ask]:
    """The name of the client, and the client: a request in, the chunks of its reply out, as they come."""
    try:
        import openai  # noqa: PLC0415  optional
    except ImportError:
        return "httpx", lambda request: ask_httpx(url, request)

    def ask(request: Mapping[str, Any]) -> Iterator[Chunk]:
        # no proxy of the environment stands between two ends of one machine
        with (
            openai.DefaultHttpxClient(trust_env=False) as http,
            openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http) as client,
            client.chat.completions.create(**request) as stream,
        ):
            for chunk in stream:
                yield chunk.model_dump()

    return "the openai client", ask


def ask_httpx(url: str, request: Mapping[str, Any]) -> Iterator[Chunk]:
    """The same with httpx alone."""
    reader = SseReader()
    with (
        httpx.Client(trust_env=False, timeout=None) as client,  # noqa: S113  the proxy keeps the time
        client.stream("POST", f"{url}/v1/chat/completions", json=dict(request)) as response,
    ):
        if response.is_error:
            raise StreamtoolError(f"the proxy answered {response.status_code}: {response.read().decode()}")
        for data in response.iter_raw():
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


class Tap:
    """An upstream that shows what it writes on the board."""

    def __init__(self, app: ASGIApp, board: "Board") -> None:
        self._app = app
        self._board = board

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on; show the prompt's size and each delta before it goes back."""
        reader = chat.ReplyReader()
        body = bytearray()

        async def watch_request() -> Message:
            message = await receive()
            if message["type"] == "http.request":
                body.extend(message.get("body", b""))
                if not message.get("more_body", False):
                    self._board.prompt(len(body), tools=b'"tools"' in body)
            return message

        async def watch_reply(message: Message) -> None:
            if message["type"] == "http.response.body":
                for event in reader.feed(message.get("body", b"")):
                    if isinstance(event, ReplyTextDelta):
                        self._board.model(event.text)
            await send(message)

        await self._app(scope, watch_request, watch_reply)


class Board:
    """The rows: on the left what the model writes, on the right what the client receives for it."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._lock = threading.RLock()
        self._began = 0.0
        self._open = False
        """A row whose right side is still empty."""
        self._calls = 0
        self._turn = 0
        self._waits = ""
        """What the last empty right side said."""

    def introduce(self, client: str, url: str, model: str) -> None:
        """Who takes part."""
        self._screen.line()
        self._screen.line(
            ("  ", ""), (client, "bold"), "  ⇄  ", ("streamtool", "bold cyan"), f" at {url}  ⇄  ", (model, "bold")
        )
        self._screen.line(("  sends tools, gets calls", "dim"), ("   tools become text, text becomes calls", "dim"))
        self._screen.line(("  The model is given nothing but text and gives nothing but text.", "dim"))

    def question(self, text: str) -> None:
        """What the user asks."""
        offered = ", ".join(tool["function"]["name"] for tool in TOOLS)
        self._screen.line()
        self._screen.line(("  user    ", "dim"), (text, "bold"))
        self._screen.line(("  offered ", "dim"), (offered, "green"))

    def turn(self) -> None:
        """A request begins."""
        self._turn += 1
        self._calls = 0
        self._began = time.monotonic()

    def prompt(self, size: int, *, tools: bool) -> None:
        """The upstream has the request."""
        with self._lock, suppress(BrokenPipeError):  # the client's side says so
            inside = "tools field included" if tools else "without a tools field"
            self._screen.line()
            self._screen.line(
                (f"  Request {self._turn}", "bold cyan"), (f"  {size:,} bytes to the model, {inside}", "dim")
            )
            head = f"  {'seconds':<9}{'the model writes':<{_LEFT + 2}}the client receives"
            self._screen.line((head, "dim"))

    def model(self, text: str) -> None:
        """The model has written a delta."""
        with self._lock, suppress(BrokenPipeError):
            self._fill()
            written = quoted(text)
            if len(written) > _LEFT:
                written = written[: _LEFT - 1] + "…"
            passed = time.monotonic() - self._began
            self._screen.line((f"  {passed:>5.2f}    ", "dim"), f"{written:<{_LEFT}}  ", end="")
            self._open = True

    def client(self, kind: str, text: str) -> None:
        """The client has received a piece."""
        with self._lock:
            if not self._open:
                self._screen.line(" " * (_LEFT + 13), end="")
            self._open = False
            self._waits = ""
            self._calls += kind == "call"
            style = {"text": "", "call": "bold green", "arguments": "green"}.get(kind, "cyan")
            shown = quoted(text) if kind in ("text", "arguments") else text
            self._screen.line((f"{kind:<11}", "dim"), (shown, style))

    def end_turn(self) -> None:
        """The reply is whole."""
        with self._lock:
            self._fill()

    def _fill(self) -> None:
        """Say why the client got nothing for the last row."""
        if self._open:
            why = "markup of the call" if self._calls else "held back: may become a call"
            self._screen.line(("·" if why == self._waits else f"·  {why}", "dim"))
            self._waits = why
            self._open = False

    def result(self, name: str, arguments: str, result: str) -> None:
        """The client has executed a call."""
        self._screen.line()
        self._screen.line(("  The client runs ", ""), (f"{name}({arguments})", "green"), "  →  ", (result, "bold"))

    def conclude(self, answer: str) -> None:
        """The final answer, and where to go from here."""
        self._screen.line()
        self._screen.line(("  Final answer  ", "bold cyan"), (answer, "bold"))
        self._screen.line()
        self._screen.line(("  your own model:  ", "dim"), "streamtool serve --upstream http://127.0.0.1:11434")
        self._screen.line(("  other formats:   ", "dim"), "streamtool demo --format qwen3_coder")
        self._screen.line()
