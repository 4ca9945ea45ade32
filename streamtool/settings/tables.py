"""The tables of the settings file, as frozen data: what is said of one upstream, one model, one tool, of limits …"""

# ruff: noqa: RUF009 - a default made by `setting` is an attrs field, not a value that instances share

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Literal
from urllib.parse import urlsplit

from attrs import NOTHING, Factory, frozen

from streamtool.errors import SettingsError
from streamtool.protocols.registry import PROTOCOLS, UPSTREAM_NAMES, ForcingSetting, protocol_of_host
from streamtool.settings import readers as read
from streamtool.settings.readers import setting

Mode = Literal["emulate", "native", "auto", "rescue"]
"""How tools reach the model: as text, untouched, as it can, or untouched with an eye on its text."""
Schema = Literal["compact", "json", "markdown"]
TEMPLATES = (
    *("chatml", "llama2", "llama3", "mistral", "gemma", "phi3", "zephyr", "vicuna", "alpaca", "deepseek"),
    "plain",
)
"""The chat templates that the completions protocol knows."""

_TEMPLATE = read.one_of(*TEMPLATES)
AUTOMATIC = read.flag_or("auto")
"""Reads a flag, or `auto`: the model's family, or its chat template, tells."""


@frozen
class KeyLimits:
    """What one client may use; None: what holds for all. 0: as much as it likes."""

    exchanges: int | None = setting(None, read.optional(read.integer(0)))
    """Requests that are open at once, at one process."""
    requests_per_minute: int | None = setting(None, read.optional(read.integer(0)))
    tokens_per_minute: int | None = setting(None, read.optional(read.integer(0)))


@frozen
class LimitSettings:
    """What is bounded, and where the bound is. Exceeding one is a clear error, or a rule of the parser."""

    body: int = setting(16 * 1024 * 1024, read.integer(1))
    """Bytes of a request body."""
    body_seconds: float = setting(120.0)
    """Seconds in which it has to arrive."""
    header_bytes: int = setting(65536, read.integer(1))
    """Bytes of a request's header. This and what follows, to `connections_per_address`, hold for `streamtool serve`."""
    header_seconds: float = setting(10.0)
    """Seconds in which it has to arrive."""
    keep_alive_seconds: float = setting(75.0)
    """Seconds after which an idle connection is closed."""
    connections: int = setting(4096, read.integer(0))
    """Connections of clients that are open at once. 0: any number."""
    connections_per_address: int = setting(2048, read.integer(0))
    """From one address. 0: any number."""
    exchanges: int = setting(2048, read.integer(0))
    """Requests that are open at once. 0: any number."""
    exchanges_per_client: int = setting(1024, read.integer(0))
    """Of one client. 0: any number."""
    requests_per_minute: int = setting(0, read.integer(0))
    """Of one client, at all processes that share the store. 0: any number."""
    tokens_per_minute: int = setting(0, read.integer(0))
    """Of one client, read and written. 0: any number."""
    keys: Mapping[str, KeyLimits] = setting(Factory(dict), read.named(KeyLimits, with_name=False))
    """Name of a client key -> what holds for it."""
    websocket_seconds: float = setting(3600.0)
    """Seconds that a websocket may last."""
    values: int = setting(100_000, read.integer(1))
    """JSON values in a request body."""
    tools: int = setting(1024, read.integer(1))
    """Tools in one request."""
    schema: int = setting(1024 * 1024, read.integer(1))
    """Bytes of one tool's schema as JSON."""
    reply: int = setting(128 * 1024 * 1024, read.integer(1))
    """Bytes of an upstream's reply, in all attempts."""
    held: int = setting(256 * 1024, read.integer(1))
    """Characters of text that may be held back."""
    arguments: int = setting(16 * 1024 * 1024, read.integer(1))
    """Characters of one call's arguments."""
    depth: int = setting(128, read.integer(1))
    """Nesting of JSON, in requests and in arguments."""
    name: int = setting(256, read.integer(1))
    """Characters of a tool's name."""
    attempts: int = setting(3, read.integer(1))
    """Upstream requests of one exchange, the first included."""


@frozen
class TimeoutSettings:
    """How long to wait for the upstream, in seconds. There is no limit on the whole reply."""

    connect: float = setting(10.0)
    first_byte: float = setting(600.0)
    idle: float = setting(120.0)
    """Between two pieces of the reply."""


@frozen
class CircuitSettings:
    """When an upstream with fallbacks is not asked for a while."""

    failures: int = setting(5, read.integer(1))
    """Failures in a row."""
    seconds: float = setting(30.0)
    """How long it is not asked; then one request tries."""


@frozen
class UpstreamSettings:
    """Where a model is served."""

    name: str
    url: str = setting(NOTHING, read.url)
    """Without the protocol's own path; `sample` is the embedded upstream."""
    protocol: str = setting("auto", read.one_of("auto", *UPSTREAM_NAMES))
    """The protocol; `auto` is the one of a host that is known to have its own, and else `chat`."""
    key: str | None = setting(None, read.optional(read.secret), shown=False)
    """Sent in the header that the protocol has for it; None passes the client's own authorization on."""
    template: str = setting("chatml", _TEMPLATE)
    """Completions: the chat template that makes one prompt of the messages."""
    forcing: ForcingSetting = setting("auto")
    """How a call is forced where the client demands one; `auto`: in the way that every server of the protocol has."""
    timeout: TimeoutSettings = setting(TimeoutSettings())
    fallbacks: tuple[str, ...] = setting(())
    """Names of upstreams that are asked when this one fails, in this order. They speak the same protocol."""
    balance: bool = setting(False)
    """Spread the requests over this one and its fallbacks, by `weight`."""
    weight: int = setting(1, read.integer(1))
    circuit: CircuitSettings = setting(CircuitSettings())
    health: str | None = setting(None)
    """The path at which it tells whether it is well; None: nobody asks."""
    health_seconds: float = setting(10.0)
    """Seconds between two looks, and for an answer."""

    def __attrs_post_init__(self) -> None:
        check_forcing(self.forcing, self.wire_protocol, f"upstream.{self.name}.forcing")

    @property
    def server(self) -> str | None:
        """Host and port; None for the embedded one."""
        parts = urlsplit(self.url)
        return parts.hostname and f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"

    @property
    def wire_protocol(self) -> str:
        """The protocol; `auto` has been resolved."""
        if self.protocol != "auto":
            return self.protocol
        return protocol_of_host(urlsplit(self.url).hostname)


