"""The store of replies, which allows later requests to refer to them (`previous_response_id`, item references).

The store is limited in bytes and in time, and separate for each client: a reply can only be retrieved with the key that
was used to request it. By default, the store is in memory (`memory_store`); it can also be a file or a Redis server
(`shared_store`). If the store fails, stored values may be lost, but clients still receive their replies; only requests
that are meaningless without the store fail.
"""

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from streamtool.core.clients import client_of
from streamtool.core.errors import StoreError
from streamtool.core.values import frozen
from streamtool.settings import StoreSettings
from streamtool.store.file_backend import FileBackend
from streamtool.store.memory_store import MemoryStore
from streamtool.store.outage import Operation
from streamtool.store.redis_backend import RedisBackend
from streamtool.store.shared_store import Backend, SharedStore


class Store(Protocol):
    """The interface of the in-memory and the shared store. A key consists of a client's id, a space, and another id."""

    blocks: bool
    """Whether reading may take too long for the event loop."""

    def get(self, key: str, /) -> bytes | None: ...
    def put(self, key: str, value: bytes, /) -> None: ...
    def forget(self, key: str, /) -> None: ...
    def count(self, key: str, amount: int, seconds: float, /) -> int: ...
    def close(self) -> None: ...


@frozen
class ClientStoreView:
    """The part of a store that belongs to one client."""

    store: Store
    client: str
    unstored: "ClientStoreView | None" = None
    """The store for values that the client wants kept only until its connection closes, or None if they are not
    kept.
    """

    def demand(self, id: str, /) -> bytes | None:
        """Return the value stored under this id, or None if it has expired or was evicted. Raises StoreError."""
        found = None if self.unstored is None else self.unstored.demand(id)
        return self.store.get(f"{self.client} {id}") if found is None else found

    def recall(self, id: str, /) -> bytes | None:
        """Return the same value as `demand`, or None while the store fails."""
        try:
            return self.store.get(f"{self.client} {id}") if self.unstored is None else self.demand(id)
        except StoreError:
            return None

    def remember(self, id: str, value: bytes, /) -> None:
        """Store a value under this id."""
        self.store.put(f"{self.client} {id}", value)

    def forget(self, id: str, /) -> None:
        """Delete the value stored under this id."""
        self.store.forget(f"{self.client} {id}")


def client_store_of(store: Store, headers: Iterable[tuple[bytes, bytes]]) -> ClientStoreView:
    """Return the store of the client whose key is in these headers. Clients without a key share a single store."""
    return ClientStoreView(store, client_of(headers))


def open_store(
    settings: StoreSettings,
    clock: Callable[[], float] = time.time,
    *,
    failed: Callable[[Operation], object] = lambda _: None,
) -> Store:
    """Return the store that the settings describe. `failed` is called when a read or write fails.

    Raises SettingsError if its file or server cannot be used.
    """
    backend: Backend
    if settings.redis is not None:
        backend = RedisBackend(settings, failed)
    elif settings.file is not None:
        backend = FileBackend(settings, failed)
    else:
        return MemoryStore(settings, clock)
    return SharedStore(settings, backend, clock, failed)
