"""Several workers on one port: shared state, and the effect on the others when one of them dies."""

import json
import os
import re
import signal
import socket
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import anyio
import httpx
import openai
import pytest
from support.dialects import chat
from support.forked import Forked
from support.servers import Process, uvicorn_server, wait_for

SERVERS = ("uvicorn", "hypercorn")
STREAMS = 16


class Upstream:
    """An upstream that streams until it is released, at the latest at the end of its `with` block."""

    def __init__(self) -> None:
        self.asked = 0
        self.released = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        while (await receive())["more_body"]:
            pass
        pieces = chat(["One ", "word."], "stop")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"".join(pieces[:2]), "more_body": True})
        self.asked += 1
        while not self.released.is_set():  # noqa: ASYNC110  another thread sets it
            await anyio.sleep(0.005)
        await send({"type": "http.response.body", "body": b"".join(pieces[2:])})


def settings(url: str, more: str = "") -> str:
    return f'chat_template = "none"\n{more}\n[upstream.u]\nurl = "{url}"\n'


def ask(url: str) -> str:
    """Return the text of a stream, requested over a separate connection."""
    with openai.OpenAI(
        base_url=f"{url}/v1", api_key="x", max_retries=0, http_client=httpx.Client(trust_env=False)
    ) as client:
        stream = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}], stream=True)
        return "".join(choice.delta.content or "" for chunk in stream for choice in chunk.choices)


def workers_of(process: Process) -> list[int]:
    return [int(one) for one in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def outcome(one: "Future[str]") -> str:
    try:
        return one.result(30)
    except (openai.APIError, httpx.TransportError) as error:
        return type(error).__name__


@pytest.mark.parametrize("server", SERVERS)
def test_a_killed_worker_does_not_affect_the_others(tmp_path: Path, server: str):
    upstream = Upstream()
    with (
        uvicorn_server(upstream) as served,
        ThreadPoolExecutor(2 * STREAMS) as pool,
        Process(tmp_path, server, settings(served.url), workers=2) as process,
        upstream,
    ):
        killed, other = workers_of(process)
        open_ = [pool.submit(ask, process.url) for _ in range(STREAMS)]
        wait_for(lambda: upstream.asked == STREAMS, "the streams are open", 20)
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: f"worker {killed} exited (SIGKILL)" in process.log, "the log reports it", 20)
        wait_for(lambda: len(workers_of(process)) == 2, "a replacement starts", 20)
        assert other in workers_of(process)
        before = upstream.asked
        more = [pool.submit(ask, process.url) for _ in range(STREAMS)]
        wait_for(lambda: upstream.asked == before + STREAMS, "all of the port is served", 20)
        upstream.released.set()
        found = [outcome(one) for one in open_]
        assert set(found) <= {"One word.", "APIError", "RemoteProtocolError", "APIConnectionError"}
        assert 0 < found.count("One word.") < STREAMS  # a hash of the ports distributed them to both
        assert [one.result(30) for one in more] == ["One word."] * STREAMS
        process.stop()
        assert process.code() == 0


@pytest.mark.parametrize("server", SERVERS)
def test_shutdown_waits_for_open_requests(tmp_path: Path, server: str):
    upstream = Upstream()
    with (
        uvicorn_server(upstream) as served,
        ThreadPoolExecutor(STREAMS) as pool,
        Process(tmp_path, server, settings(served.url), workers=2) as process,
        upstream,
    ):
        open_ = [pool.submit(ask, process.url) for _ in range(STREAMS)]
        wait_for(lambda: upstream.asked == STREAMS, "the streams are open", 20)
        process.stop(signal.SIGINT)
        wait_for(lambda: _refuses(process.port), "the port is closed", 20)
        upstream.released.set()
        assert [one.result(30) for one in open_] == ["One word."] * STREAMS
        assert process.code() == 130


def _refuses(port: int) -> bool:
    """Return whether a connection is refused, as opposed to waiting to be accepted."""
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except (ConnectionRefusedError, ConnectionResetError):
        return True
    return False


