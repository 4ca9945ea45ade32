"""The settings themselves: frozen data. A field is checked by its type, or by the reader that it names."""

# ruff: noqa: RUF009 - a default made by `setting` is an attrs field, not a value that instances share

import ipaddress
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal
from urllib.parse import urlsplit

from attrs import NOTHING, Factory, evolve, fields, frozen

from statemachine import FORMATS, OPT_IN
from streamtool.errors import SettingsError
from streamtool.families import UNKNOWN, Family, family_of
from streamtool.protocols.registry import PATHS, PROTOCOLS, UPSTREAM_NAMES, ForcingSetting, protocol_of_host
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

_PROTOCOL = read.one_of(*UPSTREAM_NAMES)
_TEMPLATE = read.one_of(*TEMPLATES)
_BY_FAMILY = read.flag_or("auto")


@frozen
class LimitSettings:
    """What is bounded, and where the bound is. Exceeding one is a clear error, or a rule of the parser."""

    body: int = setting(32 * 1024 * 1024, read.integer(1))
    """Bytes of a request body."""
    tools: int = setting(1024, read.integer(1))
    """Tools in one request."""
    schema: int = setting(1024 * 1024, read.integer(1))
    """Bytes of one tool's schema as JSON."""
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

    def __attrs_post_init__(self) -> None:
        _check_forcing(self.forcing, self.wire_protocol, f"upstream.{self.name}.forcing")

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
    schema: Schema | None = setting(None)
    schema_budget: int | None = setting(None, read.optional(read.integer(1)))
    system_role: bool | None = setting(None)
    media: bool | None = setting(None)
    calls_in_reasoning: bool | Literal["auto"] | None = setting(None, read.optional(_BY_FAMILY))
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
    seconds: float = setting(3600.0)
    """How long."""
    size: int = setting(64 * 1024 * 1024, read.integer(0))
    """Bytes of all that is remembered; the oldest goes first. 0: nothing is."""


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

    def __attrs_post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            place = f"mcp.{self.name}"
            raise SettingsError(f"{place}: an MCP server has either a command or a url", param=place)


@frozen
class ModelSettings:
    """What holds for one model: the general settings with the first matching rule laid over them."""

    asked: str
    """The name that the client asked for."""
    name: str
    """The name at the upstream."""
    upstream: UpstreamSettings | None = None
    """None: no upstream is configured (the middleware has its app, the proxy its sample)."""
    protocol: str | None = None
    """What the upstream speaks; None: what the client speaks, if an upstream can."""
    template: str = "chatml"
    forcing: ForcingSetting = "auto"
    mode: Mode = "emulate"
    format: str = "tool_call"
    """The format that is taught; `auto` has been resolved."""
    formats: tuple[str, ...] | None = None
    """The formats that are listened for besides the taught one; None: all that are on by default."""
    family: Family = UNKNOWN
    """What the model's name says of it."""
    calls_in_reasoning: bool = False
    """Calls inside of reasoning count; `auto` has been resolved."""
    context: int | None = None
    """Tokens that the model can read; None: not known, nothing is checked."""
    schema: Schema = "compact"
    schema_budget: int | None = None
    """Characters that all tools together may take in the contract; None: no limit."""
    system_role: bool = True
    """False: the upstream knows no system role or demands strictly alternating roles."""
    media: bool = True
    """False: the upstream takes text only, and each message's text in one piece."""
    history: Literal["repair", "strict"] = "repair"
    results: ResultSettings = ResultSettings()
    mcp: tuple[str, ...] = ()

    @property
    def listens(self) -> tuple[str, ...] | None:
        """The formats that the parser is to know, the taught one among them; None: the parser's own default.

        What is off by default is on when it is taught or when the family writes it. Of two formats that look alike the
        taught one is meant.
        """
        rival = FORMATS[self.format].alias_of
        if self.formats is not None:
            return self.formats if self.format in self.formats else (*self.formats, self.format)
        further = (*self.family.listen, *((self.format,) if self.format in OPT_IN else ()))
        if not further and not rival:
            return None
        return tuple(name for name in FORMATS if name != rival and (name not in OPT_IN or name in further))


