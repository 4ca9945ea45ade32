"""The settings themselves: frozen data. A field is checked by its type, or by the reader that it names.

A field that is a table of its own has its class in `tables`; what all of them amount to for one model is in `model`.
"""

# ruff: noqa: RUF009 - a default made by `setting` is an attrs field, not a value that instances share

import ipaddress
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

from attrs import Factory, evolve, fields, frozen

from streamtool.errors import SettingsError
from streamtool.families import family_of
from streamtool.protocols.registry import PATHS, UPSTREAM_NAMES, ForcingSetting
from streamtool.settings import readers as read
from streamtool.settings.model import BY_SETTING, ModelSettings, PromptSettings, Training, taught_by_name
from streamtool.settings.readers import setting
from streamtool.settings.tables import (
    AUTOMATIC,
    LimitSettings,
    McpSettings,
    Mode,
    ModelRule,
    ResultSettings,
    Schema,
    StoreSettings,
    ToolSettings,
    UpstreamSettings,
    check_forcing,
)


@frozen
class Settings:
    """Everything that can be set."""

    listen: str = setting("127.0.0.1:8700", read.listen)
    insecure: bool = setting(False)
    """Allow to listen on other hosts than loopback without client keys."""
    client_keys: Mapping[str, str] = setting((), read.client_keys, shown=False)
    """Name of a client -> the key that it must show; none: the client's own authorization is passed on."""
    hosts: tuple[str, ...] = setting((), read.list_of(read.host))
    """Further names under which the proxy is reached (`*`, `?`); none: with `client_keys`, any name."""
    cors_origins: tuple[str, ...] = setting((), read.list_of(read.origin))
    """Origins whose web pages may use the proxy (`*`, `?`)."""
    mode: Mode = setting("emulate")
    format: str = setting("auto", read.taught)
    """The format that is taught; `auto`: by the chat template or by model family, else `tool_call`."""
    chat_template: str = setting("auto")
    """The model's chat template: a file or a Hugging Face folder; `auto`: what the upstream shows; `none`: no template.
    """
    formats: tuple[str, ...] | None = setting(None, read.optional(read.list_of(read.format_name)))
    """The formats that are listened for besides the taught one; None: all that are on by default."""
    arguments: Literal["stream", "complete"] = setting("stream")
    unknown_tools: Literal["retry", "text", "drop", "deliver"] = setting("retry")
    refusals: Literal["retry", "pass"] = setting("retry")
    """A reply that denies its tools or its environment, or announces a call and makes none, is asked for again."""
    answers: Literal["check", "pass"] = setting("check")
    """Beside tools an answer that has to have a form waits, and is asked for again if it has another one."""
    phrases: str | None = setting(None)
    """A file of further phrases by which that is recognised."""
    invalid: Literal["deliver", "error"] = setting("deliver")
    """A call with `arguments = "complete"` that does not fit its schema, after the last attempt."""
    malformed: Literal["text", "drop", "retry"] = setting("text")
    """Markup that never became a call."""
    truncated: Literal["reason", "error"] = setting("reason")
    reasoning: Literal["emit", "drop", "text"] = setting("emit")
    calls_in_reasoning: bool | Literal["auto"] = setting("auto", AUTOMATIC)
    """Calls inside of reasoning count; `auto`: for families that are known not to close their reasoning."""
    reasoning_open: bool | Literal["auto"] = setting("auto", AUTOMATIC)
    """The prompt opens the reasoning, so the reply begins inside of it; `auto`: if the file of `chat_template` says it.
    """
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
    tokenizer: str | None = setting(None)
    """A `tokenizer.json`, or a Hugging Face folder, that counts what `context` holds; None: by an estimate."""
    schema: Schema = setting("compact")
    schema_budget: int | None = setting(None, read.optional(read.integer(1)))
    roles: Literal["auto", "strict", "free"] = setting("auto")
    """`strict`: one system message, at the start, then user and assistant by turns; `free`: as the client has them.

    `auto`: `strict` but for families that are known to take everything.
    """
    system_role: bool | Literal["auto"] = setting("auto", AUTOMATIC)
    """`auto`: but for families that are known to have none."""
    media: bool = setting(True)
    """`false`: what the upstream gets is text only, each message's in one piece; a picture is named."""
    paths: Mapping[str, str] = setting(Factory(lambda: dict(PATHS)), read.paths)
    """The paths that are ours -> their protocol."""
    hosted_tools: Literal["drop", "refuse"] = setting("drop")
    """What becomes of tools that only the origin can run (`web_search`): left out and logged, or an error."""
    app_protocol: str | None = setting(None, read.optional(read.one_of(*UPSTREAM_NAMES)))
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
    """How `streamtool serve` writes its log; `json`: and nothing else."""
    log_to: Literal["stderr", "stdout"] = setting("stderr")
    """Where it goes."""
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
    inspect: bool = setting(False)
    """Keep the last exchanges in memory, and serve a page that shows them at `/inspect`."""
    inspect_size: int = setting(64 * 1024 * 1024, read.integer(1024 * 1024))
    """Bytes of memory for them, about."""
    workers: int = setting(1, read.integer(1))
    """Processes of `streamtool serve` that share the port."""
    grace: float = setting(20.0)
    """Seconds from SIGTERM, or an interrupt, to the end of `streamtool serve`; so long open requests may go on."""
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
            check_forcing(
                rule.forcing, upstream.wire_protocol if upstream else self.app_protocol, f"model[{i}].forcing"
            )
        check_forcing(self.app_forcing, self.app_protocol, "app_forcing")
        if self.inspect and self.workers > 1:
            raise SettingsError(
                "inspect: each process would show only its own exchanges; set workers = 1", param="inspect"
            )
        for name in self.limits.keys:
            if name not in self.client_keys:
                place = f"limits.keys.{name}"
                raise SettingsError(f'{place}: there is no client key "{name}"', param=place)
        for name, upstream in self.upstreams.items():
            self._check_fallbacks(name, upstream)

    def _check_fallbacks(self, name: str, upstream: UpstreamSettings) -> None:
        place = f"upstream.{name}.fallbacks"
        for other in upstream.fallbacks:
            if other == name or other not in self.upstreams:
                raise SettingsError(f'{place}: there is no other upstream "{other}"', param=place)
            spoken = self.upstreams[other].wire_protocol
            if spoken != upstream.wire_protocol:
                raise SettingsError(
                    f'{place}: "{other}" speaks {spoken}, this one {upstream.wire_protocol}; they must speak the same',
                    param=place,
                )

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

    def rule_for(self, model: str) -> ModelRule:
        """The first rule that matches what the client calls `model`; without one, a rule that says nothing."""
        return next((rule for rule in self.models if fnmatchcase(model, rule.match)), None) or ModelRule(match="*")

    def for_model(self, model: str) -> ModelSettings:
        """What holds for the model that the client calls `model`: the rule for it over the general settings."""
        rule = self.rule_for(model)
        name = rule.use or model
        upstream = self._upstream_of(rule)
        taught = rule.format or self.format
        family = family_of(name)
        thinks = self.calls_in_reasoning if rule.calls_in_reasoning is None else rule.calls_in_reasoning
        roles = rule.roles or self.roles
        has_system = self.system_role if rule.system_role is None else rule.system_role
        begun = self.reasoning_open if rule.reasoning_open is None else rule.reasoning_open
        return ModelSettings(
            name=name,
            upstream=upstream,
            protocol=upstream.wire_protocol if upstream else self.app_protocol,
            template=rule.template or (upstream.template if upstream else "chatml"),
            forcing=rule.forcing or (upstream.forcing if upstream else self.app_forcing),
            mode=rule.mode or self.mode,
            format=family.format if taught == "auto" else taught,
            formats=self.formats if rule.formats is None else rule.formats,
            training=Training(
                family,
                rule.chat_template or self.chat_template,
                reasoning_open=begun,
                reason=taught_by_name(family) if taught == "auto" else BY_SETTING,
            ),
            calls_in_reasoning=family.calls_in_reasoning if thinks == "auto" else thinks,
            context=rule.context or self.context,
            prompt=PromptSettings(
                schema=rule.schema or self.schema,
                schema_budget=rule.schema_budget or self.schema_budget,
                tokenizer=rule.tokenizer or self.tokenizer,
                roles=family.roles if roles == "auto" else roles,
                system_role=family.system_role if has_system == "auto" else has_system,
                media=self.media if rule.media is None else rule.media,
                history=self.history,
                results=self.results,
            ),
        )

    def shows_clients(self, upstream: UpstreamSettings) -> bool:
        """Whether the clients' own keys reach this upstream, which then may answer each of them differently."""
        return upstream.key is None and not self.client_keys

    def arguments_for(self, tool: str) -> Literal["stream", "complete"]:
        """How the arguments of this tool go out."""
        own = self.tools.get(tool)
        return (own.arguments if own else None) or self.arguments

    @property
    def checks_arguments(self) -> bool:
        """The arguments of some tool wait until they are complete, and are checked against its schema."""
        return "complete" in (self.arguments, *(tool.arguments for tool in self.tools.values()))


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
    if not (settings.client_keys or settings.insecure or is_loopback(settings.host)):
        raise SettingsError(
            f'listen: "{settings.listen}" is reachable from elsewhere and no client_keys are set; '
            "set client_keys, listen on 127.0.0.1, or insist with --insecure",
            param="listen",
            code="insecure",
        )
    return settings


def is_loopback(host: str) -> bool:
    """Whether a host, without brackets, is this machine for certain."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
