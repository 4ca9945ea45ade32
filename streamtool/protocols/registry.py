"""The registry: one row for each protocol. Every other list of protocols is derived from it.

A row says who speaks the protocol, at which paths, and what its servers can be relied on to do. Its code is the package
of the same name (`streamtool.protocols.chat`), loaded when it is first asked for; what the package has to offer is
written in `interfaces`. So a new protocol is a package and a row.
"""

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast

from attrs import frozen

if TYPE_CHECKING:
    from streamtool.protocols.interfaces import ClientProtocol, CountingProtocol, UpstreamProtocol

ForcingSetting = Literal["auto", "prompt", "prefill", "schema", "guided", "structural_tag", "grammar"]
"""How a call is forced; `auto`: in the way that every server of the protocol has."""


@frozen
class ProtocolRow:
    """What is known of one protocol besides its code."""

    name: str
    """In the settings, and the name of its package."""
    paths: tuple[str, ...] = ()
    """The paths at which we serve it to clients, `{model}` for any name; (): no client speaks it here."""
    addressed: bool = False
    """A path tells what the body does not: the package offers `at`, which names what is different there."""
    model_in_path: bool = False
    """The path names the model, and whether the reply is streamed."""
    query_key: str = ""
    """The field of a query in which a client's key may come; "": only headers bear it."""
    lists: tuple[tuple[str, str], ...] = ()
    """The paths at which clients are told of models, and their methods."""
    beside: tuple[tuple[str, str], ...] = ()
    """The paths at which clients ask for something else than a reply, and for what, as the settings have it."""
    websocket: bool = False
    """Clients may speak it over a websocket as well, at the same paths."""
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
        beside=(("/v1/messages/count_tokens", "count_tokens"),),
        endings=("/messages",),
        hosts=("api.anthropic.com",),
        forcing=("prompt", "prefill", "schema"),
        joins_neighbours=True,
        provider="anthropic",
    ),
    ProtocolRow(
        "responses",
        paths=("/v1/responses",),
        beside=(("/v1/responses/input_tokens", "input_tokens"), ("/v1/responses/compact", "compact")),
        websocket=True,
        assumed=False,
        endings=("/responses",),
        forcing=("prompt", "schema"),
        prefill=False,
        provider="openai",
    ),
    ProtocolRow(
        "ollama",
        paths=("/api/chat", "/api/generate"),
        addressed=True,
        lists=(("/api/tags", "GET"), ("/api/ps", "GET"), ("/api/version", "GET"), ("/api/show", "POST")),
        endings=("/api/chat", "/api/generate"),
        forcing=("prompt", "prefill", "schema"),
        auto_forcing="schema",
    ),
    ProtocolRow(
        "gemini",
        paths=tuple(
            f"{version}/models/{{model}}:{verb}"
            for version in ("/v1beta", "/v1")
            for verb in ("generateContent", "streamGenerateContent")
        ),
        addressed=True,
        model_in_path=True,
        query_key="key",
        lists=(("/v1beta/models", "GET"), ("/v1beta/models/{model}", "GET")),
        beside=tuple(
            (f"{version}/models/{{model}}:countTokens", "gemini_count_tokens") for version in ("/v1beta", "/v1")
        ),
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
WEBSOCKETS: Final = frozenset(row.name for row in ROWS if row.websocket)
"""What a client may speak over a websocket."""
COMPACT: Final = "compact"
"""In the place of a protocol: a conversation is to be compacted."""
BESIDE: Final[Mapping[str, str]] = MappingProxyType({what: row.name for row in ROWS for _, what in row.beside})
"""What clients ask for beside replies, in the place of a protocol, and the protocol in which they do."""
COUNTS: Final = frozenset(BESIDE) - {COMPACT}
"""In the place of a protocol: tokens are to be counted."""
PATHS: Final[Mapping[str, str]] = MappingProxyType(
    {path: row.name for row in ROWS for path in row.paths} | {path: what for row in ROWS for path, what in row.beside}
)
"""The paths that are ours, and the protocol that each speaks, or what it is for."""
LISTS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {path: (row.name, method) for row in ROWS for path, method in row.lists}
)
"""The paths at which a protocol's clients are told of models, and their methods."""
VERSIONS: Final = ("/v1beta", "/v1")
"""What paths begin with that name the version of their protocol."""
MODEL: Final = "{model}"
"""Stands in a path for the name of any model."""

T = TypeVar("T")
_NOWHERE: Final = frozenset(("", ".", ".."))
"""Parts of a path that another server would read as another path."""


def at_path(paths: Mapping[str, T], path: str) -> T | None:
    """What stands in `paths` for this path, in which a model may be named; None: it is none of them."""
    found = paths.get(path)
    if found is not None:
        return found
    return next((value for one, value in paths.items() if MODEL in one and fits(one, path)), None)


def without_version(path: str) -> str:
    """The path behind the version of the protocol: how it ends whatever an address stands before it."""
    for version in VERSIONS:
        path = path.removeprefix(version)
    return path


def fits(template: str, path: str) -> bool:
    """Whether a path is one of those that the template stands for."""
    before, _, after = template.partition(MODEL)
    named = path.removeprefix(before).removesuffix(after)
    return f"{before}{named}{after}" == path and _NOWHERE.isdisjoint(named.split("/"))


def protocol_near(paths: Mapping[str, str], path: str) -> str:
    """The client protocol that speaks at this path, or beside it: errors are told in its shape."""
    name, listed, first = at_path(paths, path), at_path(LISTS, path), path.split("/", 2)[1:2]
    if name is None and listed is not None:
        return listed[0]
    beside = (row.name for row in ROWS if row.paths and row.paths[0].split("/", 2)[1:2] == first)
    return BESIDE.get(name or "", name) or next(beside, "chat")


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


class _Addressed:
    """A client protocol at one of its addresses: the package, but for the names that mean something else there."""

    def __init__(self, package: Any, names: Mapping[str, Any]) -> None:
        self.__dict__.update(names)
        self._package = package

    def __getattr__(self, name: str) -> Any:
        return getattr(self._package, name)


def client_protocol(name: str | None, target: str = "") -> "ClientProtocol":
    """The protocol of a path by its name in the settings; what is no path of ours is answered as `chat`.

    `target` is the path that was asked for, with its query, where it may tell what the body does not.
    """
    name = BESIDE.get(name or "", name) or "chat"
    package: Any = CLIENTS[name]
    if not (target and PROTOCOLS[name].addressed):
        return cast("ClientProtocol", package)
    return cast("ClientProtocol", _Addressed(package, package.at(target)))


def counting(client: "ClientProtocol") -> "CountingProtocol":
    """The client's protocol, whose row has paths at which tokens are counted."""
    return cast("CountingProtocol", client)


def upstream_name(client: str, name: str | None) -> str:
    """The name of the protocol to speak to an upstream; None: what the client speaks, if that may be assumed."""
    return name or (client if PROTOCOLS[client].assumed else "chat")


def upstream_protocol_for(client: "ClientProtocol", name: str | None) -> "UpstreamProtocol":
    """The protocol to speak to an upstream; None: what the client speaks, if that may be assumed, else `chat`."""
    name = upstream_name(client.NAME, name)
    return cast("UpstreamProtocol", client) if name == client.NAME else UPSTREAMS[name]  # at the client's own address