def test_workers_exit_with_their_parent(tmp_path: Path):
    with Process(tmp_path, "uvicorn", settings("sample"), workers=3) as process:
        found = workers_of(process)
        assert len(found) == 3
        process.stop(signal.SIGKILL)
        process.code()
        wait_for(lambda: not any(map(alive, found)), "the workers end", 20)


def test_workers_share_stored_responses_and_counts(tmp_path: Path):
    upstream = Upstream()
    upstream.released.set()
    with (
        uvicorn_server(upstream) as served,
        Process(tmp_path, "uvicorn", settings(served.url, "metrics = true"), workers=2) as process,
    ):

        def post(**fields: Any) -> Any:
            body = {"model": "m", **fields}
            answer = httpx.post(f"{process.url}/v1/responses", json=body, trust_env=False)  # over a separate connection
            return answer.raise_for_status().json()

        begun = post(input="Hi")["id"]

        def found() -> bool:
            """Return whether the reply is found, whichever worker is asked."""
            url = f"{process.url}/v1/responses/{begun}"
            return all(httpx.get(url, trust_env=False).is_success for _ in range(8))

        wait_for(found, "the other worker finds the reply")
        for _ in range(STREAMS - 1):
            post(input="And?", previous_response_id=begun)

        def counted() -> tuple[float, list[str]]:
            """Return the totals that any worker reports: all completed exchanges, and how many are open."""
            page = httpx.get(f"{process.url}/metrics", trust_env=False).text
            exchanges = re.findall(r"^streamtool_exchanges_total\{.*\} (\S+)$", page, re.MULTILINE)
            return sum(map(float, exchanges)), re.findall(r"^streamtool_in_flight (\S+)$", page, re.MULTILINE)

        wait_for(lambda: counted() == (STREAMS, ["0.0"]), "the last exchange is counted")
        assert [counted() for _ in range(4)] == [(STREAMS, ["0.0"])] * 4


@pytest.mark.parametrize("workers", [1, 2])
def test_with_a_json_log_nothing_else_is_written(tmp_path: Path, workers: int):
    with Process(tmp_path, "uvicorn", settings("sample"), workers=workers) as process:
        httpx.get(f"{process.url}/nothing", trust_env=False)
        ask(process.url)
        process.stop()
        assert process.code() == 0
        said = [json.loads(line) for line in process.whole_log.splitlines()]
        assert said[0]["message"] == f"listens on http://127.0.0.1:{process.port}/v1"
        assert process.output() == ""


def test_logging_to_standard_output(tmp_path: Path):
    env = {"STREAMTOOL_LOG": "json", "STREAMTOOL_LOG_TO": "stdout"}
    child = Forked(["serve", "--port", "0"], {**os.environ, **env})
    assert "listens on http://127.0.0.1:" in json.loads(child.stdout.readline())["message"]
    child.send_signal(signal.SIGTERM)
    assert child.communicate()[1] == ""


def test_a_server_that_cannot_start_exits_immediately(tmp_path: Path):
    (tmp_path / "settings.toml").write_text(
        settings("sample", "workers = 2") + '[mcp.gone]\ncommand = "no-such-command-anywhere"\ntools = ["a"]\n'
        '[[model]]\nmatch = "*"\nmcp = ["gone"]\n'
    )
    ended = Forked(["serve", "--port", "0", "--config", str(tmp_path / "settings.toml")], {**os.environ})
    out, err = ended.communicate()
    assert ended.returncode == 1
    assert "the MCP server gone cannot be opened" in err
    assert "a worker did not start" in err
    assert not out


def test_a_port_in_use(tmp_path: Path):
    with Process(tmp_path, "uvicorn", settings("sample"), workers=2) as process:
        for workers in ("1", "2"):
            ended = Forked(["serve", "--port", str(process.port), "--workers", workers], {**os.environ})
            _, err = ended.communicate()
            assert (ended.returncode, "Address already in use" in err) == (1, True)
