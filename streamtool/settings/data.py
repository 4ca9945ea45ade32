"""The settings: frozen data. A field is validated according to its type, or by the reader given for it.

The classes for table-valued fields are in `tables`; the settings that result for one model are in `model`.
"""

# ruff: noqa: RUF009 - a default made by `setting` is an attrs field, not a value that instances share

import ipaddress
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Final, Literal

from attrs import Factory, evolve, fields, frozen

from streamtool.core.bounded_cache import LruCache
from streamtool.core.errors import SettingsError
from streamtool.models.families import family_of
from streamtool.models.response_templates import Described
from streamtool.protocols.table import PATHS, UPSTREAM_NAMES, ForcingSetting
from streamtool.settings import readers as read
from streamtool.settings.calibrations import CHOSEN, Calibration, find_calibration
from streamtool.settings.model import BY_SETTING, ModelSettings, PromptSettings, Training, reason_by_name
from streamtool.settings.readers import setting
from streamtool.settings.tables import (
    FLAG_OR_AUTO,
    LimitSettings,
    McpSettings,
    Mode,
    ModelRule,
    ResultSettings,
    SchemaStyle,
    StoreSettings,
    ToolSettings,
    UpstreamSettings,
    check_forcing,
)

_RESOLVED: Final = 64 * 1024
"""Maximum total length of the names of models whose settings are cached."""
_REMOVED: Final = "the file would remove {}; restart the server if that is intended"
_NO_RULE: Final = ModelRule(match="*")
"""The rule for models that no rule matches."""


