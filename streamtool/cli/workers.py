"""`streamtool serve --workers N`: worker processes that share a port, and their supervisor.

Each worker has its own socket for the port, and the kernel distributes connections among the sockets. The parent owns
the sockets, so connections queued on a dead worker's socket are served by its replacement. The parent serves no
requests itself: it forwards signals and exits when the last worker has exited. Before a reload, a separate process
tries the new settings: if they do not work, the workers and their replacements keep the old ones. If the parent is
killed, the workers stop. During shutdown, the parent closes the sockets, so that new clients are rejected immediately
while open streams finish.

         parent ──── SIGTERM, SIGINT, SIGHUP ───▶ worker 1 … worker N
            ▲                                         │
            └─────────── "ready", or exit ────────────┘
"""

import importlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Final, NoReturn, Self

from attrs import evolve

from streamtool.cli.reloading import STOPPING
from streamtool.core.errors import StreamtoolError
from streamtool.settings import Settings

BACKLOG: Final = 1024
_RESTART_PAUSE: Final = 1.0
"""Minimum seconds between two starts of the same worker."""

_IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108  a private folder is created inside it

_log = logging.getLogger("streamtool")


def bind_sockets(host: str, port: int, count: int) -> list[socket.socket]:
    """Return `count` sockets bound to one address, not yet listening. Raises OSError."""
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.create_server(place, family=family) as free:  # fails if another server uses the port
        place = free.getsockname()
    made: list[socket.socket] = []
    for _ in range(count):
        sock = socket.socket(family, socket.SOCK_STREAM)
        made.append(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(place)
    return made


class Workers:
    """Supervisor of the worker processes.

    Each process runs `work(sock, ready)` and calls `ready` when it starts to serve. `ended` is called with the id of
    each process that has exited. For a reload, another process runs `attempt`, which returns the new settings as bytes,
    or None if they do not work; `accept` receives these bytes.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        work: Callable[[socket.socket, Callable[[], None]], object],
        *,
        ended: Callable[[int], object],
        attempt: Callable[[], bytes | None],
        accept: Callable[[bytes], object],
    ) -> None:
        self._sockets = sockets
        self._work = work
        self._ended = ended
        self._attempt = attempt
        self._accept = accept
        self._attempts: dict[int, IO[bytes]] = {}
        """Id of the process that tries new settings -> the file that it writes them to."""
        self._alive, self._parent = os.pipe()
        self._places: dict[int, int] = {}
        """Process id -> index of its socket."""
        self._missing: dict[int, float] = {}
        """Index of each socket without a worker -> time when its next worker starts."""
        self._begun: dict[int, float] = {}
        """Index of each socket -> time when its worker was last started."""
        self.caught: list[int] = []
        """Signals that requested shutdown."""

    def run(self, announce: Callable[[], object]) -> list[int]:
        """Run the workers until a signal requests shutdown and all have exited. Return the signals received.

        `announce` is called when all workers are serving. SIGHUP is forwarded to the workers only if the new settings
        work. Raises StreamtoolError if a worker does not start.
        """
        signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}
        signal.signal(signal.SIGCHLD, lambda *_: None)  # an ignored signal would not wake sigtimedwait
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        ready = [self._start(place) for place in range(len(self._sockets))]
        if all([_reported_ready(pipe) for pipe in ready]):  # noqa: C419  every pipe must be read
            announce()
        else:
            self._signal_all(signal.SIGTERM)
            while self._places:
                self._reap(stopping=True)
                time.sleep(_RESTART_PAUSE / 20)
            raise StreamtoolError("a worker did not start")  # the worker has logged the reason
        while self._places or (self._missing and not self.caught):
            due = min(self._missing.values(), default=time.monotonic() + 60) - time.monotonic()
            found = signal.sigtimedwait(signals, max(0.0, due))
            number = found.si_signo if found else None
            if number in (signal.SIGTERM, signal.SIGINT):
                self.caught.append(number)
                self._signal_all(number)
                self._stop_attempts()
                for sock in self._sockets:  # the port stays open as long as any process holds a listening socket
                    sock.close()
            elif number == signal.SIGHUP and self.caught:
                _log.warning(STOPPING)
            elif number == signal.SIGHUP:
                self._stop_attempts()  # the file may have changed since
                self._start_attempt()
            self._reap_attempts()
            self._reap(stopping=bool(self.caught))
            if not self.caught:
                self._replace()
        return self.caught

    def _signal_all(self, number: int) -> None:
        for process in self._places:
            os.kill(process, number)

    def _start_attempt(self) -> None:
        """Start a process that tries the new settings."""
        written = TemporaryFile()  # noqa: SIM115  closed when the process has exited
        self._attempts[self._fork(lambda: self._try(written))] = written

    def _try(self, written: IO[bytes]) -> None:
        """Try the new settings in the forked child, and write them to the file if they work."""
        for sock in self._sockets:
            sock.close()
        written.write(self._attempt() or b"")
        written.flush()

    def _stop_attempts(self) -> None:
        for process in self._attempts:
            os.kill(process, signal.SIGKILL)

    def _reap_attempts(self) -> None:
        """Collect the processes that have tried new settings, and reload if these work."""
        for process in list(self._attempts):
            over, status = os.waitpid(process, os.WNOHANG)
            if not over:
                continue
            self._ended(process)
            with self._attempts.pop(process) as written:
                written.seek(0)
                found = written.read()
            if found and not status and not self.caught:
                self._accept(found)
                self._signal_all(signal.SIGHUP)

    def _replace(self) -> None:
        """Start the missing workers whose pause has elapsed."""
        for place, due in list(self._missing.items()):
            if due <= time.monotonic():
                del self._missing[place]
                os.close(self._start(place))

    def _reap(self, *, stopping: bool) -> None:
        """Collect the workers that have exited."""
        for process in list(self._places):
            over, status = os.waitpid(process, os.WNOHANG)
            if not over:
                continue
            place = self._places.pop(process)
            self._ended(process)
            if not stopping:
                code = os.waitstatus_to_exitcode(status)
                why = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                _log.error("worker %d exited (%s); starting a replacement", process, why)
                self._missing[place] = self._begun[place] + _RESTART_PAUSE

    def _start(self, place: int) -> int:
        """Start a worker process and return the pipe on which it reports that it is serving."""
        listens, says = os.pipe()
        self._begun[place] = time.monotonic()
        process = self._fork(lambda: self._serve(place, says))
        os.close(says)
        self._places[process] = place
        return listens

    def _serve(self, place: int, says: int) -> None:
        """Run a worker in the forked child."""
        sock = self._sockets[place]
        for other in self._sockets:
            if other is not sock:
                other.close()

        def ready() -> None:
            sock.listen(BACKLOG)
            with suppress(OSError):  # nothing reads the pipe of a replacement
                os.write(says, b"+")

        self._work(sock, ready)

    def _fork(self, run: Callable[[], object]) -> int:
        """Start a process that calls `run`, and return its id."""
        return os.fork() or self._child(run)

    def _child(self, run: Callable[[], object]) -> NoReturn:
        """Call `run` in the forked child, and exit."""
        os.setpgid(0, 0)  # the parent alone receives the terminal's interrupt, and forwards it
        os.close(self._parent)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the server installs its own handler
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        threading.Thread(target=self._watch, daemon=True).start()
        code = 1
        try:
            run()
            code = 0
        except StreamtoolError as error:
            _log.error("%s", error.message)
        except BaseException:  # noqa: BLE001  the process exits here
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _watch(self) -> None:
        """Stop the worker when its parent dies."""
        os.read(self._alive, 1)
        os.kill(os.getpid(), signal.SIGTERM)


def _reported_ready(pipe: int) -> bool:
    """Return whether the worker reported that it is serving, rather than exited."""
    try:
        return bool(os.read(pipe, 1))
    finally:
        os.close(pipe)


class SharedState:
    """Private folder for the files that the workers share. It is deleted after they have exited.

    If the settings name neither a file nor a Redis server for the store, the workers share a temporary file, which is
    held in memory if the system supports that.
    """

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(
            prefix="streamtool-", dir=_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None, ignore_cleanup_errors=True
        )
        self._counted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    def with_shared_files(self, settings: Settings) -> Settings:
        """Return the settings with a file for the store, and set up the metrics folder."""
        if settings.metrics and not self._counted:
            folder = Path(self._folder.name, "metrics")
            folder.mkdir(exist_ok=True)  # another process may have enabled them first
            os.environ.setdefault("PROMETHEUS_MULTIPROC_DIR", str(folder))  # read when the metrics library is imported
            self._counted = True
        store = settings.store
        if store.size and store.file is None and store.redis is None:
            settings = evolve(settings, store=evolve(store, file=str(Path(self._folder.name, "store"))))
        return settings

    def discard_worker(self, process: int) -> None:
        """Discard the live metrics of a worker that has exited."""
        if self._counted:
            importlib.import_module("streamtool.observe.metrics").discard_worker(process)
