"""Whether an upstream is worth a try: its circuit opens after some failures in a row, and closes with the next success.

Source: M. Nygard, "Release It!", chapter "Circuit Breaker".
"""

from collections.abc import Callable
from time import monotonic

from streamtool.settings import CircuitSettings


class Circuit:
    """Of one upstream, in this process."""

    __slots__ = ("_clock", "_failures", "_opened", "_settings", "healthy")

    def __init__(self, settings: CircuitSettings, clock: Callable[[], float] = monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._failures = 0
        self._opened = 0.0
        self.healthy = True
        """What the last look at its health has found."""

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
        self._failures += 1
        if self._failures < self._settings.failures:
            return False
        self._opened = self._clock()
        return self._failures == self._settings.failures

    def worked(self) -> bool:
        """It has answered. Returns whether that closes the circuit."""
        was_open = self._failures >= self._settings.failures
        self._failures = 0
        return was_open
