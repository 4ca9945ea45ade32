"""What is remembered of replies, so that later requests can refer to them (`previous_response_id`, item references).

Bounded in bytes and in time, and kept apart by client: what one key's owner was told, no other can ask for. By default
it lives in memory (`memory_store`), else in a file or on a Redis server (`shared_store`). A store that fails costs what
should have been remembered, and never a reply; only a request that means nothing without it is told so.
"""

import time
from collections.abc import Callable, Iterable
from typing import Protocol

from attrs import frozen

from streamtool.errors import StoreError
from streamtool.settings import StoreSettings
from streamtool.state.clients import client_of
from streamtool.state.file_backend import FileBackend
from streamtool.state.memory_store import MemoryStore
from streamtool.state.outage import Operation
from streamtool.state.redis_backend import RedisBackend
from streamtool.state.shared_store import Backend, SharedStore


class Store(Protocol):
    """What both stores do. A key is a client's name, a space, and an id."""

    blocks: bool
    """Reading may take so long that it is not for the event loop."""

    def get(self, key: str, /) -> bytes | None: ...
    def put(self, key: str, value: bytes, /) -> None: ...
    def forget(self, key: str, /) -> None: ...
    def count(self, key: str, amount: int, seconds: float, /) -> int: ...
    def close(self) -> None: ...


@frozen
class Shelf:
    """The part of a store that belongs to one client."""

    store: Store
    client: str
    unstored: "Shelf | None" = None
    """What the client said is not to be stored, as long as its connection lasts; None: there is no such connection."""

    def demand(self, id: str, /) -> bytes | None:
        """What was remembered under this id, unless it is too old or was too much. Raises StoreError."""
        found = None if self.unstored is None else self.unstored.demand(id)
        return self.store.get(f"{self.client} {id}") if found is None else found

    def recall(self, id: str, /) -> bytes | None:
        """The same; nothing while the store fails."""
        try:
            return self.demand(id)
        except StoreError:
            return None

    def remember(self, id: str, value: bytes, /) -> None:
        """Keep `value` for later."""
        self.store.put(f"{self.client} {id}", value)

    def forget(self, id: str, /) -> None:
        """Delete what was remembered under this id."""
        self.store.forget(f"{self.client} {id}")


def shelf(store: Store, headers: Iterable[tuple[bytes, bytes]]) -> Shelf:
    """The shelf of the client whose key stands in these headers; clients without a key share one."""
    return Shelf(store, client_of(headers))


def open_store(
    settings: StoreSettings,
    clock: Callable[[], float] = time.time,
    *,
    failed: Callable[[Operation], object] = lambda _: None,
) -> Store:
    """The store that the settings describe. `failed` is called when it cannot be read or written.

    Raises SettingsError when its file or server cannot be used.
    """
    backend: Backend
    if settings.redis is not None:
        backend = RedisBackend(settings, failed)
    elif settings.file is not None:
        backend = FileBackend(settings, failed)
    else:
        return MemoryStore(settings, clock)
    return SharedStore(settings, backend, clock, failed)
