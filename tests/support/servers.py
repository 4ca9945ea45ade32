"""Real servers on loopback ports for tests, each in its own thread, and a raw upstream made of sockets."""

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import hypercorn.config
import hypercorn.trio
import trio
import uvicorn
from support.forked import Forked

ROOT = Path(__file__).resolve().parent.parent.parent
DEADLINE = 60.0
"""Seconds; never reached unless something hangs, however busy the machine is."""
LINGERING = 0.1
"""Seconds that hypercorn keeps two tasks and a socket of a connection closed by its client, for tests that count them.

With such a short time, a slow client finds its own connection closed.
"""


def listener() -> socket.socket:
    """Return a listening socket on a free loopback port."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    sock.listen(256)
    return sock


def free_port() -> int:
    """Return a free loopback port for a process that opens it later.

    It is below the range of ephemeral ports, so that no other test's server takes it in the meantime, and above the
    ports that Ray gives to its workers.
    """
    while True:
        port = random.randint(20_000, 32_000)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


def wait_for(condition: Callable[[], Any], what: str, seconds: float = DEADLINE) -> None:
    """Wait until `condition()` is true; fail with `what` after some seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"timed out waiting until {what}"
        time.sleep(0.002)


class Served:
    """A running server."""

    def __init__(self, port: int, tasks: Callable[[], int]) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._tasks = tasks
        self._quiet = (0, 0, 0)

    def counts(self) -> tuple[int, int, int]:
        """Return the numbers of tasks of the server's loop, and of the threads and sockets of the process.

        Threads of pools do not count: their number depends on whether their jobs overlap, and so on how busy the machine
        is. Neither do files, which other threads open while they import modules.
        """
        return self._tasks(), len(_own_threads()), len(_sockets())

    def settle(self) -> None:
        """Wait until nothing changes any more, and take these counts as the ones to return to."""
        self._quiet, since = self.counts(), time.monotonic()
        while time.monotonic() - since < 3 * LINGERING:
            time.sleep(0.02)
            if (counts := self.counts()) != self._quiet:
                self._quiet, since = counts, time.monotonic()

    def assert_quiet(self) -> None:
        """Check that tasks, threads and sockets soon return to the recorded counts."""
        end = time.monotonic() + DEADLINE
        while (counts := self.counts()) and any(now > then for now, then in zip(counts, self._quiet, strict=True)):
            assert time.monotonic() < end, (
                f"{counts} tasks, threads, sockets do not return to {self._quiet}: {_own_threads()}, {_sockets()}"
            )
            time.sleep(0.005)


def _own_threads() -> list[str]:
    """Return the names of all threads of this process except worker threads of anyio, trio and executors."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if not re.match(r"AnyIO worker|Trio thread|wrapper from|asyncio_|.*Executor", name)]


def _sockets() -> list[str]:
    """Return the sockets of this process."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208  names are enough
        with contextlib.suppress(OSError):  # closed in the meantime
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115
    return [name for name in found if name.startswith("socket:")]


class PromptServer(uvicorn.Server):
    """Uvicorn, but it stops when nothing is left to do. The original waits for two tenths of a second."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.stopped = asyncio.Event()

    async def main_loop(self) -> None:
        """Run until `stopped` is set."""
        await self.on_tick(0)  # sets the default headers
        await self.stopped.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the connections, and wait until their requests are answered."""
        for one in [*self.servers, *(sockets or [])]:
            one.close()
        for connection in [*self.server_state.connections]:
            connection.shutdown()
        while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110  uvicorn has no event for this
            await asyncio.sleep(0.005)
        await self.lifespan.shutdown()


@contextmanager
def uvicorn_server(app: Any, **options: Any) -> Iterator[Served]:
    """Serve `app` under uvicorn (asyncio)."""
    sock = listener()
    config = uvicorn.Config(app, **{"log_level": "error", "ws": "none", **options})
    server = PromptServer(config)
    loops: list[asyncio.AbstractEventLoop] = []

    async def main() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve(sockets=[sock])

    def run() -> None:
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(main())

    thread = threading.Thread(target=run, name="uvicorn")
    thread.start()

    def tasks() -> int:
        async def count() -> int:
            return len(asyncio.all_tasks())

        return asyncio.run_coroutine_threadsafe(count(), loops[0]).result(DEADLINE)

    try:
        wait_for(lambda: server.started or not thread.is_alive(), "uvicorn starts")
        yield Served(sock.getsockname()[1], tasks)
    finally:
        if thread.is_alive():
            loops[0].call_soon_threadsafe(server.stopped.set)
        thread.join(DEADLINE)
        sock.close()
        assert not thread.is_alive()