@frozen
class Settings:
    """Everything that can be set."""

    listen: str = setting("127.0.0.1:8700", read.listen)
    insecure: bool = setting(False)
    """Allow to listen on other hosts than loopback without client keys."""
    client_keys: tuple[str, ...] = setting((), read.list_of(read.secret, secret=True), shown=False)
    """Keys that clients must show; none: the client's own authorization is passed on."""
    mode: Mode = setting("emulate")
    format: str = setting("auto", read.taught)
    """The format that is taught; `auto`: by model family, else `tool_call`."""
    formats: tuple[str, ...] | None = setting(None, read.optional(read.list_of(read.format_name)))
    """The formats that are listened for besides the taught one; None: all that are on by default."""
    arguments: Literal["stream", "complete"] = setting("stream")
    unknown_tools: Literal["retry", "text", "drop", "deliver"] = setting("retry")
    refusals: Literal["retry", "pass"] = setting("retry")
    """A reply that denies its tools or its environment, or announces a call and makes none, is asked for again."""
    phrases: str | None = setting(None)
    """A file of further phrases by which that is recognised."""
    invalid: Literal["deliver", "error"] = setting("deliver")
    """A call with `arguments = "complete"` that does not fit its schema, after the last attempt."""
    malformed: Literal["text", "drop", "retry"] = setting("text")
    """Markup that never became a call."""
    truncated: Literal["reason", "error"] = setting("reason")
    reasoning: Literal["emit", "drop", "text"] = setting("emit")
    calls_in_reasoning: bool | Literal["auto"] = setting("auto", _BY_FAMILY)
    """Calls inside of reasoning count; `auto`: for families that are known not to close their reasoning."""
    in_fences: Literal["text", "calls"] = setting("text")
    quoted: Literal["text", "calls"] = setting("text")
    """A call that stands word for word in a user's message or in a result is text, or a call like any other."""
    history: Literal["repair", "strict"] = setting("repair")
    """`strict`: calls without results and results without calls are errors."""
    verbatim: bool = setting(True)
    """Past calls stand in the prompt as the model wrote them, as long as the store remembers it."""
    retries: int = setting(2, read.integer(0))
    """Further attempts of one exchange; `limits.attempts` bounds them as well."""
    keepalive: float = setting(10.0)
    """Seconds of silence after which the client hears a comment."""
    context: int | None = setting(None, read.optional(read.integer(1)))
    schema: Schema = setting("compact")
    schema_budget: int | None = setting(None, read.optional(read.integer(1)))
    system_role: bool = setting(True)
    media: bool = setting(True)
    """`false`: what the upstream gets is text only, each message's in one piece; a picture is named."""
    paths: Mapping[str, str] = setting(Factory(lambda: dict(PATHS)), read.paths)
    """The paths that are ours -> their protocol."""
    hosted_tools: Literal["drop", "refuse"] = setting("drop")
    """What becomes of tools that only the origin can run (`web_search`): left out and logged, or an error."""
    app_protocol: str | None = setting(None, read.optional(_PROTOCOL))
    """The protocol of the app that the middleware wraps; None: the one that its client speaks, for Responses `chat`."""
    app_path: str | None = setting(None)
    """The path at the app; None: the one that the client asked for."""
    app_forcing: ForcingSetting = setting("auto")
    """How that app is made to force a call (`forcing` of an upstream)."""
    passthrough: tuple[str, ...] = setting(())
    """Further paths that the proxy passes on."""
    allow_overrides: bool = setting(False)
    """Honour the request headers `x-streamtool-mode` and `x-streamtool-format`."""
    log: Literal["text", "json"] = setting("text")
    """How `streamtool serve` writes its log."""
    contents: bool = setting(False)
    """Prompts and replies may stand in the log."""
    debug: bool = setting(False)
    """A log record for each message of each request."""
    metrics: bool = setting(False)
    """Count exchanges for Prometheus; the proxy serves `/metrics`."""
    otel: bool = setting(False)
    """An OpenTelemetry span for each exchange."""
    recordings: str | None = setting(None)
    """The directory in which each exchange with tools is recorded, contents included."""
    recording_size: int = setting(16 * 1024 * 1024, read.integer(4096))
    """Bytes of one recording."""
    recording_files: int = setting(1000, read.integer(1))
    """Recordings that are kept; the oldest of this process goes first."""
    limits: LimitSettings = setting(LimitSettings())
    results: ResultSettings = setting(ResultSettings())
    store: StoreSettings = setting(StoreSettings())
    upstreams: Mapping[str, UpstreamSettings] = setting(
        Factory(dict), read.named(UpstreamSettings, with_name=True), key="upstream"
    )
    """Name -> upstream; the first one serves the models that no rule routes."""
    mcp: Mapping[str, McpSettings] = setting(Factory(dict), read.named(McpSettings, with_name=True))
    """Name -> MCP server."""
    models: tuple[ModelRule, ...] = setting((), read.tables_of(ModelRule), key="model")
    """The first match wins."""
    tools: Mapping[str, ToolSettings] = setting(Factory(dict), read.named(ToolSettings, with_name=False), key="tool")

    def __attrs_post_init__(self) -> None:
        for i, rule in enumerate(self.models):
            for server in rule.mcp or ():
                if server not in self.mcp:
                    place = f"model[{i}].mcp"
                    raise SettingsError(f'{place}: there is no MCP server "{server}"', param=place)
            if rule.upstream is not None and rule.upstream not in self.upstreams:
                known = f'; the nearest is "{read.nearest(rule.upstream, self.upstreams)}"' if self.upstreams else ""
                raise SettingsError(
                    f'model[{i}].upstream: there is no upstream "{rule.upstream}"{known}', param=f"model[{i}].upstream"
                )
            upstream = self._upstream_of(rule)
            _check_forcing(
                rule.forcing, upstream.wire_protocol if upstream else self.app_protocol, f"model[{i}].forcing"
            )
        _check_forcing(self.app_forcing, self.app_protocol, "app_forcing")

    def _upstream_of(self, rule: ModelRule) -> UpstreamSettings | None:
        return self.upstreams[rule.upstream] if rule.upstream else next(iter(self.upstreams.values()), None)

    @property
    def host(self) -> str:
        """The host of `listen`, without brackets."""
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        """The port of `listen`; 0: any free one."""
        return int(self.listen.rpartition(":")[2])

    def for_model(self, model: str) -> ModelSettings:
        """What holds for the model that the client calls `model`: the first matching rule over the general settings."""
        rule = next((rule for rule in self.models if fnmatchcase(model, rule.match)), None) or ModelRule(match="*")
        name = rule.use or model
        upstream = self._upstream_of(rule)
        taught = rule.format or self.format
        family = family_of(name)
        thinks = self.calls_in_reasoning if rule.calls_in_reasoning is None else rule.calls_in_reasoning
        return ModelSettings(
            asked=model,
            name=name,
            upstream=upstream,
            protocol=upstream.wire_protocol if upstream else self.app_protocol,
            template=rule.template or (upstream.template if upstream else "chatml"),
            forcing=rule.forcing or (upstream.forcing if upstream else self.app_forcing),
            mode=rule.mode or self.mode,
            format=family.format if taught == "auto" else taught,
            formats=self.formats if rule.formats is None else rule.formats,
            family=family,
            calls_in_reasoning=family.calls_in_reasoning if thinks == "auto" else thinks,
            context=rule.context or self.context,
            schema=rule.schema or self.schema,
            schema_budget=rule.schema_budget or self.schema_budget,
            system_role=self.system_role if rule.system_role is None else rule.system_role,
            media=self.media if rule.media is None else rule.media,
            history=self.history,
            results=self.results,
            mcp=rule.mcp or (),
        )

    def arguments_for(self, tool: str) -> Literal["stream", "complete"]:
        """How the arguments of this tool go out."""
        own = self.tools.get(tool)
        return (own.arguments if own else None) or self.arguments

    @property
    def checks_arguments(self) -> bool:
        """The arguments of some tool wait until they are complete, and are checked against its schema."""
        return "complete" in (self.arguments, *(tool.arguments for tool in self.tools.values()))


