"""Whether an upstream is worth a try: its circuit opens after some failures in a row, and closes with the next success.

Source: M. Nygard, "Release It!", chapter "Circuit Breaker".
"""

from collections.abc import Callable
from time import monotonic
from typing import Protocol

from streamtool.settings import CircuitSettings


class CircuitListener(Protocol):
    """Is told what becomes of an upstream."""

    def upstream_failed(self, name: str, /) -> None:
        """A request has failed there."""

    def upstream_is(self, name: str, state: str, /) -> None:
        """The state of its circuit has changed."""


class Circuit:
    """Of one upstream, in this process."""

    __slots__ = ("_clock", "_failures", "_listener", "_name", "_opened", "_settings", "healthy")

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
        """What the last look at its health has found."""
        self.tell()

    @property
    def state(self) -> str:
        """`ok`, `failing` (its circuit is open) or `unhealthy`."""
        if not self.healthy:
            return "unhealthy"
        return "failing" if self._failures >= self._settings.failures else "ok"

    @property
    def admits(self) -> bool:
        """Whether a request may try it: while the circuit is open, one may now and then."""
        if self.state == "failing":
            return self._clock() - self._opened >= self._settings.seconds
        return self.healthy

    def tried(self) -> None:
        """A request tries it; while the circuit is open, others wait for what comes of that."""
        self._opened = self._clock()

    def failed(self) -> bool:
        """A request has failed. Returns whether that opens the circuit."""
        if self._listener is not None:
            self._listener.upstream_failed(self._name)
        self._failures += 1
        if self._failures < self._settings.failures:
            return False
        self._opened = self._clock()
        opens = self._failures == self._settings.failures
        if opens:
            self.tell()
        return opens

    def worked(self) -> bool:
        """It has answered. Returns whether that closes the circuit."""
        was_open = self._failures >= self._settings.failures
        self._failures = 0
        if was_open:
            self.tell()
        return was_open

    def looked(self, *, healthy: bool) -> bool:
        """Somebody has looked at its health. Returns whether that has changed."""
        changed = healthy != self.healthy
        self.healthy = healthy
        if changed:
            self.tell()
        return changed

    def tell(self) -> None:
        """Tell the listener of the state."""
        if self._listener is not None:
            self._listener.upstream_is(self._name, self.state)

    def part(self) -> None:
        """Tell the listener nothing any more, and leave nothing behind that was said."""
        if self._listener is not None:
            self._listener.upstream_is(self._name, "ok")
        self._listener = None
