"""The tables of the settings file as frozen data: upstreams, models, tools, limits and so on."""

# ruff: noqa: RUF009 - a default made by `setting` is an attrs field, not a value that instances share

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Literal
from urllib.parse import urlsplit

from attrs import NOTHING, Factory, frozen

from streamtool.core.errors import SettingsError
from streamtool.models.response_templates import Described
from streamtool.protocols.table import PROTOCOLS, ROWS, UPSTREAM_NAMES, ForcingSetting, protocol_of_host
from streamtool.settings import readers as read
from streamtool.settings.readers import setting

Mode = Literal["emulate", "native", "auto", "rescue"]
"""How the model receives its tools. `emulate`: as text; `native`: natively; `auto`: natively if the upstream supports
that, and as text if not; `rescue`: natively, while the model's text is searched for calls, too.
"""
SchemaStyle = Literal["compact", "json", "markdown"]
TEMPLATES = (
    "chatml",
    "llama2",
    "llama3",
    "mistral",
    "gemma",
    "phi3",
    "zephyr",
    "vicuna",
    "alpaca",
    "deepseek",
    "plain",
)
"""The chat templates that the completions protocol supports."""

_TEMPLATE = read.one_of(*TEMPLATES)
FLAG_OR_AUTO = read.flag_or("auto")
"""Reader for a flag or `auto`, which leaves the decision to the model's family or its chat template."""


@frozen
class KeyLimits:
    """Limits for one client. None: the general limit applies; 0: unlimited."""

    exchanges: int | None = setting(None, read.optional(read.integer(0)))
    """Maximum number of open requests, per process."""
    requests_per_minute: int | None = setting(None, read.optional(read.integer(0)))
    tokens_per_minute: int | None = setting(None, read.optional(read.integer(0)))


@frozen
class LimitSettings:
    """Limits on connections, requests and replies. Exceeding a limit either causes an explicit error or is handled by a
    parser rule.
    """

    body: int = setting(16 * 1024 * 1024, read.integer(1))
    """Maximum size of a request body, in bytes."""
    body_seconds: float = setting(120.0)
    """Maximum time for the body to arrive, in seconds."""
    header_bytes: int = setting(65536, read.integer(1))
    """Maximum size of a request header, in bytes. This and the following limits, up to `connections_per_address`, apply
    to `streamtool serve`.
    """
    header_seconds: float = setting(10.0)
    """Maximum time for the header to arrive, in seconds."""
    keep_alive_seconds: float = setting(75.0)
    """Seconds before an idle connection is closed."""
    connections: int = setting(4096, read.integer(0))
    """Maximum number of open client connections. 0: unlimited."""
    connections_per_address: int = setting(2048, read.integer(0))
    """Maximum number of open connections from one address. 0: unlimited."""
    exchanges: int = setting(2048, read.integer(0))
    """Maximum number of open requests. 0: unlimited."""
    exchanges_per_client: int = setting(1024, read.integer(0))
    """Maximum number of one client's open requests. 0: unlimited."""
    requests_per_minute: int = setting(0, read.integer(0))
    """Maximum number of one client's requests per minute, across all processes that share the store. 0: unlimited."""
    tokens_per_minute: int = setting(0, read.integer(0))
    """Maximum number of one client's tokens per minute, input and output. 0: unlimited."""
    keys: Mapping[str, KeyLimits] = setting(Factory(dict), read.tables_by_name(KeyLimits, with_name=False))
    """Name of a client key → the limits for that client."""
    websocket_seconds: float = setting(3600.0)
    """Maximum time that a websocket may be open, in seconds."""
    values: int = setting(100_000, read.integer(1))
    """Maximum number of JSON values in a request body."""
    tools: int = setting(1024, read.integer(1))
    """Maximum number of tools in one request."""
    schema: int = setting(1024 * 1024, read.integer(1))
    """Maximum size of one tool's schema as JSON, in bytes."""
    reply: int = setting(128 * 1024 * 1024, read.integer(1))
    """Maximum size of the upstream's replies over all attempts, in bytes."""
    held: int = setting(256 * 1024, read.integer(1))
    """Maximum number of characters that the parser buffers."""
    arguments: int = setting(16 * 1024 * 1024, read.integer(1))
    """Maximum number of characters in one call's arguments."""
    repetition: int = setting(16 * 1024, read.integer(0))
    """Maximum number of bytes in a call's arguments that are repetitions of one passage of at most 1,024 bytes. 0: no
    limit.
    """
    # Of 25,741 source and text files of Python and Node packages (718 million characters), one repeats a passage over
    # more than 16,384 bytes, and three over 8,192.
    depth: int = setting(128, read.integer(1))
    """Maximum nesting depth of JSON, in requests and in arguments."""
    name: int = setting(256, read.integer(1))
    """Maximum number of characters in a tool's name."""
    attempts: int = setting(3, read.integer(1))
    """Maximum number of upstream requests per exchange, including the first, but without those after tool searches."""