def _check_forcing(way: ForcingSetting | None, protocol: str | None, path: str) -> None:
    """Refuse a way of forcing that the protocol does not have; where it is not known, the request will tell."""
    if way in (None, "auto") or protocol is None or way in PROTOCOLS[protocol].forcing:
        return
    known = ", ".join(f'"{one}"' for one in ("auto", *PROTOCOLS[protocol].forcing))
    raise SettingsError(
        f'{path}: an upstream that speaks {protocol} cannot do "{way}"; it is one of {known}', param=path
    )


def with_options(settings: Settings | None, options: Mapping[str, Any]) -> Settings:
    """The settings (None: the defaults), with these of their fields replaced; one that is given always wins.

    Raises SettingsError for a name that is no setting, and for a value that cannot be one.
    """
    known = [field.name for field in fields(Settings)]
    for name in options:
        if name not in known:
            near = read.nearest(name, known)
            raise SettingsError(f'{name}: unknown setting; the nearest is "{near}"', param=name, code="unknown_setting")
    return evolve(settings or Settings(), **options)


def check(settings: Settings) -> Settings:
    """The same settings, if it is safe to serve with them.

    Raises SettingsError when `listen` is reachable from elsewhere and no client keys are set, unless `insecure`.
    """
    if not (settings.client_keys or settings.insecure or _is_loopback(settings.host)):
        raise SettingsError(
            f'listen: "{settings.listen}" is reachable from elsewhere and no client_keys are set; '
            "set client_keys, listen on 127.0.0.1, or insist with --insecure",
            param="listen",
            code="insecure",
        )
    return settings


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
