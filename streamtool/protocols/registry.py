"""Registry of protocol packages, by the names in `table`.

A row of `table` describes who speaks a protocol, its paths, and the features that its servers reliably support. The
code is in the package of the same name (`streamtool.protocols.chat`), which is imported on first use and must provide
the attributes listed in `interfaces`. To add a protocol, add a package and a row.
"""

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from streamtool.protocols.table import CLIENT_NAMES, OTHER_REQUESTS, PROTOCOLS, UPSTREAM_NAMES, upstream_name

if TYPE_CHECKING:
    from streamtool.protocols.interfaces import ClientProtocol, CountingProtocol, UpstreamProtocol


class _Packages(Mapping[str, Any]):
    """Packages of some protocols by name, each imported on first use."""

    def __init__(self, names: Iterable[str]) -> None:
        self._found: dict[str, Any] = dict.fromkeys(names)

    def __getitem__(self, name: str) -> Any:
        found = self._found[name]
        if found is None:
            found = self._found[name] = import_module(f"streamtool.protocols.{name}")
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


CLIENTS: "Final[Mapping[str, ClientProtocol]]" = _Packages(CLIENT_NAMES)
"""Packages of the protocols that a client may speak."""
UPSTREAMS: "Final[Mapping[str, UpstreamProtocol]]" = _Packages(UPSTREAM_NAMES)
"""Packages of the protocols that an upstream may speak."""


class _Addressed:
    """Client protocol at one request target: the package, with some of its attributes replaced."""

    def __init__(self, package: Any, names: Mapping[str, Any]) -> None:
        self.__dict__.update(names)
        self._package = package

    def __getattr__(self, name: str) -> Any:
        return getattr(self._package, name)


def client_protocol(name: str | None, target: str = "") -> "ClientProtocol":
    """Return the client protocol for a protocol name, or for the name of a purpose such as token counting. If `name` is
    None, as for an unknown path, return `chat`.

    `target` is the requested path with its query, for protocols whose path carries information that the body lacks.
    """
    name = OTHER_REQUESTS.get(name or "", name) or "chat"
    package: Any = CLIENTS[name]
    if not (target and PROTOCOLS[name].addressed):
        return cast("ClientProtocol", package)
    return cast("ClientProtocol", _Addressed(package, package.at(target)))


def as_counting_protocol(client: "ClientProtocol") -> "CountingProtocol":
    """Return the client's protocol, typed as one that counts tokens. Its row must have paths for counting."""
    return cast("CountingProtocol", client)


def upstream_protocol_for(client: "ClientProtocol", name: str | None) -> "UpstreamProtocol":
    """Return the protocol to speak to an upstream. If `name` is None, the result is the client's own protocol if the
    upstream may be assumed to speak it, and `chat` if not.
    """
    name = upstream_name(client.NAME, name)
    return cast("UpstreamProtocol", client) if name == client.NAME else UPSTREAMS[name]  # retains the request target
