"""A proxy that reloads its settings on SIGHUP without dropping requests.

Open requests finish under the settings they started with, however long they take; new requests are served by a new
proxy. If the new settings are invalid, the log reports why and nothing changes. The store is carried over unless its
settings have changed.
"""

import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final, TypeVar

import anyio
import anyio.abc

from streamtool.asgi.types import Receive, Scope, Send
from streamtool.core.errors import StreamtoolError
from streamtool.observe import logs
from streamtool.proxy import Proxy
from streamtool.settings import Settings

HAS_SIGHUP: Final = hasattr(signal, "SIGHUP")
"""Whether this platform has SIGHUP."""
RESTART_ONLY: Final = (
    "listen",
    "workers",
    "limits.connections",
    "limits.connections_per_address",
    "limits.header_bytes",
    "limits.header_seconds",
    "limits.keep_alive_seconds",
)
"""Settings that take effect only after a restart, because the server uses them, not the proxy."""

STOPPING: Final = "the settings were not reloaded: the server is stopping"
"""Log message for a reload that is ignored."""

_TICK: Final = 0.02
"""Seconds between two checks whether a thread has finished."""

T = TypeVar("T")

_log = logging.getLogger("streamtool")


class ReloadingProxy:
    """ASGI app that serves new requests with the most recently loaded settings.

    `read` loads the settings, and `accepted` is called when a proxy serves with them; `begun` is called when the first
    proxy is ready to serve.
    """

    def __init__(
        self,
        settings: Settings,
        read: Callable[[], Settings],
        begun: Callable[[], object] = lambda: None,
        accepted: Callable[[], object] = lambda: None,
    ) -> None:
        self._read = read
        self._accepted = accepted
        self._begun = begun
        self._quiet: Callable[[], object] = lambda: None
        self._first = settings
        self._proxy = Proxy(settings)
        self._replaced: dict[Proxy, anyio.Event] = {}
        """Each running proxy -> event that is set when the proxy is replaced or the server stops."""
        self._reload: anyio.CancelScope | None = None
        """The scope of the latest reload."""
        self._stopping = False
        """Whether the server is about to stop."""
        self._terminal = sys.stdin is not None and sys.stdin.isatty()

    def when_quiet(self, call: Callable[[], object]) -> None:
        """Register a callback that the current proxy and its successors run when no request is open (see
        `Proxy.when_quiet`).
        """
        self._quiet = call
        self._proxy.when_quiet(call)

    @property
    def settings(self) -> Settings:
        """Settings for new requests."""
        return self._proxy.settings

    @property
    def engines(self) -> Mapping[str, str]:
        """The servers that were recognized at the upstreams (see `Proxy.engines`)."""
        return self._proxy.engines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        else:
            await self._proxy(scope, receive, send)

    async def drain(self, seconds: float) -> None:
        """Drain the current proxy and the replaced ones that are still running (see `Proxy.drain`)."""
        self._stopping = True
        if self._reload is not None:
            self._reload.cancel()
        async with anyio.create_task_group() as tasks:
            for proxy in list(self._replaced):
                tasks.start_soon(proxy.drain, seconds)

    def announce_stop(self) -> float:
        """Announce a stop like `Proxy.announce_stop`, for the current proxy."""
        self._stopping = True
        return self._proxy.announce_stop()

    async def reload(self) -> None:
        """Load the settings and use them to serve new requests. If this fails, log the reason and change nothing."""
        before = self._proxy
        try:
            settings = await _in_daemon_thread(self._read)
            store = before.store if settings.store == before.settings.store else None
            proxy = await _in_daemon_thread(lambda: Proxy(settings, opened_store=store))
            await self._tasks.start(self._serve, proxy)
        except StreamtoolError as error:
            _log.error("the settings were not reloaded: %s", error.message)
            return
        except Exception:  # noqa: BLE001  whatever is wrong with the new settings, the old ones are still right
            _log.exception("the settings were not reloaded")
            return
        self._accepted()
        logs.configure(settings)
        proxy.when_quiet(self._quiet)
        self._proxy = proxy
        proxy.replace(before)
        self._replaced[before].set()
        changed = [name for name in RESTART_ONLY if _value(settings, name) != _value(self._first, name)]
        if changed:
            _log.warning("changes to these settings take effect only after a restart: %s", ", ".join(changed))
        _log.info("the settings were reloaded")

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        async with anyio.create_task_group() as self._tasks:
            try:
                await self._tasks.start(self._serve, self._proxy)
            except StreamtoolError as error:
                await send({"type": "lifespan.startup.failed", "message": error.message})
                self._tasks.cancel_scope.cancel()
                return
            async with anyio.create_task_group() as signals:
                if HAS_SIGHUP:
                    await signals.start(self._signals)
                self._begun()
                await send({"type": "lifespan.startup.complete"})
                await receive()
                signals.cancel_scope.cancel()
            for replaced in self._replaced.values():
                replaced.set()
        await send({"type": "lifespan.shutdown.complete"})

    async def _serve(self, proxy: Proxy, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with proxy.running():
            replaced = self._replaced[proxy] = anyio.Event()
            task_status.started()
            await replaced.wait()
            if proxy is not self._proxy:
                await proxy.drain(math.inf)
        del self._replaced[proxy]

    async def _signals(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGHUP) as signals:
            task_status.started()
            async for _ in signals:
                if self._terminal and not sys.stdin.isatty():  # the terminal was closed
                    os.kill(os.getpid(), signal.SIGTERM)
                elif self._stopping:
                    _log.warning(STOPPING)
                else:
                    with anyio.CancelScope() as self._reload:
                        await self.reload()


async def _in_daemon_thread(call: Callable[[], T]) -> T:
    """Return the result of `call`. A cancelled caller abandons the thread. Unlike anyio's threads, it does not keep the
    process alive.
    """
    result = Future[T]()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001  raised again by the caller
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    while not result.done():  # noqa: ASYNC110  another thread sets it
        await anyio.sleep(_TICK)
    return result.result()


def _value(settings: Settings, name: str) -> object:
    value: object = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value
