"""`streamtool serve --workers N`: processes that share a port, and the one that looks after them.

Each worker has a socket of its own for the port, and the system spreads connections over them. The sockets are the
parent's, so what waits on that of a worker that has died is served by the one that takes its place. The parent serves
nothing. It passes signals on, and ends when the last worker has ended. Workers end when it is killed. At the end it
lets go of the sockets, so that whoever comes while streams are finished is refused and does not wait in vain.

         parent ──── SIGTERM, SIGINT, SIGHUP ───▶ worker 1 … worker N
            ▲                                         │
            └───────── "ready", or its end ───────────┘
"""

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
from typing import Final, NoReturn

from streamtool.errors import StreamtoolError

BACKLOG: Final = 1024
_PAUSE: Final = 1.0
"""Seconds at least between two workers in the same place."""

_log = logging.getLogger("streamtool")


def sockets(host: str, port: int, count: int) -> list[socket.socket]:
    """Sockets bound to one address, on which nobody listens yet. Raises OSError."""
    family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.create_server(place, family=family) as free:  # else a second server would share the port
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
    """The processes. `work(sock, ready)` is what each does, in a process of its own; it calls `ready` when it serves.

    `ended` is called with the process id of each that is over.
    """

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        work: Callable[[socket.socket, Callable[[], None]], object],
        *,
        ended: Callable[[int], object],
    ) -> None:
        self._sockets = sockets
        self._work = work
        self._ended = ended
        self._alive, self._parent = os.pipe()
        self._places: dict[int, int] = {}
        """Process -> the place of its socket."""
        self._missing: dict[int, float] = {}
        """Places without a worker -> when they may have one."""
        self._begun: dict[int, float] = {}
        """When each place had its worker."""
        self.caught: list[int] = []
        """The signals that asked for the end."""

    def run(self, announce: Callable[[], object], reload: Callable[[], bool]) -> list[int]:
        """Until a signal asks for the end and all have ended. Returns the signals that did.

        `announce` is called when all serve, `reload` on SIGHUP; false: the workers are not told. Raises StreamtoolError
        if one does not begin to serve.
        """
        signals = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD}
        signal.signal(signal.SIGCHLD, lambda *_: None)  # what is ignored does not wait
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        ready = [self._begin(place) for place in range(len(self._sockets))]
        if all([_said(pipe) for pipe in ready]):  # noqa: C419  each is read
            announce()
        else:
            self._tell(signal.SIGTERM)
            while self._places:
                self._reap(stopping=True)
                time.sleep(_PAUSE / 20)
            raise StreamtoolError("a worker did not start")  # which has said why
        while self._places or (self._missing and not self.caught):
            due = min(self._missing.values(), default=time.monotonic() + 60) - time.monotonic()
            found = signal.sigtimedwait(signals, max(0.0, due))
            number = found.si_signo if found else None
            if number in (signal.SIGTERM, signal.SIGINT):
                self.caught.append(number)
                self._tell(signal.SIGTERM)
                for sock in self._sockets:  # a port is open for as long as one process holds a socket that listens
                    sock.close()
            elif number == signal.SIGHUP and reload():
                self._tell(signal.SIGHUP)
            self._reap(stopping=bool(self.caught))
            if not self.caught:
                self._replace()
        return self.caught

    def _tell(self, number: int) -> None:
        for process in self._places:
            os.kill(process, number)

    def _replace(self) -> None:
        """Begin what is missing, if it is time."""
        for place, due in list(self._missing.items()):
            if due <= time.monotonic():
                del self._missing[place]
                os.close(self._begin(place))

    def _reap(self, *, stopping: bool) -> None:
        """Find out which are over."""
        for process in list(self._places):
            over, status = os.waitpid(process, os.WNOHANG)
            if not over:
                continue
            place = self._places.pop(process)
            self._ended(process)
            if not stopping:
                code = os.waitstatus_to_exitcode(status)
                why = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                _log.error("worker %d has ended (%s); another one takes its place", process, why)
                self._missing[place] = self._begun[place] + _PAUSE

    def _begin(self, place: int) -> int:
        """A process for this place. Returns the pipe on which it says that it serves."""
        listens, says = os.pipe()
        self._begun[place] = time.monotonic()
        process = os.fork()
        if not process:
            self._child(place, says)
        os.close(says)
        self._places[process] = place
        return listens

    def _child(self, place: int, says: int) -> NoReturn:
        """All that a worker does."""
        os.setpgid(0, 0)  # an interrupt from the terminal is for the parent, which passes it on
        os.close(self._parent)
        sock = self._sockets[place]
        for other in self._sockets:
            if other is not sock:
                other.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        threading.Thread(target=self._watch, daemon=True).start()

        def ready() -> None:
            sock.listen(BACKLOG)
            with suppress(OSError):  # nobody waits for a worker that takes a place
                os.write(says, b"+")

        code = 1
        try:
            self._work(sock, ready)
            code = 0
        except StreamtoolError as error:
            _log.error("%s", error.message)
        except BaseException:  # noqa: BLE001  it goes no further
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _watch(self) -> None:
        """End the worker with its parent."""
        os.read(self._alive, 1)
        os.kill(os.getpid(), signal.SIGTERM)


def _said(pipe: int) -> bool:
    """Whether a worker has said that it serves, in the place of ending."""
    try:
        return bool(os.read(pipe, 1))
    finally:
        os.close(pipe)