@frozen
class TimeoutSettings:
    """How long to wait for the upstream, in seconds. The total duration of a reply is not limited."""

    connect: float = setting(10.0)
    first_byte: float = setting(600.0)
    idle: float = setting(120.0)
    """Maximum seconds between two pieces of a reply."""


@frozen
class CircuitSettings:
    """When to temporarily stop sending requests to an upstream that has fallbacks."""

    failures: int = setting(5, read.integer(1))
    """The number of consecutive failures that opens the circuit: requests then skip this upstream."""
    seconds: float = setting(30.0)
    """Seconds until the upstream is tried again, with a single request."""


@frozen
class UpstreamSettings:
    """A server that runs models."""

    name: str
    url: str = setting(NOTHING, read.url)
    """The base URL, without the path that the protocol adds; `sample` is the embedded upstream."""
    protocol: str = setting("auto", read.protocol("auto", *UPSTREAM_NAMES))
    """The protocol. `auto`: the host's own protocol if it is known to have one, and `chat` if not."""
    key: str | None = setting(None, read.optional(read.secret), shown=False)
    """The key, sent in the header that the protocol uses for keys. None: the client's own authorization is passed
    on.
    """
    template: str = setting("chatml", _TEMPLATE)
    """For the completions protocol: the chat template used to turn the messages into one prompt."""
    forcing: ForcingSetting = setting("auto")
    """How to force a call that the client demands. `auto`: with a method that every server with this protocol
    supports.
    """
    timeout: TimeoutSettings = setting(TimeoutSettings())
    fallbacks: tuple[str, ...] = setting(())
    """Names of the upstreams to try, in this order, if this one fails. All of them must speak this upstream's protocol.
    """
    balance: bool = setting(False)
    """Distribute requests over this upstream and its fallbacks according to `weight`."""
    weight: int = setting(1, read.integer(1))
    circuit: CircuitSettings = setting(CircuitSettings())
    health: str | None = setting(None)
    """Path of the health check; None disables it."""
    health_seconds: float = setting(10.0)
    """The interval between two checks, which is also the time limit for each, in seconds."""

    def __attrs_post_init__(self) -> None:
        check_forcing(self.forcing, self.wire_protocol, f"upstream.{self.name}.forcing")

    @cached_property
    def server(self) -> str | None:
        """Host and port; None for the embedded upstream."""
        parts = urlsplit(self.url)
        return parts.hostname and f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"

    @cached_property
    def is_vendor(self) -> bool:
        """Whether the host is a vendor's own API, which understands the lines that its clients send."""
        return any(urlsplit(self.url).hostname in row.hosts for row in ROWS)

    @cached_property
    def wire_protocol(self) -> str:
        """The protocol, with `auto` resolved."""
        if self.protocol != "auto":
            return self.protocol
        return protocol_of_host(urlsplit(self.url).hostname)


@frozen
class ModelRule:
    """Settings for models whose names match. A setting left at None keeps its general value."""

    match: str = setting(NOTHING)
    """A case-sensitive pattern for the model name that the client asks for: `*`, `?`, `[abc]`."""
    use: str | None = setting(None)
    """The upstream's name for the model; None: the name that the client asked for."""
    upstream: str | None = setting(None)
    """The name of an upstream; None: the first one."""
    mode: Mode | None = setting(None)
    format: str | None = setting(None, read.optional(read.taught_format))
    formats: tuple[str, ...] | None = setting(None, read.optional(read.list_of(read.format_name)))
    context: int | None = setting(None, read.optional(read.integer(1)))
    tokenizer: str | None = setting(None)
    schema: SchemaStyle | None = setting(None)
    schema_budget: int | None = setting(None, read.optional(read.integer(1)))
    select_tools: int | None = setting(None, read.optional(read.integer(0)))
    roles: Literal["auto", "strict", "free"] | None = setting(None)
    system_role: bool | Literal["auto"] | None = setting(None, read.optional(FLAG_OR_AUTO))
    media: bool | None = setting(None)
    calls_in_reasoning: bool | Literal["auto"] | None = setting(None, read.optional(FLAG_OR_AUTO))
    chat_template: str | None = setting(None)
    response_template: str | Described | None = setting(None, read.optional(read.response_template))
    reasoning_open: bool | Literal["auto"] | None = setting(None, read.optional(FLAG_OR_AUTO))
    mcp: tuple[str, ...] | None = setting(None)
    """MCP servers whose tools the proxy executes for requests without tools."""
    template: str | None = setting(None, read.optional(_TEMPLATE))
    forcing: ForcingSetting | None = setting(None)
    resume: int | None = setting(None, read.optional(read.integer(0)))


