"""The proxy in a separate process, under uvicorn or hypercorn, with its records and resources.

Run as a script, this module is that process: `watch.py SERVER DESCRIPTOR URL`. It writes a line of JSON for each
exchange.
"""

import asyncio
import json
import logging
import os
import socket
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import hypercorn.config
import hypercorn.trio
import trio
import uvicorn
from attrs import frozen

from streamtool.exchange.record import Record
from streamtool.observe.logs import fields
from streamtool.proxy import Proxy
from streamtool.settings import Settings

SERVERS: Final = ("uvicorn", "hypercorn")
SILENT: Final = "silent-"
"""Prefix of the names of models that fall silent; the proxy has a short timeout only for these models."""
IDLE: Final = 3.0
"""Seconds of silence before the proxy gives up on an upstream for these models."""
STORE: Final = 1 << 20
"""Size of the proxy's store in bytes. It is small enough to fill up early, so that later growth is not due to stored
replies.
"""
KEEP: Final = 5
"""Seconds until a server closes an idle connection."""
COUNTS: Final = "/soak/tasks"
PATIENCE: Final = 60.0
"""Maximum seconds for the process to start, to report, or to stop."""


# --- inside the process


def serve(server: str, descriptor: str, url: str) -> None:
    """Run the process."""
    logging.getLogger("streamtool").setLevel(logging.CRITICAL)
    hasty = {"url": url, "timeout": {"first_byte": IDLE, "idle": IDLE}}
    settings = Settings(  # converts tables
        upstreams={"u": {"url": url}, "hasty": hasty},  # type: ignore[dict-item]
        models=[{"match": f"{SILENT}*", "upstream": "hasty"}],  # type: ignore[arg-type]
        store={"size": STORE},  # type: ignore[arg-type]
        keepalive=1.0,
    )
    app = _telling(Proxy(settings, on_exchange=_tell), server)
    if server == "uvicorn":
        config = uvicorn.Config(app, log_level="error", ws="none", access_log=False, timeout_keep_alive=KEEP)
        uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(descriptor))])
        return
    under = hypercorn.config.Config()
    under.bind = [f"fd://{descriptor}"]
    under.keep_alive_timeout = KEEP
    under.graceful_timeout = 0.5
    trio.run(hypercorn.trio.serve, app, under)


def _tell(record: Record) -> None:
    sys.stdout.write(json.dumps(fields(record)) + "\n")
    sys.stdout.flush()


def _telling(proxy: Proxy, server: str) -> Any:
    """Return an app that adds a path to the proxy, which reports the number of tasks."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path") != COUNTS:
            await proxy(scope, receive, send)
            return
        count = len(asyncio.all_tasks()) if server == "uvicorn" else trio.lowlevel.current_statistics().tasks_living
        headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"%d" % count})

    return app


# --- outside the process


@frozen
class Sample:
    """Resources of the process at one point in time."""

    seconds: float
    """Time since the first sample."""
    memory: int
    """Resident memory in KB."""
    descriptors: int
    tasks: int
    threads: int

    def returned_to(self, other: "Sample") -> bool:
        """Return whether this sample has no more descriptors and tasks than `other`."""
        return self.descriptors <= other.descriptors and self.tasks <= other.tasks


class Watch:
    """A running proxy."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.port = port
        self.records: defaultdict[str, list[Any]] = defaultdict(list)
        """Records by requested model."""
        self._process = process
        self._root = Path(f"/proc/{process.pid}")

    async def sample(self, seconds: float = 0.0) -> Sample:
        """Return the current resources."""
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            tasks = int((await client.get(f"http://127.0.0.1:{self.port}{COUNTS}")).text)
        status = (self._root / "status").read_text(encoding="ascii")
        memory, threads = (int(status.partition(f"{key}:")[2].split()[0]) for key in ("VmRSS", "Threads"))
        descriptors = len(os.listdir(self._root / "fd"))  # noqa: PTH208  names are enough
        return Sample(seconds, memory, descriptors, tasks, threads)

    async def touch(self) -> None:
        """Send a small request to each upstream, because closed connections leave the pool only when the pool is
        used.
        """
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            for model in ("touched", f"{SILENT}touched"):  # one per upstream
                await client.post(f"http://127.0.0.1:{self.port}/v1/chat/completions", json={"model": model})

    async def listen(self) -> None:
        """Collect the records."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            record = json.loads(line)
            self.records[record["model"]].append(record)


@asynccontextmanager
async def watched(server: str, url: str, log: Any) -> AsyncIterator[Watch]:
    """Run the proxy inside the block; `log` receives its standard error."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as sock:
        port = sock.getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, server, str(sock.fileno()), url),
            pass_fds=[sock.fileno()],
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            limit=1 << 20,
        )
    watch = Watch(process, port)
    listening = asyncio.create_task(watch.listen())
    try:
        yield watch
    finally:
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), PATIENCE)
        except TimeoutError:
            process.kill()
            await process.wait()
        await listening


if __name__ == "__main__":
    serve(*sys.argv[1:])
