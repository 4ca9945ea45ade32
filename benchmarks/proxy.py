"""Wall and CPU time of a reply of many deltas through the proxy, next to a bare httpx proxy that copies bytes.

    python benchmarks/proxy.py [DELTAS]

Upstream, bare proxy and our proxy are three processes of uvicorn on loopback; the client is a socket. Each wall time is
the least of several rounds that take turns, each CPU time (of the proxy's process) their mean.
"""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from streamtool.proxy import Proxy
from streamtool.settings import Settings
from streamtool.testing import text

ROUNDS = 11
PROSE = "The quick brown fox jumps over the lazy dog, and then it rests in the shade of an old tree for a while. "
PLAIN = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
TOOLS = [
    {"type": "function", "function": {"name": f"tool_{i}", "parameters": {"type": "object", "properties": {}}}}
    for i in range(20)
]


def upstream(count: str) -> Any:
    size = int(count) * 4
    steps = text((PROSE * (size // len(PROSE) + 1))[:size]).steps

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            while (await receive()).get("more_body"):
                pass
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            for step in steps:
                await send({"type": "http.response.body", "body": step, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

    return app


def bare(url: str) -> Any:
    client = httpx.AsyncClient(timeout=None)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            body = (await receive())["body"]  # small enough for one message
            async with client.stream("POST", url + "/v1/chat/completions", content=body) as response:
                headers = [(b"content-type", b"text/event-stream")]
                await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
                async for piece in response.aiter_raw():
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                await send({"type": "http.response.body", "body": b""})

    return app


def proxy(url: str) -> Any:
    return Proxy(Settings(upstreams={"u": {"url": url}}))


APPS = {"upstream": upstream, "bare": bare, "proxy": proxy}


def serve(name: str, port: str, argument: str) -> None:
    uvicorn.run(APPS[name](argument), port=int(port), log_level="error", ws="none")


def start(name: str, argument: str) -> tuple[subprocess.Popen[bytes], int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, __file__, name, str(port), argument])
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
        else:
            break
    return process, port


def call(port: int, body: bytes) -> float:
    """Seconds from the request to the end of the reply."""
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        began = time.perf_counter()
        sock.sendall(head % len(body) + body)
        tail = b""
        while not tail.endswith(b"0\r\n\r\n"):
            data = sock.recv(65536)
            if not data:
                raise ConnectionError("the reply was cut")
            tail = (tail + data)[-16:]
        return time.perf_counter() - began


def cpu(process: subprocess.Popen[bytes]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main(count: str = "2000") -> None:
    processes = []
    try:
        source, port = start("upstream", count)
        processes.append(source)
        ports = {}
        for name in ("bare", "proxy"):
            process, ports[name] = start(name, f"http://127.0.0.1:{port}")
            processes.append(process)
        plain, tools = json.dumps(PLAIN).encode(), json.dumps(PLAIN | {"tools": TOOLS}).encode()
        cases = {
            "bare": (ports["bare"], plain, processes[1]),
            "proxy, passed on": (ports["proxy"], plain, processes[2]),
            "proxy, tools": (ports["proxy"], tools, processes[2]),
        }
        wall, spent = dict.fromkeys(cases, 60.0), dict.fromkeys(cases, 0.0)
        for around in range(ROUNDS + 1):
            for name, (to, body, process) in cases.items():
                before = cpu(process)
                took = call(to, body)
                if around:  # the first one is for warming up
                    wall[name] = min(wall[name], took)
                    spent[name] += (cpu(process) - before) / ROUNDS
        print(f"{count} deltas of 4 characters\n{'':20}{'ms':>8}{'× bare':>8}{'CPU ms':>8}{'× bare':>8}")
        for name in cases:
            ratios = wall[name] / wall["bare"], spent[name] / max(spent["bare"], 1e-9)
            print(f"{name:20}{wall[name] * 1e3:8.1f}{ratios[0]:8.2f}{spent[name] * 1e3:8.1f}{ratios[1]:8.2f}")
    finally:
        for process in processes:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    if len(sys.argv) == 4:
        serve(*sys.argv[1:])
    else:
        main(*sys.argv[1:2])
