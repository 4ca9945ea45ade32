"""The circuit breaker for an upstream, and the health checks that update it.

A circuit opens after several consecutive failures and closes on the next success. An upstream whose settings contain a
health check path (`health`) is also checked periodically.

Source: M. Nygard, "Release It!", chapter "Circuit Breaker".
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from time import monotonic
from typing import Protocol

import anyio

from streamtool.asgi.types import SCOPE, ASGIApp, ask, never_disconnects
from streamtool.core.errors import StreamtoolError
from streamtool.settings import CircuitSettings, UpstreamSettings

_log = logging.getLogger("streamtool")


class CircuitListener(Protocol):
    """A listener for the state of upstreams."""

    def upstream_failed(self, name: str, /) -> None:
        """Handle a failed request to an upstream."""

    def upstream_is(self, name: str, state: str, /) -> None:
        """Handle a change in the state of an upstream's circuit."""


class Circuit:
    """The circuit of one upstream. Each process has its own circuits."""

    def __init__(
        self,
        settings: CircuitSettings,
        clock: Callable[[], float] = monotonic,
        *,
        name: str = "",
        listener: CircuitListener | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._name = name
        self._listener = listener
        self._failures = 0
        self._opened = 0.0
        self.healthy = True
        """The result of the last health check."""
        self.report()

    @property
    def state(self) -> str:
        """The state of the upstream: `ok`, `failing` (its circuit is open) or `unhealthy`."""
        if not self.healthy:
            return "unhealthy"
        return "failing" if self._failures >= self._settings.failures else "ok"

    @property
    def admits(self) -> bool:
        """Whether a request may be sent. While the circuit is open, a single request is admitted from time to time."""
        if self.state == "failing":
            return self._clock() - self._opened >= self._settings.seconds
        return self.healthy

    def record_attempt(self) -> None:
        """Record that a request is being sent. While the circuit is open, no other request is admitted for a while."""
        self._opened = self._clock()

    def record_failure(self) -> bool:
        """Record that a request has failed, and return whether this opens the circuit."""
        if self._listener is not None:
            self._listener.upstream_failed(self._name)
        self._failures += 1
        if self._failures < self._settings.failures:
            return False
        self._opened = self._clock()
        opens = self._failures == self._settings.failures
        if opens:
            self.report()
        return opens

    def record_success(self) -> bool:
        """Record that a request has succeeded, and return whether this closes the circuit."""
        was_open = self._failures >= self._settings.failures
        self._failures = 0
        if was_open:
            self.report()
        return was_open

    def record_health(self, *, healthy: bool) -> bool:
        """Record the result of a health check, and return whether it has changed."""
        changed = healthy != self.healthy
        self.healthy = healthy
        if changed:
            self.report()
        return changed

    def report(self) -> None:
        """Report the state to the listener."""
        if self._listener is not None:
            self._listener.upstream_is(self._name, self.state)

    def detach(self) -> None:
        """Report a neutral state to the listener and detach it."""
        if self._listener is not None:
            self._listener.upstream_is(self._name, "ok")
        self._listener = None


@asynccontextmanager
async def monitor_health(
    upstreams: Mapping[str, UpstreamSettings], apps: Mapping[str, ASGIApp], circuits: Mapping[str, Circuit]
) -> AsyncIterator[None]:
    """Run health checks, which update the circuits, for as long as the block runs."""
    async with anyio.create_task_group() as tasks:
        for name, upstream in upstreams.items():
            if upstream.health is not None:
                tasks.start_soon(_monitor, upstream, apps[name], circuits[name])
        yield
        tasks.cancel_scope.cancel()


async def _monitor(upstream: UpstreamSettings, app: ASGIApp, circuit: Circuit) -> None:
    while True:
        problem = await _check(upstream, app)
        if circuit.record_health(healthy=problem is None):
            _log.warning("upstream %s: %s", upstream.name, problem or "healthy again")
        await anyio.sleep(upstream.health_seconds)


async def _check(upstream: UpstreamSettings, app: ASGIApp) -> str | None:
    """Return a description of the problem, or None if the upstream is healthy."""
    path = upstream.health or ""
    try:
        with anyio.fail_after(upstream.health_seconds):
            answer = await ask(app, SCOPE, "GET", path, headers=(), receive=never_disconnects)
    except StreamtoolError as error:
        return error.message
    except TimeoutError:
        return f"no response from {path} within {upstream.health_seconds:g} seconds"
    return None if 200 <= answer.status < 300 else f"status {answer.status} at {path}"
