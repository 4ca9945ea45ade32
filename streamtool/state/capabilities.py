"""What upstreams were found unable to do, for a while: tools (`mode = "auto"`), a way of forcing, a constraint."""

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
        """Whether this model of this upstream said lately that it cannot do this.

        An ability is `tools`, a way of forcing, or a way and the digest of one constraint.
        """
        return self._until.get((upstream, model, ability), 0.0) > self._clock()

    def learn(self, upstream: str | None, model: str, ability: str, /) -> None:
        """It has said so now."""
        self.forget(upstream, model, ability)
        if len(self._until) >= _MOST:
            self._until.pop(next(iter(self._until)), None)  # the oldest
        self._until[upstream, model, ability] = self._clock() + SECONDS

    def forget(self, upstream: str | None, model: str, ability: str, /) -> None:
        """It was not what it seemed."""
        self._until.pop((upstream, model, ability), None)
