"""What upstreams were found unable to do, for a while: tools (`mode = "auto"`), a way of forcing, a constraint.

It is known of an upstream, a model, and the account under which the upstream is asked. Behind one name, each client's
own key may reach another model, so what is found with it counts for this client alone. Upstreams that see the same of
all clients, such as those with a key of ours, are `shared`: there it counts for all. When there is too much, the client
that has taught most loses its oldest, so none can make others' knowledge be forgotten.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Container

from streamtool.state.clients import NOBODY, surplus
from streamtool.state.replies import Shelf, Store

SECONDS = 600.0
"""How long it is believed: a server may be started anew, a model be replaced."""
_MOST = 1000

_Key = tuple[str, str | None, str, str]
"""The client (`NOBODY` where it counts for all), the upstream, the model, the ability."""


class CapabilityCache:
    """Remembers what the models were found unable to do. Safe to use from any thread.

    `store`: shared by several processes; None: only this one knows.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        *,
        shared: Container[str | None] = (),
        store: Store | None = None,
    ) -> None:
        self._clock = clock
        self._shared = shared
        self._store = store
        self._lock = threading.Lock()
        self._learnt: dict[_Key, tuple[float, str]] = {}
        """Until when it is believed, and the client that it was learnt from; the oldest first."""

    def lacks(self, client: str, upstream: str | None, model: str, ability: str, /) -> bool:
        """Whether this model of this upstream said lately that it cannot do this, asked as for this client.

        An ability is `tools`, a way of forcing, or a way and the digest of one constraint.
        """
        known = self.lacked_here(client, upstream, model, ability)
        return known or self._told(self._key(client, upstream, model, ability)) > self._clock()

    def lacked_here(self, client: str, upstream: str | None, model: str, ability: str, /) -> bool:
        """The same, as far as this process has heard it itself: for what every request asks, and a retry would tell."""
        return self._learnt.get(self._key(client, upstream, model, ability), (0.0, ""))[0] > self._clock()

    def learn(self, client: str, upstream: str | None, model: str, ability: str, /) -> None:
        """It has said so now."""
        key = self._key(client, upstream, model, ability)
        with self._lock:
            self._learnt.pop(key, None)
            if len(self._learnt) >= _MOST:
                del self._learnt[surplus({known: teacher for known, (_, teacher) in self._learnt.items()})]
            until = self._clock() + SECONDS
            self._learnt[key] = until, client
        if self._store is not None:
            _shelf(self._store, key).remember(_digest(key), repr(until).encode())

    def forget(self, client: str, upstream: str | None, model: str, ability: str, /) -> None:
        """It was not what it seemed."""
        key = self._key(client, upstream, model, ability)
        with self._lock:
            self._learnt.pop(key, None)
        if self._store is not None:
            _shelf(self._store, key).forget(_digest(key))

    def _told(self, key: _Key) -> float:
        """Until when another process has said that it is to be believed."""
        found = None if self._store is None else _shelf(self._store, key).recall(_digest(key))
        try:
            return float(found or 0)
        except ValueError:  # another version has kept it
            return 0.0

    def _key(self, client: str, upstream: str | None, model: str, ability: str) -> _Key:
        return NOBODY if upstream in self._shared else client, upstream, model, ability


def _shelf(store: Store, key: _Key) -> Shelf:
    return Shelf(store, key[0])


def _digest(key: _Key) -> str:
    return "lacks " + hashlib.sha256(repr(key[1:]).encode()).hexdigest()
