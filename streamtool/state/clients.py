"""Who a client is: whoever shows the same key, in whichever header.

The check of client keys asks here, and so does everything that is kept apart by client: what is remembered of replies,
transcripts, tools, signatures, what upstreams lack, and the name in log, metrics and spans. So a client is remembered
by the very key that let it in. Credentials of another scheme (`Basic`) often belong to a reverse proxy that all clients
share, so they count only where there is no key.
"""

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

Headers = Iterable[tuple[bytes, bytes]]
K = TypeVar("K")


def key_of(headers: Headers) -> bytes:
    """The key that a client shows, empty without one: the bearer, `x-api-key` or `x-goog-api-key`, in this order.

    The first header of a name counts.
    """
    found = _first(headers)
    scheme, _, bearer = found.get(b"authorization", b"").partition(b" ")
    shown = bearer.strip() if scheme.lower() == b"bearer" else b""
    return shown or found.get(b"x-api-key") or found.get(b"x-goog-api-key", b"")


def client_of(headers: Headers) -> str:
    """A client's name, 32 hexadecimal digits, which do not tell its key. Clients that show nothing share one."""
    found = _first(headers)
    shown = key_of(found.items()) or found.get(b"authorization", b"")
    return hashlib.sha256(shown).hexdigest()[:32]


def surplus(owners: Mapping[K, str]) -> K:
    """What has to go: the first of those that belong to the client that has most. `owners`: what -> whose."""
    [(most, _)] = Counter(owners.values()).most_common(1)
    return next(key for key, owner in owners.items() if owner == most)


class ClientNames:
    """The names that the settings give to clients. `keys`: name -> key."""

    __slots__ = ("_keys",)

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._keys = [(name, key.encode()) for name, key in keys.items()]

    def of(self, headers: Headers) -> str:
        """The name of the client whose key stands in these headers; "" without one. Constant time for each key."""
        shown = key_of(headers) if self._keys else b""
        fits = [name for name, key in self._keys if hmac.compare_digest(shown, key)]
        return fits[0] if fits else ""


def _first(headers: Headers) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        found.setdefault(name.lower(), value)
    return found


NOBODY: Final = client_of(())
"""Who shows nothing; under this name stands what holds for all."""
