"""What upstreams were found unable to do, for a while: tools (`mode = "auto"`), or a way of forcing a call."""

import time
from collections.abc import Callable

SECONDS = 600.0
"""How long it is believed: a server may be started anew, a model be replaced."""
_MOST = 1000


class CapabilityCache:
    """Remembers, in this process, what the models were found unable to do."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[tuple[str | None, str, str], float] = {}

    def lacks(self, upstream: str | None, model: str, ability: str, /) -> bool:
        """Whether this model of this upstream said lately that it cannot do this: `tools`, or a way of forcing."""
        return self._until.get((upstream, model, ability), 0.0) > self._clock()

    def learn(self, upstream: str | None, model: str, ability: str, /) -> None:
        """It has said so now."""
        now = self._clock()
        if len(self._until) >= _MOST:
            self._until = {key: until for key, until in self._until.items() if until > now}
        if len(self._until) < _MOST:
            self._until[upstream, model, ability] = now + SECONDS
