"""`python -m streamtool` in a process that is forked from one that has imported it: most tests take less than the import.

    test ── argv, environment, descriptors ──▶ this module as a program ── fork ── fork ──▶ the process, a child of the test

The test process adopts the orphan of the second fork, so it can wait for it like for any child. Linux only.
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from functools import cache
from pathlib import Path
from typing import IO

from streamtool.cli import main
from streamtool.server.services import default_phrases, precompile
from streamtool.settings import Settings

IMPORTED = (
    "anyio._backends._asyncio",
    "anyio._backends._trio",
    "httpx",
    "pydantic.fields",
    "streamtool.cli.serve",
    "streamtool.cli.servers.hypercorn",
    "streamtool.cli.servers.uvicorn",
    "streamtool.protocols.gemini",
    "streamtool.protocols.messages",
    "streamtool.protocols.ollama",
    "streamtool.protocols.responses",
    "streamtool.sample.server",
    "uvloop",
)
ROOT = Path(__file__).resolve().parent.parent.parent
ADOPT = 36  # PR_SET_CHILD_SUBREAPER
FORKERS: list[int] = []
"""The pid of the program, once it has been started."""


class Forked:
    """A command line in its own process, with the methods of `subprocess.Popen` that the tests need.

    Standard output is a pipe, and so is standard error unless a file is given for it. With `terminal`, a descriptor,
    all three are this terminal, which sends its signals to the process.
    """

    def __init__(
        self, argv: list[str], env: dict[str, str], stderr: IO[str] | None = None, terminal: int | None = None
    ) -> None:
        self.returncode: int | None = None
        read, write = os.pipe()
        errors = os.pipe() if stderr is None else ()
        self.stderr = open(errors[0], encoding="utf-8") if errors else None  # noqa: PTH123, SIM115  as `stdout`
        given = {"argv": argv, "env": env, "cwd": os.getcwd(), "terminal": terminal is not None}  # noqa: PTH109  a string is sent
        prctl = ctypes.CDLL(None).prctl
        prctl(ADOPT, 1, 0, 0, 0)
        with open(os.devnull) as stdin:  # noqa: PTH123  a descriptor is sent
            ends = [stdin.fileno(), write, stderr.fileno() if stderr else errors[1]]
            socket.send_fds(forker(), [json.dumps(given).encode()], ends if terminal is None else [terminal] * 3)
        self.pid = int(forker().recv(64))
        assert forker().recv(64) == b"adopted"
        prctl(ADOPT, 0, 0, 0, 0)
        for written in (write, *errors[1:]):
            os.close(written)
        self.stdout = open(read, encoding="utf-8")  # noqa: PTH123, SIM115  closed by `communicate`

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Return the exit code of the process once it has ended."""
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("streamtool", timeout)
            time.sleep(0.005)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self) -> tuple[str, str]:
        """Read both pipes to their ends, then wait for the process. Errors are read last, so they have to be short."""
        read = ["", ""]
        for number, pipe in enumerate((self.stdout, self.stderr)):
            if pipe is not None and not pipe.closed:
                with pipe:
                    read[number] = pipe.read()
        self.wait(60)
        return read[0], read[1]


@cache
def forker() -> socket.socket:
    """Start the program once for each test process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], env=env, pass_fds=[theirs.fileno()])
    FORKERS.append(program.pid)
    theirs.close()

    def stop() -> None:
        ours.close()
        program.wait()

    atexit.register(stop)
    return ours


def serve(channel: socket.socket) -> None:
    """Fork a process for each request until the test process has ended."""
    for name in IMPORTED:
        importlib.import_module(name)
    with contextlib.redirect_stdout(io.StringIO()):
        main(["--version"])  # typer imports more when it runs
    precompile(Settings().formats)  # as each server does when it starts
    default_phrases()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, 1 << 20, 3)
        if not data:
            return
        if (parent := os.fork()) == 0:
            if pid := os.fork():
                channel.send(str(pid).encode())
                os._exit(0)
            channel.close()
            become(descriptors, **json.loads(data))
            return
        os.waitpid(parent, 0)
        channel.send(b"adopted")
        for descriptor in descriptors:
            os.close(descriptor)


def become(descriptors: list[int], argv: list[str], env: dict[str, str], cwd: str, terminal: bool) -> None:
    """Go on as `python -m streamtool` with these arguments."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if terminal:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode) for number, mode in enumerate(("r", "w", "w")))  # noqa: PTH123, SIM115
    sys.stderr.reconfigure(line_buffering=True)  # type: ignore[attr-defined]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv, sys.path[0] = ["streamtool", *argv], cwd
    try:
        runpy.run_module("streamtool", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if isinstance(ended.code, int):
            leave(ended.code)
        raise


def leave(code: int) -> None:
    """Exit like the interpreter, but leave the memory to the system: to free it would first copy what is shared."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