@contextmanager
def hypercorn_server(app: Any, keep_alive: float = 5) -> Iterator[Served]:
    """Serve `app` under hypercorn on trio, which closes a connection that has been idle for `keep_alive` seconds."""
    sock = listener()
    port = sock.getsockname()[1]
    config = hypercorn.config.Config()
    config.bind = [f"fd://{sock.detach()}"]
    config.errorlog = None
    config.graceful_timeout = 0.1
    config.keep_alive_timeout = keep_alive
    stop: list[Callable[[], None]] = []
    tokens: list[trio.lowlevel.TrioToken] = []

    async def main() -> None:
        event = trio.Event()
        token = trio.lowlevel.current_trio_token()
        stop.append(lambda: token.run_sync_soon(event.set))
        tokens.append(token)
        await hypercorn.trio.serve(app, config, shutdown_trigger=event.wait)

    thread = threading.Thread(target=lambda: trio.run(main), name="hypercorn")
    thread.start()

    def tasks() -> int:
        return trio.from_thread.run_sync(lambda: trio.lowlevel.current_statistics().tasks_living, trio_token=tokens[0])

    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as probe:
            probe.sendall(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            return bool(probe.recv(1))
        return False

    try:
        wait_for(answers, "hypercorn starts")
        yield Served(port, tasks)
    finally:
        if stop:
            stop[0]()
        thread.join(DEADLINE)
        assert not thread.is_alive()


class RawUpstream:
    """An upstream made of one listening socket: it takes one request at a time, sends `script` and then waits.

    For each connection it reads one request, sends the bytes of `script` (b"" means nothing, not even a status line)
    and sets `said`; then, unless `dies`, it waits until its socket reads EOF and records the time in `eof`.
    """

    def __init__(self) -> None:
        self._sock = listener()
        self.url = f"http://127.0.0.1:{self._sock.getsockname()[1]}"
        self.script = b""
        self.dies = False
        self.said = threading.Event()
        self.eof: float | None = None
        self.saw_eof = threading.Event()
        self.errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="raw upstream")
        self._thread.start()

    def reset(self, script: bytes, *, dies: bool = False) -> None:
        """Set the reply to the next request."""
        self.script, self.dies, self.eof = script, dies, None
        self.said.clear()
        self.saw_eof.clear()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._thread.join(DEADLINE)
        assert not self.errors, self.errors

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._sock.accept()
            except OSError:
                return
            try:
                with connection:
                    connection.settimeout(DEADLINE)
                    self._serve(connection)
            except OSError as error:
                self.errors.append(error)

    def _serve(self, connection: socket.socket) -> None:
        if read_request(connection) is None:
            return
        if self.script:
            connection.sendall(self.script)
        self.said.set()
        if not self.dies:
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(65536):
                    pass
            self.eof = time.monotonic()
            self.saw_eof.set()


def read_request(connection: socket.socket) -> tuple[bytes, bytes] | None:
    """Return the head and the body of the next request, or None if the client leaves before its end."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += (more := connection.recv(65536))
        if not more:
            return None
    head, _, body = data.partition(b"\r\n\r\n")
    sizes = [line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while len(body) < int(sizes[0] if sizes else 0):
        body += (more := connection.recv(65536))
        if not more:
            return None
    return head, body


def http_stream(body: bytes) -> bytes:
    """Return a status line, headers and the beginning of a chunked body (without its end)."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + (f"{len(body):x}\r\n".encode() + body + b"\r\n" if body else b"")


class RawClient:
    """A client that can disconnect at any moment."""

    def __init__(self, port: int, body: bytes, path: str = "/v1/chat/completions") -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)
        head = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        self._sock.sendall(head.encode() + body)
        self.received = b""

    def until(self, mark: bytes) -> None:
        """Read until `mark` has arrived."""
        while mark not in self.received:
            data = self._sock.recv(65536)
            assert data, f"the connection ended before {mark!r}: {self.received!r}"
            self.received += data

    def rest(self) -> bytes:
        """Read to the end of the chunked body, or of the connection."""
        while not self.received.endswith(b"0\r\n\r\n"):
            data = self._sock.recv(65536)
            if not data:
                break
            self.received += data
        return self.received

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def leave(self) -> float:
        """Close the connection, and return the time."""
        now = time.monotonic()
        self._sock.close()
        return now


class Process:
    """`streamtool serve` as a separate process on a free port.

    `settings` are environment variables (`grace=2`); `ulimit` is the argument of a resource limit (`-n 200`).
    """

    def __init__(self, folder: Path, server: str, toml: str, *, ulimit: str = "", **settings: object) -> None:
        (folder / "settings.toml").write_text(toml)
        known = {name: value for name, value in os.environ.items() if not name.startswith("STREAMTOOL_")}
        ours = {"formats": "tool_call", "log": "json", "recognize": "false", **settings}
        env = {**known, "PYTHONPATH": str(ROOT), **{f"STREAMTOOL_{k.upper()}": str(v) for k, v in ours.items()}}
        argv = ("serve", "--port", "0", "--server", server, "--config", str(folder / "settings.toml"))
        self._errors = (folder / "errors").open("w+")
        self._child: Forked | subprocess.Popen[str]
        if ulimit:
            command = ["/bin/sh", "-c", f'ulimit {ulimit}; exec "$@"', "sh", sys.executable, "-m", "streamtool", *argv]
            self._child = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=self._errors, text=True)
        else:
            self._child = Forked(list(argv), env, self._errors)
        said = re.compile(r"http://127\.0\.0\.1:(\d+)/v1")  # its log is JSON and contains the address
        wait_for(lambda: said.search(self.whole_log) or self._child.poll() is not None, "it starts")
        found = said.search(self.whole_log)
        assert found, f"it did not start: {self.log!r}"
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self.pid = self._child.pid

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Send a signal."""
        self._child.send_signal(number)

    @property
    def running(self) -> bool:
        return self._child.poll() is None

    def code(self, seconds: float = DEADLINE) -> int:
        """Return the exit code."""
        return self._child.wait(seconds)

    def output(self) -> str:
        """Return the complete standard output."""
        assert self._child.stdout is not None
        return self._child.stdout.read()

    @property
    def log(self) -> str:
        """Return standard error so far, except the line with the address."""
        lines = self.whole_log.splitlines(keepends=True)
        return "".join(line for line in lines if "listens on http" not in line)

    @property
    def whole_log(self) -> str:
        """Return all of standard error so far."""
        return Path(self._errors.name).read_text()

    @property
    def records(self) -> list[dict[str, Any]]:
        """Return the log records of exchanges and rejections."""
        return [entry["streamtool"] for entry in map(json.loads, self.log.splitlines()) if "streamtool" in entry]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.kill()
        self._child.communicate()
        self._errors.close()
