"""Compares failover: the replies that clients receive if the first of two upstreams fails, anywhere in its reply.

    python benchmarks/failover.py [--only PEER] [--json FILE]

Prints a Markdown table of faults and proxies. Every reply contains a call. The bare proxy tries the second upstream as
nginx does: if the connection fails, or an error status arrives, before it has sent anything. LiteLLM is installed into
`benchmarks/.failover`; both have the second upstream as a fallback. streamtool's upstreams speak the completions
protocol, the others' make native calls, at the same places.

- **right**: the reply is complete, and its call is the model's.
- **error**: the client receives an error, and no call that it could take for a complete one.
- **lost**: the reply ends without an error and without the call.
- **cut**: the reply ends without an error, in the arguments of the call.
- **wrong**: the reply ends without an error, with another call.
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import venv
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from peers import body_of

HERE = Path(__file__).parent
ENVIRONMENT = HERE / ".failover"
NAME, ARGUMENTS = "read_file", {"path": "src/main.py", "lines": [1, 20]}
TEXT = ("Let me look ", "at the file.\n")
NATIVE = ('{"path": "src/', 'main.py", "lines"', ": [1, 2", "0]}")
WRITTEN = (*TEXT, '<tool_call>\n{"name": "read_', 'file", "arguments": ', *NATIVE, "}\n</tool_call>")
IN_TEXT, IN_NAME, IN_ARGUMENTS = 1, 3, 6
"""Numbers of events before a fault. A native call has its name in the third event."""
SECONDS = 2.0
"""Longest silence of an upstream."""
STARTED = 90.0
KEY = "sk-failover"
"""Key of the clients, without which LiteLLM does not start."""
END = b"0\r\n\r\n"
PEERS = ("bare proxy", "LiteLLM", "streamtool")
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "lines": {"type": "array", "items": {"type": "integer"}}},
        },
    },
}
Fault = Callable[["Upstream", asyncio.StreamWriter, list[bytes]], Awaitable[None]]


# --- the model


def events(body: dict[str, Any], *, native: bool) -> list[bytes]:
    """Return the events of the model's reply, or of its rest after the beginning in the prompt."""
    if native:
        first = {"index": 0, "id": "call_1", "type": "function", "function": {"name": NAME, "arguments": ""}}
        deltas: list[Any] = [{"content": piece} for piece in TEXT] + [{"tool_calls": [first]}]
        deltas += [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in NATIVE]
        choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
    else:
        whole = "".join(WRITTEN)
        known = next((n for n in range(len(whole), 0, -1) if body["prompt"].endswith(whole[:n])), 0)
        pieces = list(WRITTEN) if not known else [whole[at : at + 8] for at in range(known, len(whole), 8)]
        choices = [{"index": 0, "text": piece, "finish_reason": None} for piece in pieces]
        choices.append({"index": 0, "text": "", "finish_reason": "stop"})
    return [*(event(choices=[choice], native=native) for choice in choices), b"data: [DONE]\n\n"]


def event(*, choices: list[Any], native: bool) -> bytes:
    kind = "chat.completion.chunk" if native else "text_completion"
    payload = {"id": "c1", "object": kind, "created": 1, "model": "m", "choices": choices}
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


# --- upstreams and their faults


class Upstream:
    """An upstream, whose replies have the current fault."""

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.native = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:-2])
                body = await reader.readexactly(int(fields.get("content-length", 0)))
                if not body:
                    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                    continue
                self.native = b"/chat/" in head.split(b"\r\n", 1)[0]
                await (self.fault or whole)(self, writer, events(json.loads(body), native=self.native))
                await writer.drain()
        writer.close()