@frozen
class Settings:
    """The complete settings. A model's rule may override some of them."""

    listen: str = setting("127.0.0.1:8700", read.listen)
    insecure: bool = setting(False)
    """Allow listening on hosts other than loopback without client keys."""
    client_keys: Mapping[str, str] = setting((), read.client_keys, shown=False)
    """Client name → the key that this client must send. If empty, the client's own authorization is passed on."""
    hosts: tuple[str, ...] = setting((), read.list_of(read.host))
    """Further host names of the proxy; patterns with `*` and `?` are allowed. If this is empty and `client_keys` is
    set, any name is accepted.
    """
    cors_origins: tuple[str, ...] = setting((), read.list_of(read.origin))
    """Origins whose web pages may use the proxy; patterns with `*` and `?` are allowed."""
    mode: Mode = setting("emulate")
    format: str = setting("auto", read.taught_format)
    """The format to teach. `auto`: the one that the chat template or the model family indicates or, failing that,
    `tool_call`. `response_template`: the one that the response template describes, even if it uses special tokens.
    """
    chat_template: str = setting("auto")
    """The model's chat template: a file or a Hugging Face folder. `auto`: the template that the upstream reports.
    `none`: no template.
    """
    response_template: str | Described = setting("auto", read.response_template)
    """The model's response template: a file, a Hugging Face folder, or the template itself. `auto`: the one next to the
    `chat_template` file. `none`: no template.
    """
    recognize: bool = setting(True)
    """Whether to find out which servers the upstreams run, and to use their protocols and windows if none are set."""
    formats: tuple[str, ...] | None = setting(None, read.optional(read.list_of(read.format_name)))
    """Formats to recognize in addition to the taught one; None means all that are enabled by default."""
    arguments: Literal["stream", "complete"] = setting("stream")
    unknown_tools: Literal["retry", "text", "drop", "deliver"] = setting("retry")
    refusals: Literal["retry", "pass"] = setting("retry")
    """How to treat a reply that denies having tools or access to the environment, or announces a call without making
    it.
    """
    answers: Literal["check", "pass"] = setting("check")
    """`check`: in requests with tools, an answer with a required form is buffered, and another one is requested if its
    form is wrong.
    """
    phrases: str | None = setting(None)
    """A file with additional phrases that identify denials and announcements."""
    invalid: Literal["deliver", "error"] = setting("deliver")
    """How to treat a call that still does not match its schema on the last attempt, if `arguments = "complete"`."""
    malformed: Literal["text", "drop", "retry"] = setting("text")
    """How to treat markup that could not be parsed as a call."""
    truncated: Literal["reason", "error"] = setting("reason")
    truncated_prompt: Literal["warn", "error"] = setting("warn")
    """How to treat a reply to a prompt that the upstream cut without an error: deliver it with a warning, or fail."""
    repeated_calls: int = setting(3, read.integer(0))
    """The reply ends at this number of equal calls in a row, or of equal sequences of up to 8 calls; the last
    repetition is not delivered. `0` or `1`: never.
    """
    reasoning: Literal["emit", "drop", "text"] = setting("emit")
    calls_in_reasoning: bool | Literal["auto"] = setting("auto", FLAG_OR_AUTO)
    """Whether to recognize calls inside reasoning. `auto`: only for families that are known not to close their
    reasoning.
    """
    reasoning_open: bool | Literal["auto"] = setting("auto", FLAG_OR_AUTO)
    """Whether the prompt opens the reasoning, so that the reply begins inside it. `auto`: only if the `chat_template`
    file does so.
    """
    in_fences: Literal["text", "calls"] = setting("text")
    tool_names: Literal["spelling", "edit"] = setting("spelling")
    """How much the name of a call may differ from that of the only tool that fits. `spelling`: in case, separators and
    a namespace prefix. `edit`: also in one letter, except for tools that the agent executes.
    """
    flattened: Literal["nest", "keep"] = setting("nest")
    """How to treat arguments that are written outside the only object that they can belong to. `nest`: that object is
    delivered. `keep`: they are delivered as they are written.
    """
    quoted: Literal["text", "calls", "report"] = setting("text")
    """Whether a call that is quoted verbatim from a user's message or a tool result is treated as text or as a call.
    `report`: as text; in addition, the record lists the calls that repeat a result or a tool's description, but no
    user's message. The agent uses it.
    """
    history: Literal["repair", "strict"] = setting("repair")
    """`strict`: calls without results and results without calls are errors."""
    verbatim: bool = setting(True)
    """Whether past calls appear in the prompt exactly as the model wrote them, as long as the store contains the
    transcript.
    """
    stable_prefix: bool = setting(True)
    """Whether text that clients change with each request is left out of the system text or moved after the last
    message, so that the upstream's prefix cache can be used.
    """
    retries: int = setting(2, read.integer(0))
    """Maximum number of further attempts within one exchange; `limits.attempts` limits them as well."""
    resume: int = setting(2, read.integer(0))
    """Maximum number of attempts within one exchange that continue a reply which its upstream has not finished;
    `limits.attempts` limits them as well. 0: none.
    """
    keepalive: float = setting(10.0)
    """Seconds of silence before a comment is sent to the client."""
    context: int | None = setting(None, read.optional(read.integer(1)))
    tokenizer: str | None = setting(None)
    """A `tokenizer.json` file or a Hugging Face folder, used to count prompt tokens against `context`; None: the number
    is estimated.
    """
    schema: SchemaStyle = setting("compact")
    schema_budget: int | None = setting(None, read.optional(read.integer(1)))
    select_tools: int = setting(0, read.integer(0))
    """Number of tools whose parameters the tool prompt shows: those that fit the user's messages best. The others are
    listed by name, and a tool that the proxy runs itself shows their parameters. 0: all tools.
    """
    roles: Literal["auto", "strict", "free"] = setting("auto")
    """`strict`: one system message at the start, then alternating user and assistant messages. `free`: as the client
    sent them.

    `auto`: `strict`, except for families that are known to accept any order.
    """
    system_role: bool | Literal["auto"] = setting("auto", FLAG_OR_AUTO)
    """Whether the model accepts a system message. `auto`: True, except for families that are known not to accept
    one.
    """
    media: bool = setting(True)
    """`false`: the upstream receives only text, with each message as a single string; images are replaced by a
    placeholder.
    """
    paths: Mapping[str, str] = setting(Factory(lambda: dict(PATHS)), read.paths)
    """Served path → the protocol of its requests."""
    hosted_tools: Literal["drop", "refuse"] = setting("drop")
    """How to treat tools that only their vendor can run (`web_search`): omit them and log the omission, or reject the
    request.
    """
    app_protocol: str | None = setting(None, read.optional(read.protocol(*UPSTREAM_NAMES)))
    """The protocol of the app that the middleware wraps; None: the client's protocol, or `chat` for Responses."""
    app_path: str | None = setting(None)
    """The path requested from the app; None: the path that the client requested."""
    app_forcing: ForcingSetting = setting("auto")
    """How to force a call with this app (see `UpstreamSettings.forcing`)."""
    passthrough: tuple[str, ...] = setting(())
    """Further paths whose requests the proxy passes through unchanged."""
    allow_overrides: bool = setting(False)
    """Honor the request headers `x-streamtool-mode`, `x-streamtool-format` and `x-streamtool-resume`."""
    log: Literal["text", "json"] = setting("text")
    """Log format of `streamtool serve`. `json`: only JSON lines are written."""
    log_to: Literal["stderr", "stdout"] = setting("stderr")
    """Output stream of the log."""
    verdict_header: bool = setting(False)
    """Add the response header `x-streamtool-verdict` to replies that are not streamed."""
    contents: bool = setting(False)
    """Allow prompts and replies to appear in the log and the inspector."""
    debug: bool = setting(False)
    """Log every message of every request."""
    metrics: bool = setting(False)
    """Count exchanges for Prometheus; the proxy serves `/metrics`."""
    otel: bool = setting(False)
    """Create an OpenTelemetry span for each exchange."""
    recordings: str | None = setting(None)
    """A directory where exchanges with tools are recorded, including their contents."""
    recording_size: int = setting(16 * 1024 * 1024, read.integer(4096))
    """Maximum size of one recording, in bytes."""
    recording_files: int = setting(1000, read.integer(1))
    """Maximum number of recordings made by this process; if there are more, the oldest one is deleted."""
    inspect: bool = setting(False)
    """Keep recent exchanges in memory, and serve a page at `/inspect` that shows them."""
    inspect_size: int = setting(64 * 1024 * 1024, read.integer(1024 * 1024))
    """Approximate amount of memory for the exchanges that `inspect` keeps, in bytes."""
    inspect_remote: bool = setting(False)
    """Show the inspector to everyone who can connect even if no client keys are set. Otherwise, it is shown only to
    direct connections from this machine, whose `Host` is a loopback address or name.
    """
    workers: int = setting(1, read.integer(1))
    """Number of `streamtool serve` processes that share the port."""
    grace: float = setting(20.0)
    """Seconds from SIGTERM or an interrupt until `streamtool serve` exits; open requests may run to completion in that
    time.
    """
    shutdown_delay: int = setting(5, read.integer(0))
    """Seconds from SIGTERM during which `streamtool serve` still serves, while `/readyz` reports 503; 0 if `/readyz`
    has never been requested. `grace` begins afterwards.
    """
    limits: LimitSettings = setting(LimitSettings())
    results: ResultSettings = setting(ResultSettings())
    store: StoreSettings = setting(StoreSettings())
    upstreams: Mapping[str, UpstreamSettings] = setting(
        Factory(dict), read.tables_by_name(UpstreamSettings, with_name=True), key="upstream"
    )
    """Name → upstream. The first one serves models that match no rule."""
    mcp: Mapping[str, McpSettings] = setting(Factory(dict), read.tables_by_name(McpSettings, with_name=True))
    """Name → MCP server."""
    models: tuple[ModelRule, ...] = setting((), read.tables_of(ModelRule), key="model")
    """Rules for models; the first matching rule wins."""
    tools: Mapping[str, ToolSettings] = setting(
        Factory(dict), read.tables_by_name(ToolSettings, with_name=False), key="tool"
    )
    calibrations: tuple[Calibration, ...] = setting((), read.tables_of(Calibration))
    """Measured settings, which apply to models whose mode, format and schema are not set. The settings file
    cannot contain them.
    """

    def __attrs_post_init__(self) -> None:
        for i, rule in enumerate(self.models):
            for server in rule.mcp or ():
                if server not in self.mcp:
                    place = f"model[{i}].mcp"
                    raise SettingsError(f'{place}: unknown MCP server "{server}"', param=place)
            if rule.upstream is not None and rule.upstream not in self.upstreams:
                known = f'; did you mean "{read.nearest(rule.upstream, self.upstreams)}"?' if self.upstreams else ""
                raise SettingsError(
                    f'model[{i}].upstream: unknown upstream "{rule.upstream}"{known}', param=f"model[{i}].upstream"
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
                raise SettingsError(f'{place}: unknown client key "{name}"', param=place)
        for name, upstream in self.upstreams.items():
            self._check_fallbacks(name, upstream)

    def _check_fallbacks(self, name: str, upstream: UpstreamSettings) -> None:
        place = f"upstream.{name}.fallbacks"
        for other in upstream.fallbacks:
            if other == name or other not in self.upstreams:
                raise SettingsError(f'{place}: "{other}" is not the name of another upstream', param=place)
            spoken = self.upstreams[other].wire_protocol
            if spoken != upstream.wire_protocol:
                raise SettingsError(
                    f'{place}: "{other}" speaks {spoken}, but "{name}" speaks {upstream.wire_protocol}; '
                    "both must speak the same protocol",
                    param=place,
                )

    def _upstream_of(self, rule: ModelRule) -> UpstreamSettings | None:
        return self.upstreams[rule.upstream] if rule.upstream else next(iter(self.upstreams.values()), None)

    @property
    def host(self) -> str:
        """The host in `listen`, without brackets."""
        return _host_of(self.listen)

    @property
    def port(self) -> int:
        """The port in `listen`; 0 means any free port."""
        return int(self.listen.rpartition(":")[2])

    def rule_for(self, model: str) -> ModelRule:
        """Return the first rule that matches the client's name for a model, or an empty rule."""
        for rule in self.models:
            if fnmatchcase(model, rule.match):
                return rule
        return _NO_RULE

    @cached_property
    def _resolved(self) -> LruCache[ModelSettings]:
        """The settings of the most recently requested models."""
        return LruCache(_RESOLVED)

    def for_model(self, model: str) -> ModelSettings:
        """Return the settings for a model, given the client's name for it: the general settings, overridden by its
        rule.
        """
        known = self._resolved.get(model)
        if known is None:
            known = self._resolve(model)
            self._resolved.put(model, known, len(model))
        return known

    def _resolve(self, model: str) -> ModelSettings:
        rule = self.rule_for(model)
        name = rule.use or model
        upstream = self._upstream_of(rule)
        taught = rule.format or self.format
        family = family_of(name)
        thinks = self.calls_in_reasoning if rule.calls_in_reasoning is None else rule.calls_in_reasoning
        roles = rule.roles or self.roles
        has_system = self.system_role if rule.system_role is None else rule.system_role
        begun = self.reasoning_open if rule.reasoning_open is None else rule.reasoning_open
        found = ModelSettings(
            name=name,
            upstream=upstream,
            protocol=upstream.wire_protocol if upstream else self.app_protocol,
            template=rule.template or (upstream.template if upstream else "chatml"),
            forcing=rule.forcing or (upstream.forcing if upstream else self.app_forcing),
            mode=rule.mode or self.mode,
            format=family.format if taught in ("auto", read.RESPONSE_TEMPLATE) else taught,
            formats=self.formats if rule.formats is None else rule.formats,
            training=Training(
                family,
                rule.chat_template or self.chat_template,
                reasoning_open=begun,
                reason=reason_by_name(family) if taught == "auto" else BY_SETTING,
                response_template=rule.response_template or self.response_template,
                teaches_described=taught == read.RESPONSE_TEMPLATE,
            ),
            calls_in_reasoning=family.calls_in_reasoning if thinks == "auto" else thinks,
            context=rule.context or self.context,
            resume=self.resume if rule.resume is None else rule.resume,
            prompt=PromptSettings(
                schema=rule.schema or self.schema,
                schema_budget=rule.schema_budget or self.schema_budget,
                select_tools=self.select_tools if rule.select_tools is None else rule.select_tools,
                tokenizer=rule.tokenizer or self.tokenizer,
                roles=family.roles if roles == "auto" else roles,
                system_role=family.system_role if has_system == "auto" else has_system,
                media=self.media if rule.media is None else rule.media,
                history=self.history,
                results=self.results,
            ),
        )
        if upstream is None or any(getattr(rule, chosen) is not None for chosen in CHOSEN):
            return found
        measured = find_calibration(self.calibrations, name, upstream.url)
        return found if measured is None else found.calibrated(measured)

    def shows_clients(self, upstream: UpstreamSettings) -> bool:
        """Return whether the clients' own keys are sent to this upstream, which may then respond differently to each
        client.
        """
        return upstream.key is None and not self.client_keys

    def arguments_for(self, tool: str) -> Literal["stream", "complete"]:
        """Return how the arguments of this tool are sent to the client."""
        own = self.tools.get(tool)
        return (own.arguments if own else None) or self.arguments

    @cached_property
    def checks_arguments(self) -> bool:
        """Whether any tool's arguments are buffered until they are complete and validated against its schema."""
        return "complete" in (self.arguments, *(tool.arguments for tool in self.tools.values()))


def with_options(settings: Settings | None, options: Mapping[str, Any]) -> Settings:
    """Return the settings (or the defaults, if `settings` is None) with the fields named in `options` replaced.

    Raises SettingsError for an unknown name or an invalid value.
    """
    known = [field.name for field in fields(Settings)]
    for name in options:
        if name not in known:
            near = read.nearest(name, known)
            raise SettingsError(f'{name}: unknown setting; did you mean "{near}"?', param=name, code="unknown_setting")
    if not options.keys().isdisjoint(CHOSEN):
        options = {"calibrations": (), **options}
    return evolve(settings or Settings(), **options)


def check(settings: Settings, *, listen: str | None = None) -> Settings:
    """Return the settings unchanged if they are safe to serve with on the address `listen` (None: the one in the
    settings).

    Raises SettingsError if the address is reachable from other machines and no client keys are set, unless `insecure`;
    and if clients would get the sample model's replies without anyone having asked for it.
    """
    listen = settings.listen if listen is None else listen
    local = is_loopback(_host_of(listen))
    if not (settings.client_keys or settings.insecure or local):
        raise SettingsError(
            f'listen: "{listen}" is reachable from other machines and no client_keys are set; '
            "set client_keys, listen on 127.0.0.1, or pass --insecure",
            param="listen",
            code="insecure",
        )
    if not settings.upstreams and (settings.client_keys or not local):
        raise SettingsError(
            "upstream: none is set; add one, or pass --upstream sample to serve the embedded sample model",
            param="upstream",
        )
    return settings


def check_reload(before: Settings, settings: Settings, *, unset: Settings | None, listen: str) -> Settings:
    """Return the settings unchanged if a server that listens on `listen` may replace `before` with them.

    A file that is read while it is being written, or that has been emptied, must not open a server to everyone. `unset`
    are the settings that an empty file would result in. Raises SettingsError if the settings are not safe on that
    address, or if they would remove all client keys, all upstreams, or every setting in the file.
    """
    if settings == unset != before:
        raise SettingsError(_REMOVED.format("every setting"))
    for name, old, new in (
        ("client_keys", before.client_keys, settings.client_keys),
        ("upstream", before.upstreams, settings.upstreams),
    ):
        if old and not new:
            raise SettingsError(f"{name}: {_REMOVED.format('all of them')}", param=name)
    return check(settings, listen=listen)


def _host_of(listen: str) -> str:
    """Return the host in `listen`, without brackets."""
    return listen.rpartition(":")[0].strip("[]")


def is_loopback(host: str) -> bool:
    """Return whether a host, without brackets, is certain to be this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
