"""The registry: one row for each protocol. Every other list of protocols is derived from it.

A row says who speaks the protocol, at which paths, and what its servers can be relied on to do. Its code is the package
of the same name (`streamtool.protocols.chat`), loaded when it is first asked for; what the package has to offer is
written in `interfaces`. So a new protocol is a package and a row.
"""

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from attrs import frozen

if TYPE_CHECKING:
    from streamtool.protocols.interfaces import ClientProtocol, UpstreamProtocol

ForcingSetting = Literal["auto", "prompt", "prefill", "schema", "guided", "structural_tag", "grammar"]
"""How a call is forced; `auto`: in the way that every server of the protocol has."""


@frozen
class ProtocolRow:
    """What is known of one protocol besides its code."""

    name: str
    """In the settings, and the name of its package."""
    paths: tuple[str, ...] = ()
    """The paths at which we serve it to clients; (): no client speaks it here."""
    count_path: str | None = None
    """The path at which clients have their tokens counted."""
    assumed: bool = True
    """An app behind its clients speaks it as well, if nobody says otherwise; else `chat`."""
    endings: tuple[str, ...] = ()
    """What the protocol adds to an upstream's base url."""
    hosts: tuple[str, ...] = ()
    """Hosts that speak nothing but this protocol."""
    forcing: tuple[ForcingSetting, ...] = ("prompt",)
    """The ways in which a call can be forced."""
    auto_forcing: Literal["prompt", "prefill", "schema"] = "prompt"
    """The way that every server of the protocol has."""
    lazy_grammar: bool = False
    """llama.cpp reads the triggers of a grammar; in a chat request it overwrites them by those of the template."""
    native_tools: bool = True
    """It has a place for tools."""
    prefill: bool = True
    """The reply may be begun for the model."""
    joins_neighbours: bool = False
    """Two messages of the same role in a row become one on the way."""
    signs_calls: bool = False
    """Calls may bear a signature that must come back."""
    provider: str | None = None
    """The name of OpenTelemetry's conventions for whoever made it; None: its own name."""


ROWS: Final = (
    ProtocolRow(
        "chat",
        paths=("/v1/chat/completions",),
        endings=("/chat/completions",),
        forcing=("prompt", "prefill", "schema", "guided", "structural_tag", "grammar"),
        signs_calls=True,  # in Google's own dialect
        provider="openai",
    ),
    ProtocolRow(
        "messages",
        paths=("/v1/messages",),
        count_path="/v1/messages/count_tokens",
        endings=("/messages",),
        hosts=("api.anthropic.com",),
        forcing=("prompt", "prefill", "schema"),
        joins_neighbours=True,
        provider="anthropic",
    ),
    ProtocolRow(
        "responses",
        paths=("/v1/responses",),
        assumed=False,
        endings=("/responses",),
        forcing=("prompt", "schema"),
        prefill=False,
        provider="openai",
    ),
    ProtocolRow(
        "ollama",
        endings=("/api/chat", "/api/generate"),
        forcing=("prompt", "prefill", "schema"),
        auto_forcing="schema",
    ),
    ProtocolRow(
        "gemini",
        hosts=("generativelanguage.googleapis.com",),
        forcing=("prompt", "schema"),
        prefill=False,
        joins_neighbours=True,
        signs_calls=True,
        provider="gcp.gemini",
    ),
    ProtocolRow(
        "completions",
        endings=("/completions",),
        forcing=("prompt", "prefill", "schema", "guided", "structural_tag", "grammar"),
        auto_forcing="prefill",
        lazy_grammar=True,
        native_tools=False,
        provider="openai",
    ),
)

PROTOCOLS: Final[Mapping[str, ProtocolRow]] = MappingProxyType({row.name: row for row in ROWS})
CLIENT_NAMES: Final = tuple(row.name for row in ROWS if row.paths)
"""What a client may speak."""
UPSTREAM_NAMES: Final = tuple(row.name for row in ROWS)
"""What an upstream may speak."""
COUNT: Final = "count_tokens"
"""What a path is for at which tokens are counted, in the place of a protocol."""
PATHS: Final[Mapping[str, str]] = MappingProxyType(
    {path: row.name for row in ROWS for path in row.paths}
    | {row.count_path: COUNT for row in ROWS if row.count_path is not None}
)
"""The paths that are ours, and the protocol that each speaks, or `count_tokens`."""


def protocol_of_host(host: str | None) -> str:
    """The protocol of an upstream of which nothing but its host is known."""
    return next((row.name for row in ROWS if host in row.hosts), "chat")


class _Packages(Mapping[str, Any]):
    """The packages of some protocols by name, each loaded when it is first asked for."""

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
"""What a client may speak."""
UPSTREAMS: "Final[Mapping[str, UpstreamProtocol]]" = _Packages(UPSTREAM_NAMES)
"""What an upstream may speak."""


def client_protocol(name: str | None) -> "ClientProtocol":
    """The protocol of a path by its name in the settings; what is no path of ours is answered as `chat`."""
    if name == COUNT:
        name = next(row.name for row in ROWS if row.count_path is not None)
    return CLIENTS[name or "chat"]


def upstream_protocol_for(client: str, name: str | None) -> "UpstreamProtocol":
    """The protocol to speak to an upstream; None: what the client speaks, if that may be assumed, else `chat`."""
    return UPSTREAMS[name or (client if PROTOCOLS[client].assumed else "chat")]
