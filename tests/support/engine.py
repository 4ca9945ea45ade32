"""A real engine in a separate process, and the state that it reports."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
from attrs import frozen

START = 60.0
"""Seconds for a server to start."""
FOLDER = Path(__file__).parent.parent / "engines"


@frozen
class Engine:
    """A running server."""

    url: str
    client: httpx.Client
    kill: Callable[[], None]
    """Ends the process with SIGKILL."""

    def busy(self) -> list[Any]:
        """Return the slots that are processing a request."""
        return [slot for slot in self.client.get("/slots").json() if slot["is_processing"]]

    def decoded(self) -> int:
        """Return the number of decoding steps since the start: one per generated token, and a few for prompts."""
        lines = self.client.get("/metrics").text.splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("llamacpp:n_decode_total "))


@contextmanager
def served(script: str, *arguments: str, health: str = "/health") -> Iterator[Engine]:
    """Run an engine served by a program of this folder."""
    with (
        started(script, *arguments) as (running, url),
        httpx.Client(base_url=url, timeout=START, trust_env=False) as client,
    ):
        wait_until_healthy(client, health)
        yield Engine(url, client, running.kill)


@contextmanager
def process(script: str, *arguments: str) -> Iterator[str]:
    """Run a program like `started`, and yield its address."""
    with started(script, *arguments) as (_, address):
        yield address


@contextmanager
def started(script: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a program of this folder that prints the address it serves, and exits when its input ends."""
    command = [sys.executable, str(FOLDER / script), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            address = running.stdout.readline().strip()
            assert address, f"{script} exited before serving"
            yield running, address
        finally:
            running.kill()


def wait_until_healthy(client: httpx.Client, path: str) -> None:
    """Wait until the server answers; fail after a timeout."""
    end = time.monotonic() + START
    while True:
        with suppress(httpx.TransportError):
            if client.get(path).status_code == 200:
                return
        assert time.monotonic() < end, f"no answer at {client.base_url}{path}"
        time.sleep(0.02)
