"""Features that upstreams were recently found to lack: tools (`mode = "auto"`), a forcing method, or a constraint.

A finding applies to an upstream, a model, and the account that is used at the upstream. With different keys, the same
model name may refer to different models, so a finding made with a client's own key applies to this client only.
Upstreams that behave identically for all clients, such as those that receive a key from the settings, are `shared`:
findings about them apply to all clients. If there are too many findings, the client that contributed the most loses its
oldest findings, so that no client can displace the findings of others.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Container

from streamtool.core.clients import ANONYMOUS, entry_to_evict
from streamtool.store.replies import ClientStoreView, Store

VALID_FOR = 600.0
"""Validity of a finding, in seconds. It is limited because a server may be restarted, or a model replaced."""
_MOST = 1000

_Key = tuple[str, str | None, str, str]
"""Client (`ANONYMOUS` if the finding applies to all clients), upstream, model and ability."""


class CapabilityCache:
    """A cache of the abilities that models were found to lack. Thread-safe.

    `store` is a store that several processes share; if None, the findings are local to this process.
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
        self._findings: dict[_Key, tuple[float, str]] = {}
        """Expiry time of each finding, and the client that contributed it; oldest first."""

    def lacks(self, client: str, upstream: str | None, model: str, ability: str, /) -> bool:
        """Return whether, for this client, this model at this upstream was recently found to lack this ability.

        An ability is `tools`, `usage`, a forcing method, or a method and the digest of one constraint.
        """
        known = self.lacks_locally(client, upstream, model, ability)
        return known or self._shared_expiry(self._key(client, upstream, model, ability)) > self._clock()

    def lacks_locally(self, client: str, upstream: str | None, model: str, ability: str, /) -> bool:
        """Return whether the ability is missing according to this process's own findings. This is cheap, and missing a
        shared finding costs only one retry.
        """
        return self._findings.get(self._key(client, upstream, model, ability), (0.0, ""))[0] > self._clock()

    def learn(self, client: str, upstream: str | None, model: str, ability: str, /) -> None:
        """Record that the ability is missing."""
        key = self._key(client, upstream, model, ability)
        with self._lock:
            self._findings.pop(key, None)
            if len(self._findings) >= _MOST:
                del self._findings[entry_to_evict({known: teacher for known, (_, teacher) in self._findings.items()})]
            until = self._clock() + VALID_FOR
            self._findings[key] = until, client
        if self._store is not None:
            _client_store(self._store, key).remember(_digest(key), repr(until).encode())

    def forget(self, client: str, upstream: str | None, model: str, ability: str, /) -> None:
        """Discard a finding that was wrong."""
        key = self._key(client, upstream, model, ability)
        with self._lock:
            self._findings.pop(key, None)
        if self._store is not None:
            _client_store(self._store, key).forget(_digest(key))

    def _shared_expiry(self, key: _Key) -> float:
        """Return the time until which a finding in the shared store is valid, or 0 if it is unknown."""
        found = None if self._store is None else _client_store(self._store, key).recall(_digest(key))
        try:
            return float(found or 0)
        except ValueError:  # stored by another version
            return 0.0

    def _key(self, client: str, upstream: str | None, model: str, ability: str) -> _Key:
        return ANONYMOUS if upstream in self._shared else client, upstream, model, ability


def _client_store(store: Store, key: _Key) -> ClientStoreView:
    return ClientStoreView(store, key[0])


def _digest(key: _Key) -> str:
    return "lacks " + hashlib.sha256(repr(key[1:]).encode()).hexdigest()