def reset(writer: asyncio.StreamWriter) -> None:
    """Reset the connection."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def send(writer: asyncio.StreamWriter, pieces: list[bytes]) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for piece in pieces:
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        await writer.drain()
        await asyncio.sleep(0.005)


async def whole(_: Upstream, writer: asyncio.StreamWriter, pieces: list[bytes]) -> None:
    await send(writer, pieces)
    writer.write(END)


def status(code: int, body: bytes = b'{"error": {"message": "no"}}', kind: bytes = b"application/json") -> Fault:
    async def fault(_: Upstream, writer: asyncio.StreamWriter, __: list[bytes]) -> None:
        writer.write(
            b"HTTP/1.1 %d X\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (code, kind, len(body)) + body
        )

    return fault


def ends(after: int, how: str, last: Callable[[Upstream], bytes] | None = None) -> Fault:
    """Return a fault after this number of events, with a `last` one: a reset, a FIN, a stall or the end of the body."""

    async def fault(upstream: Upstream, writer: asyncio.StreamWriter, pieces: list[bytes]) -> None:
        await send(writer, [*pieces[:after], *([last(upstream)] if last else [])])
        if how == "reset":
            reset(writer)
        elif how == "stall":
            await asyncio.sleep(SECONDS * 4)
            reset(writer)
        elif how == "chunk":
            writer.write(b"zz\r\n")
        elif how == "end":
            writer.write(END)
        if how in ("fin", "chunk"):
            writer.close()

    return fault


async def silent(_: Upstream, writer: asyncio.StreamWriter, __: list[bytes]) -> None:
    await asyncio.sleep(SECONDS * 4)
    reset(writer)


async def unborn(_: Upstream, writer: asyncio.StreamWriter, __: list[bytes]) -> None:
    reset(writer)


def failure(_: Upstream) -> bytes:
    return b'data: {"error": {"message": "out of memory", "type": "server_error", "code": 500}}\n\n'


def finish(reason: str) -> Callable[[Upstream], bytes]:
    def made(upstream: Upstream) -> bytes:
        content: dict[str, Any] = {"delta": {}} if upstream.native else {"text": ""}
        last = {"index": 0, **content, "finish_reason": reason}
        return event(choices=[last], native=upstream.native) + b"data: [DONE]\n\n"

    return made


PAGE = b"<html><body><h1>Bad gateway</h1></body></html>"
FAULTS: dict[str, Fault | None] = {
    "connection refused": None,
    "reset before the headers": unborn,
    "status 429": status(429),
    "status 500": status(500),
    "status 503": status(503),
    "status 502 with a page": status(502, PAGE, b"text/html"),
    "a page with status 200": status(200, PAGE, b"text/html"),
    "stall before the headers": silent,
    "stall after the headers": ends(0, "stall"),
    "empty reply": ends(0, "end", finish("stop")),
    "reset in text": ends(IN_TEXT, "reset"),
    "end of the body in text": ends(IN_TEXT, "end"),
    "error event in text": ends(IN_TEXT, "end", failure),
    "stall in text": ends(IN_TEXT, "stall"),
    "reset in the call's name": ends(IN_NAME, "reset"),
    "reset in the arguments": ends(IN_ARGUMENTS, "reset"),
    "connection closed in the arguments": ends(IN_ARGUMENTS, "fin"),
    "end of the body in the arguments": ends(IN_ARGUMENTS, "end"),
    "error event in the arguments": ends(IN_ARGUMENTS, "end", failure),
    "stall in the arguments": ends(IN_ARGUMENTS, "stall"),
    "server's own limit in the arguments": ends(IN_ARGUMENTS, "end", finish("length")),
    "damaged JSON in the arguments": ends(IN_ARGUMENTS, "end", lambda _: b'data: {"id": "c1", "choi\n\n'),
    "invalid chunk in the arguments": ends(IN_ARGUMENTS, "chunk"),
}


# --- proxies


def bare(urls: list[str]) -> Any:
    """Return a proxy that copies bytes, and tries the second upstream before it has sent any."""
    client = httpx.AsyncClient(timeout=SECONDS)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = await body_of(receive)
        for url in urls:
            begun = False
            try:
                headers = {"content-type": "application/json"}
                async with client.stream("POST", url + scope["path"], content=body, headers=headers) as response:
                    if response.status_code >= 400 and url != urls[-1]:
                        continue
                    begun = True
                    kind = response.headers.get("content-type", "").encode()
                    start = {"type": "http.response.start", "headers": [(b"content-type", kind)]}
                    await send({**start, "status": response.status_code})
                    async for piece in response.aiter_raw():
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
            except httpx.HTTPError:
                if begun:
                    raise
                continue
            return

    return app


def litellm() -> Path:
    """Install LiteLLM, unless it is installed, and return its command."""
    found = ENVIRONMENT / "bin" / "litellm"
    if not found.exists():
        venv.create(ENVIRONMENT, with_pip=True, clear=True)
        pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", "--quiet", "litellm[proxy]"]
        subprocess.run(pip, check=True)
    return found


def command(peer: str, port: int, urls: list[str], folder: Path) -> list[str]:
    """Return the command that serves the proxy on this port."""
    if peer == "bare proxy":
        return [sys.executable, __file__, "--bare", str(port), *urls]
    if peer == "LiteLLM":
        models = [
            {
                "model_name": name,
                "litellm_params": {"model": "openai/m", "api_base": f"{url}/v1", "api_key": "x", "timeout": SECONDS},
            }
            for name, url in zip(("m", "second"), urls, strict=True)
        ]
        router = {"fallbacks": [{"m": ["second"]}], "num_retries": 1, "disable_cooldowns": True, "timeout": SECONDS}
        file = folder / "litellm.yaml"
        file.write_text(
            json.dumps({"model_list": models, "router_settings": router, "general_settings": {"master_key": KEY}}),
            encoding="utf-8",
        )
        return [str(litellm()), "--config", str(file), "--host", "127.0.0.1", "--port", str(port)]
    file = folder / "streamtool.toml"
    text = 'format = "tool_call"\nchat_template = "none"\n'
    for name, url in zip(("first", "second"), urls, strict=True):
        more = 'fallbacks = ["second"]\n' if name == "first" else ""
        text += f'[upstream.{name}]\nurl = "{url}"\nprotocol = "completions"\ncircuit = {{failures = 1000}}\n{more}'
        text += f"timeout = {{connect = {SECONDS}, first_byte = {SECONDS}, idle = {SECONDS}}}\n"
    file.write_text(text, encoding="utf-8")
    return [sys.executable, "-m", "streamtool", "serve", "--config", str(file), "--port", str(port)]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.asynccontextmanager
async def running(peer: str, urls: list[str]) -> AsyncIterator[str]:
    """Run the proxy and yield its URL."""
    port = free_port()
    with TemporaryDirectory() as folder:
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(  # noqa: ASYNC220  it does not block
            command(peer, port, urls, Path(folder)),
            stdout=quiet,
            stderr=quiet,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(HERE.parent)},  # this tree, even if another one is installed
        )
        try:
            async with asyncio.timeout(STARTED):
                while True:
                    with contextlib.suppress(OSError):
                        _, writer = await asyncio.open_connection("127.0.0.1", port)
                        writer.close()
                        break
                    await asyncio.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


# --- the client


async def asked(url: str) -> str:
    """Return what a client receives."""
    body = {"model": "m", "stream": True, "tools": [TOOL], "messages": [{"role": "user", "content": "Read the file."}]}
    calls: dict[int, list[str]] = {}
    ended = False
    try:
        async with (
            httpx.AsyncClient(timeout=60, trust_env=False) as client,
            client.stream(
                "POST", f"{url}/v1/chat/completions", json=body, headers={"authorization": f"Bearer {KEY}"}
            ) as response,
        ):
            if response.status_code >= 400:
                return "error"
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line[6:])
                if chunk.get("error"):
                    return "error"
                for choice in chunk["choices"]:
                    for part in choice["delta"].get("tool_calls") or ():
                        call = calls.setdefault(part["index"], ["", ""])
                        call[0] += part["function"].get("name") or ""
                        call[1] += part["function"].get("arguments") or ""
                    ended = ended or bool(choice.get("finish_reason"))
    except (httpx.HTTPError, ValueError):
        return "error"
    found = [(name, readable(arguments)) for name, arguments in calls.values()]
    if found == [(NAME, ARGUMENTS)] and ended:
        return "right"
    if not ended:
        return "error"  # the reply has no end
    return "cut" if any(value is None for _, value in found) else "wrong" if found else "lost"


def readable(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return None


async def measured(peers: list[str]) -> dict[str, dict[str, str]]:
    """Return the outcomes: fault → proxy → outcome."""
    first, second = Upstream(), Upstream()
    servers = [await asyncio.start_server(one.serve, "127.0.0.1", 0) for one in (first, second)]
    urls = [f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
    refusing = f"http://127.0.0.1:{free_port()}"
    found: dict[str, dict[str, str]] = {fault: {} for fault in FAULTS}
    for peer in peers:
        for group in ([fault for fault in FAULTS if FAULTS[fault] is None], [f for f in FAULTS if FAULTS[f]]):
            closed = FAULTS[group[0]] is None
            async with running(peer, [refusing if closed else urls[0], urls[1]]) as url:
                for fault in group:
                    first.fault = FAULTS[fault]
                    found[fault][peer] = await asked(url)
                    print(f"{peer}: {fault}: {found[fault][peer]}", file=sys.stderr, flush=True)
    return found


def table(found: dict[str, dict[str, str]]) -> str:
    """Return the outcomes as a Markdown table."""
    peers = list(next(iter(found.values())))
    rows = [["fault", *peers], ["---"] * (1 + len(peers))]
    rows += [[fault, *outcomes.values()] for fault, outcomes in found.items()]
    right = [f"{sum(outcomes[peer] == 'right' for outcomes in found.values())} of {len(found)}" for peer in peers]
    rows.append(["**right**", *right])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    if sys.argv[1:2] == ["--bare"]:
        import uvicorn  # noqa: PLC0415  only the bare proxy needs it

        port, *urls = sys.argv[2:]
        uvicorn.run(bare(urls), port=int(port), log_level="critical", ws="none")
        return
    arguments = argparse.ArgumentParser(description="Compare failover.")
    arguments.add_argument("--only", action="append", choices=PEERS, default=[])
    arguments.add_argument("--json", type=Path)
    given = arguments.parse_args()
    found = asyncio.run(measured(given.only or list(PEERS)))
    print(table(found))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