@frozen
class ModelRule:
    """What holds for the models whose name matches; None leaves the general setting in force."""

    match: str = setting(NOTHING)
    """A pattern over the name that the client asks for: `*`, `?`, `[abc]`; case counts."""
    use: str | None = setting(None)
    """The model's name at the upstream; None: the name that the client asked for."""
    upstream: str | None = setting(None)
    """Name of an upstream; None: the first one."""
    mode: Mode | None = setting(None)
    format: str | None = setting(None, read.optional(read.taught))
    formats: tuple[str, ...] | None = setting(None, read.optional(read.list_of(read.format_name)))
    context: int | None = setting(None, read.optional(read.integer(1)))
    tokenizer: str | None = setting(None)
    schema: Schema | None = setting(None)
    schema_budget: int | None = setting(None, read.optional(read.integer(1)))
    roles: Literal["auto", "strict", "free"] | None = setting(None)
    system_role: bool | Literal["auto"] | None = setting(None, read.optional(AUTOMATIC))
    media: bool | None = setting(None)
    calls_in_reasoning: bool | Literal["auto"] | None = setting(None, read.optional(AUTOMATIC))
    chat_template: str | None = setting(None)
    reasoning_open: bool | Literal["auto"] | None = setting(None, read.optional(AUTOMATIC))
    mcp: tuple[str, ...] | None = setting(None)
    """MCP servers whose tools the proxy executes for requests that have none."""
    template: str | None = setting(None, read.optional(_TEMPLATE))
    forcing: ForcingSetting | None = setting(None)


@frozen
class ToolSettings:
    """What holds for one tool."""

    arguments: Literal["stream", "complete"] | None = setting(None)


@frozen
class ResultSettings:
    """How results reach the model as text."""

    max_length: int = setting(-1, read.integer(-1))
    """Characters of a result; what is longer is cut with a visible note. -1: no limit."""
    frame: str = setting("default", read.frame)
    """`default`, `tool_result`, `doai`, `windlass`, or a template with `{content}` and perhaps `{name}` and `{id}`."""
    drop: bool = setting(False)
    """Leave results out of the prompt."""
    strip: tuple[str, ...] = setting(())
    """Tags whose blocks are removed from results and user text (`system-reminder`)."""


@frozen
class StoreSettings:
    """What is remembered of replies, for requests that refer to earlier ones (Responses)."""

    file: str | None = setting(None)
    """A file (SQLite) that outlives the process; None: memory only."""
    redis: str | None = setting(None, read.optional(read.redis), shown=False)
    """The url of a Redis server that several processes and machines share, in the place of a file."""
    seconds: float = setting(3600.0)
    """How long."""
    size: int = setting(64 * 1024 * 1024, read.integer(0))
    """Bytes of all that is remembered; whoever holds most loses the oldest first. 0: nothing is."""

    lease: float = setting(30.0)
    """Seconds after which a response in the background has failed whose server says no more that it is at work."""

    def __attrs_post_init__(self) -> None:
        if self.file is not None and self.redis is not None:
            raise SettingsError("store: it is either in a file or on a Redis server, not in both", param="store")


@frozen
class McpSettings:
    """An MCP server whose tools the proxy executes itself, for clients that have none."""

    name: str
    tools: tuple[str, ...] = setting(NOTHING)
    """Patterns over the names of the tools that may be called (`*`, `?`, `[abc]`)."""
    command: str | None = setting(None)
    """A command line that speaks MCP over its standard input and output."""
    url: str | None = setting(None, read.optional(read.url))
    """Of streamable HTTP, in the place of a command."""
    prefix: str | None = setting(None)
    """Before the names of its tools, where two servers have the same."""
    timeout: float = setting(60.0)
    """Seconds for one call."""
    hosted: tuple[str, ...] = setting(())
    """Patterns over the labels and URLs by which a client's hosted `mcp` tool means this server; none: no client may.
    """
    web_search: str | None = setting(None)
    """The tool of the server that is called in the place of a hosted search of the web."""

    def __attrs_post_init__(self) -> None:
        place = f"mcp.{self.name}"
        if (self.command is None) == (self.url is None):
            raise SettingsError(f"{place}: an MCP server has either a command or a url", param=place)
        if self.web_search is not None and not any(fnmatchcase(self.web_search, pattern) for pattern in self.tools):
            place += ".web_search"
            raise SettingsError(f'{place}: "{self.web_search}" is not among the tools of the server', param=place)


def check_forcing(way: ForcingSetting | None, protocol: str | None, path: str) -> None:
    """Refuse a way of forcing that the protocol does not have; where it is not known, the request will tell."""
    if way in (None, "auto") or protocol is None or way in PROTOCOLS[protocol].forcing:
        return
    known = ", ".join(f'"{one}"' for one in ("auto", *PROTOCOLS[protocol].forcing))
    raise SettingsError(
        f'{path}: an upstream that speaks {protocol} cannot do "{way}"; it is one of {known}', param=path
    )