@frozen
class ToolSettings:
    """Settings for one tool."""

    arguments: Literal["stream", "complete"] | None = setting(None)


@frozen
class ResultSettings:
    """How tool results are presented to the model as text."""

    max_length: int = setting(-1, read.integer(-1))
    """Maximum number of characters in a result. Longer results are truncated, with a visible note. -1: unlimited."""
    frame: str = setting("default", read.frame)
    """`default`, `tool_result`, `doai`, `windlass`, or a template with `{content}` and optionally `{name}` and
    `{id}`.
    """
    drop: bool = setting(False)
    """Omit results from the prompt."""
    strip: tuple[str, ...] = setting(())
    """Tags whose blocks are removed from results and user text (`system-reminder`)."""


@frozen
class StoreSettings:
    """Storage for replies that later requests may refer to (Responses)."""

    file: str | None = setting(None)
    """An SQLite file that outlives the process; None: memory only."""
    redis: str | None = setting(None, read.optional(read.redis), shown=False)
    """The URL of a Redis server that several processes and machines can share, instead of a file."""
    seconds: float = setting(3600.0)
    """Maximum age of an entry, in seconds."""
    size: int = setting(64 * 1024 * 1024, read.integer(0))
    """Maximum total size, in bytes; beyond it, the client with the most data loses its oldest entries first. 0 disables
    the store.
    """

    lease: float = setting(30.0)
    """Maximum seconds between two progress reports from the process that creates a background response; after that,
    another process continues it.
    """

    def __attrs_post_init__(self) -> None:
        if self.file is not None and self.redis is not None:
            raise SettingsError("store: set either file or redis, not both", param="store")


@frozen
class McpSettings:
    """An MCP server whose tools the proxy itself executes, for requests that contain no tools."""

    name: str
    tools: tuple[str, ...] = setting(NOTHING)
    """Patterns for the names of the tools that may be called (`*`, `?`, `[abc]`)."""
    command: str | None = setting(None)
    """The command line of a server that speaks MCP over standard input and output."""
    url: str | None = setting(None, read.optional(read.url))
    """The URL of a streamable HTTP endpoint, instead of a command."""
    prefix: str | None = setting(None)
    """A prefix for the names of the server's tools, to distinguish servers whose tools have the same names."""
    timeout: float = setting(60.0)
    """Maximum duration of one call, in seconds."""
    hosted: tuple[str, ...] = setting(())
    """Patterns for the labels and URLs in a client's hosted `mcp` tools that refer to this server. If empty, clients
    may not use it.
    """
    web_search: str | None = setting(None)
    """The server's tool that replaces a hosted web search."""
    quoted: Literal["refuse", "run"] = setting("refuse")
    """Whether a call is executed that repeats a result or a tool's description, but no user's message."""
    eager: Literal["read-only", "off"] = setting("read-only")
    """Which calls start while the model is still writing its reply: those of tools that the server declares to be
    read-only, or none.
    """

    def __attrs_post_init__(self) -> None:
        place = f"mcp.{self.name}"
        if (self.command is None) == (self.url is None):
            raise SettingsError(f"{place}: an MCP server needs either a command or a url", param=place)
        if self.web_search is not None and not any(fnmatchcase(self.web_search, pattern) for pattern in self.tools):
            place += ".web_search"
            raise SettingsError(f'{place}: "{self.web_search}" is not a tool of this server', param=place)


def check_forcing(method: ForcingSetting | None, protocol: str | None, path: str) -> None:
    """Raise SettingsError if the protocol does not support a forcing method. If the protocol is unknown, each request
    is checked instead.
    """
    if method in (None, "auto") or protocol is None or method in PROTOCOLS[protocol].forcing:
        return
    known = ", ".join(f'"{one}"' for one in ("auto", *PROTOCOLS[protocol].forcing))
    raise SettingsError(
        f'{path}: an upstream that speaks {protocol} does not support "{method}"; use one of {known}', param=path
    )
