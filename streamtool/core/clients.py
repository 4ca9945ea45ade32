"""Client identity: a client is identified by its key, regardless of the header that carries the key.

The identity is used to check client keys and to separate each client's data from that of others: stored replies,
transcripts, tools and signatures, features that upstreams lack, and the client name in logs, metrics and spans. The key
that grants a client access therefore determines which stored data the client can reach, too. Credentials of another
scheme (`Basic`) often belong to a reverse proxy that all clients share, so they are used only if no key was sent.
"""

import hashlib
import hmac
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

HeaderPairs = Iterable[tuple[bytes, bytes]]
K = TypeVar("K")


def key_of(headers: HeaderPairs) -> bytes:
    """Return a client's key: the bearer token, `x-api-key` or `x-goog-api-key`, in this order of preference. If the
    headers contain no key, return an empty value. If a header is repeated, its first occurrence is used.
    """
    return _key_in(_first(headers))


def client_of(headers: HeaderPairs) -> str:
    """Return a client's id, 32 hexadecimal digits that do not reveal its key. All clients without credentials have the
    same id.
    """
    found = _first(headers)
    shown = _key_in(found) or found.get(b"authorization", b"")
    return hashlib.sha256(shown).hexdigest()[:32]


def entry_to_evict(owners: Mapping[K, str]) -> K:
    """Return the entry to evict: the first one that belongs to the client with the most entries. `owners` maps each
    entry to its client.
    """
    [(most, _)] = Counter(owners.values()).most_common(1)
    return next(key for key, owner in owners.items() if owner == most)


class ClientNames:
    """The names of the clients in the settings. `keys` maps each name to its key."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._keys = [(name, key.encode()) for name, key in keys.items()]

    def of(self, headers: HeaderPairs) -> str:
        """Return the name of the client whose key is in these headers, or an empty string. Each key is compared in
        constant time.
        """
        if not self._keys:
            return ""
        shown = key_of(headers)
        fits = [name for name, key in self._keys if hmac.compare_digest(shown, key)]
        return fits[0] if fits else ""


def _key_in(found: Mapping[bytes, bytes]) -> bytes:
    scheme, _, bearer = found.get(b"authorization", b"").partition(b" ")
    shown = bearer.strip() if scheme.lower() == b"bearer" else b""
    return shown or found.get(b"x-api-key") or found.get(b"x-goog-api-key", b"")


def _first(headers: HeaderPairs) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        found.setdefault(name.lower(), value)
    return found


ANONYMOUS: Final = client_of(())
"""The id of clients without credentials, which is also used for entries that apply to all clients."""
