"""Installed agents, run with the recipes that `streamtool recipe` prints.

`STREAMTOOL_AGENTS` is the folder of their commands (`node_modules/.bin`); a missing agent is skipped. Each has an empty
home, an empty working folder, and an HTTP proxy that only reaches this machine (which restricts only programs that use
the proxy of their environment).
"""

import os
import re
import socket
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from attrs import field, frozen
from support.servers import uvicorn_server

from streamtool.cli.recipe import PROXY, block, recipes

COMMANDS = Path(os.environ.get("STREAMTOOL_AGENTS", "."))
ADDRESS = PROXY.partition("//")[2]
SECONDS = 200
BYTES = 65536


@frozen
class Agent:
    """An installed agent."""

    name: str
    """Its name in the command that prints its recipe; empty if it has none."""
    task: str
    """Command that replaces the last one of its recipe, in order to work on a task without a terminal."""
    tool: str
    """Its tool that reads a file."""
    arguments: Callable[[Path], dict[str, Any]]
    quiet: dict[str, str] = field(factory=dict)
    """Settings that suppress traffic and processes unnecessary for the recipes (updates, statistics)."""

    @property
    def command(self) -> str:
        """Name of its program."""
        return self.task.partition(" ")[0]


class Tunnel(socketserver.StreamRequestHandler):
    """An HTTP proxy that only reaches this machine."""

    timeout = SECONDS

    def handle(self) -> None:
        asked = self.rfile.readline(BYTES).decode().split()
        while self.rfile.readline(BYTES).strip():
            pass
        host, _, port = asked[1].rpartition(":") if asked[:1] == ["CONNECT"] else ("", "", "")
        if host != "127.0.0.1":
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
            return
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with socket.create_connection((host, int(port)), SECONDS) as there:
            back = threading.Thread(target=pump, args=(there, self.connection))
            back.start()
            pump(self.connection, there)
            back.join()


def pump(source: socket.socket, target: socket.socket) -> None:
    """Copy bytes from one socket to the other until either ends."""
    with suppress(OSError):
        while data := source.recv(BYTES):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


@contextmanager
def tunnel() -> Iterator[str]:
    """Yield the URL of a proxy that only reaches this machine."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Tunnel) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def run_agent(agent: Agent, folder: Path, app: Any, more: str = "") -> "subprocess.CompletedProcess[str]":
    """Run the agent's task in `folder/work` against the proxy `app`, with its recipe and `more` settings."""
    if not (COMMANDS / agent.command).exists():
        pytest.skip(f"{agent.command} is not in STREAMTOOL_AGENTS")
    home, work = folder / "home", folder / "work"
    home.mkdir()
    work.mkdir(exist_ok=True)
    with tunnel() as out, uvicorn_server(app, ws="websockets-sansio") as server:
        recipe = block(recipes().clients[agent.name], recipes().servers["llama.cpp"]) if agent.name else ""
        recipe = recipe.replace(ADDRESS, server.url.partition("//")[2])
        commands: list[str] = []
        for heading, body in re.findall(r"^# [3-9]\. (.*)\n((?:(?!# \d\. ).*\n?)*)", recipe, re.MULTILINE):
            name = heading.partition(": ~/")[2]
            if name:
                (home / name).parent.mkdir(parents=True)
                (home / name).write_text(body + more)
            else:
                *commands, last = body.splitlines()
                assert agent.task.startswith(last)
        return subprocess.run(
            ["/bin/sh", "-e", "-c", "\n".join([*commands, agent.task])],
            cwd=work,
            env={
                "PATH": f"{COMMANDS.resolve()}:{os.environ['PATH']}",
                "HOME": str(home),
                "HTTP_PROXY": out,
                "HTTPS_PROXY": out,
                "NO_PROXY": "127.0.0.1,localhost",
                "STREAMTOOL_URL": server.url,
                **agent.quiet,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
