"""`deploy/ray_serve.yaml`, run by Ray Serve: replicas stream, stop with their clients, and fail independently."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import httpx
import openai
import psutil
import pytest
from engines.conftest import needs
from support.dialects import chat
from support.servers import ROOT, free_port, uvicorn_server, wait_for

pytestmark = pytest.mark.engines
DEPLOY = ROOT / "deploy"
STREAMS = 40
"""Maximum number of streams until each replica has one."""
START = 240
"""Timeout of Ray in seconds; it starts ten processes."""


class Upstream:
    """An upstream that streams words until all are released, or until the clients disconnect."""

    def __init__(self) -> None:
        self.open = self.left = 0
        self.released = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive())["more_body"]:
            pass
        if scope["method"] != "POST":  # the questions that recognize a server; their connections do not remain
            await send({"type": "http.response.start", "status": 404, "headers": [(b"connection", b"close")]})
            await send({"type": "http.response.body"})
            return
        first, word, *end = chat(["word "], "stop")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": first, "more_body": True})
        self.open += 1

        async def leave() -> None:
            await receive()
            self.left += 1
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leave)
            while not self.released:
                await send({"type": "http.response.body", "body": word, "more_body": True})
                await anyio.sleep(0.05)
            await send({"type": "http.response.body", "body": b"".join(end)})
            tasks.cancel_scope.cancel()
        self.open -= 1


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    model = Upstream()
    yield model
    model.released = True


@pytest.fixture
def served(tmp_path: Path, upstream: Upstream) -> Iterator[tuple[str, int]]:
    """Yield the URL of Ray's proxy, and the upstream's port; runs the file of `deploy/`."""
    needs("ray")
    port = free_port()
    shutil.copy(DEPLOY / "ray_serve.py", tmp_path)
    text = (DEPLOY / "ray_serve.yaml").read_text()
    assert "port: 8700" in text
    (tmp_path / "ray_serve.yaml").write_text(text.replace("port: 8700", f"port: {port}"))
    command = re.search(r"`(serve run \S+)`", text)
    assert command
    with uvicorn_server(upstream) as model, (tmp_path / "log").open("w+") as log:
        (tmp_path / "streamtool.toml").write_text(f'chat_template = "none"\n[upstream.model]\nurl = "{model.url}"\n')
        argv = [str(Path(sys.executable).with_name("serve")), *command[1].split()[1:]]
        env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_ADDRESS": "local"}  # never another cluster
        env |= {f"RAY_SERVE_PROXY_{check}_CHECK_TIMEOUT_S": str(START) for check in ("READY", "HEALTH")}
        child = subprocess.Popen(argv, cwd=tmp_path, env=env, stdout=log, stderr=subprocess.STDOUT)
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(lambda: _ready(url) or child.poll() is not None, "Ray serves", START)
            assert child.poll() is None, (tmp_path / "log").read_text()
            yield url, model.port
        finally:
            child.send_signal(signal.SIGINT)
            child.wait(START)
            print((tmp_path / "log").read_text())  # shown if the test fails


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", trust_env=False, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def heard(url: str, begun: Callable[[], object] = lambda: None) -> str:
    """Return how the stream of a client ends: its finish reason or the name of the error; call `begun` for each
    chunk.
    """
    with openai.OpenAI(
        base_url=f"{url}/v1", api_key="x", max_retries=0, http_client=httpx.Client(trust_env=False, timeout=60)
    ) as client:
        ended = ""
        try:
            stream = client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "Hi"}], stream=True
            )
            for chunk in stream:
                begun()
                for choice in chunk.choices:
                    ended = choice.finish_reason or ended
        except (openai.APIError, httpx.HTTPError) as error:
            return type(error).__name__
        return ended


def replicas() -> list[psutil.Process]:
    return [one for one in psutil.process_iter(["cmdline"]) if "ServeReplica" in "".join(one.info["cmdline"] or ())]


def streams(replica: psutil.Process, port: int) -> int:
    """Return how many connections a process has to the upstream."""
    return sum(bool(one.raddr) and one.raddr.port == port for one in replica.net_connections("tcp"))


def test_streams_replicas_and_disconnecting_clients(served: tuple[str, int], upstream: Upstream):
    """A single start of Ray, which takes some ten seconds, serves all checks."""
    url, port = served

    def on(replica: psutil.Process) -> int:
        return streams(replica, port)

    # deltas arrive one by one
    with httpx.stream(
        "POST",
        f"{url}/v1/chat/completions",
        json={"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]},
        trust_env=False,
        timeout=60,
    ) as reply:
        lines = (line for line in reply.iter_lines() if "word" in line)
        assert [next(lines) for _ in range(3)]
        assert (upstream.open, upstream.left) == (1, 0)
    # when a client disconnects, its replica closes its stream
    wait_for(lambda: (upstream.open, upstream.left) == (0, 1), "the upstream connection is closed", 10)
    # a replica dies
    with ThreadPoolExecutor(STREAMS) as pool:
        try:
            ends = []
            while len(ends) < STREAMS and not (len(replicas()) == 2 and all(on(one) for one in replicas())):
                begun = threading.Event()
                ends.append(pool.submit(heard, url, begun.set))
                assert begun.wait(30), "another stream has started"
            dead, alive = replicas()
            lost, kept = on(dead), on(alive)
            dead.kill()
            wait_for(lambda: upstream.left == 1 + lost, "the upstream knows", 30)
        finally:
            upstream.released = True
        told = [end.result() for end in ends]
    assert lost
    assert told.count("stop") == kept
    assert told.count("APIConnectionError") == lost
    # Ray replaces it; until then the other one answers
    assert heard(url) == "stop"
    wait_for(lambda: len(replicas()) == 2, "another replica has started", 60)
    assert heard(url) == "stop"
