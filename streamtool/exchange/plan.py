"""The plan for requests to the upstream: the model, the protocol, and the features that the requests use.

The model's settings determine which protocol the upstream speaks, and whether it receives the tools natively or as
text. A request that does not involve tools passes through unchanged if the client and the upstream speak the same
protocol, and is translated otherwise. If the upstream declines a feature, the request is repeated without the feature,
according to the plan that `next_plan` returns.
"""

from operator import attrgetter
from typing import assert_never

from attrs import evolve, field

from streamtool import prompting
from streamtool.core.conversation import HOSTED, HOSTED_CHOICE, Conversation, ForcingMethod
from streamtool.core.errors import RequestError, SettingsError
from streamtool.core.values import frozen
from streamtool.exchange.call_forcing import NO_FORCING, CallForcing, without
from streamtool.exchange.interfaces import Capabilities, ClientStore, Templates
from streamtool.exchange.received import Received
from streamtool.exchange.signatures import restore_signatures
from streamtool.exchange.tool_sets import restore_tools
from streamtool.forcing import can_force
from streamtool.policy import Effect, Finding, RejectedRequest, find, proves_tools_denied, refused_part, says_refused
from streamtool.protocols.interfaces import ClientProtocol, UpstreamProtocol
from streamtool.protocols.registry import PROTOCOLS, upstream_protocol_for
from streamtool.settings import BY_SETTING, ModelSettings, Settings

_CALLS = attrgetter("calls")
_SEARCHED = 256 * 1024
"""Maximum size, in bytes, of a request that is searched for text that an error message may quote."""


@frozen
class Known:
    """Access to the findings about one model at its upstream, for one client."""

    capabilities: Capabilities
    client: str
    upstream: str | None
    model: str

    def lacks(self, ability: str) -> bool:
        """Return whether the upstream is known to lack an ability: `tools`, `usage`, a forcing method or a
        constraint.
        """
        return self.capabilities.lacks(self.client, self.upstream, self.model, ability)

    def lacked_here(self, ability: str) -> bool:
        """Return whether the upstream is known to lack an ability, without querying the shared store, which may be
        slow.
        """
        return self.capabilities.lacks_locally(self.client, self.upstream, self.model, ability)

    def learn(self, ability: str) -> None:
        """Remember that the upstream lacks an ability."""
        self.capabilities.learn(self.client, self.upstream, self.model, ability)

    def forget(self, ability: str) -> None:
        """Forget that the upstream lacks an ability."""
        self.capabilities.forget(self.client, self.upstream, self.model, ability)


@frozen
class Plan:
    """A plan for requests to the upstream."""

    model: ModelSettings
    upstream: UpstreamProtocol
    native: bool
    """Whether the upstream receives the tools natively."""
    same: bool
    """Whether the client and the upstream speak the same protocol."""
    emulates: bool
    """Whether tools and past calls reach the upstream as text."""
    reads: bool
    """Whether the upstream's text is searched for calls."""
    passthrough: bool
    """Whether the request and the reply pass through unchanged."""
    mode: str
    """The mode's name in the record."""
    asks_usage: bool
    """Whether token usage is requested even though the client did not request it."""
    stabilized: bool = False
    """Whether volatile text was left out or moved, so that the client's own body is not sent."""
    dropped: tuple[str, ...] = ()
    """Parts of the request that could not be honored, as far as they are known."""
    transcripts: ClientStore | None = field(default=None, repr=False)
    """The client store for transcripts of the model's calls and for its tools, or None if they are not stored."""
    signatures: ClientStore | None = field(default=None, repr=False)
    """The client store for call signatures, or None if the upstream does not sign its calls."""
    forcing: CallForcing = NO_FORCING
    reason: Finding | None = None
    """The reason why the upstream declined the previous plan, or None if this is the first plan."""
    learnt: str = ""
    """The ability that the upstream was found to lack, to be recorded for other requests, or an empty string."""

    @property
    def listens(self) -> tuple[str, ...] | None:
        """The formats that the parser listens for: the model's own, and a bare object if the reply must be one."""
        known = self.model.listened_formats
        return known if known is None or not self.forcing.whole or "object" in known else (*known, "object")

    def opener(self, asked: Conversation) -> str:
        """Return the reasoning opener at the end of the prompt, or "" if the prompt does not end with one.

        A reply that is constrained from its first character does not begin with reasoning.
        """
        options = asked.options
        if self.forcing.whole:
            return ""
        return self.model.opener(thinking=False if options.effort == "none" else options.thinking)


@frozen
class Refusal:
    """An upstream's error in response to a request that it declined."""

    status: int
    message: str
    asked: Conversation = field(repr=False)
    """The conversation that the request expressed, and that the message may quote."""
    size: int = 0
    """Size in bytes of the declined request."""

    def may_quote(self, method: ForcingMethod) -> bool:
        """Return whether the message may be quoting the request where it mentions a forcing method."""
        return self.size > _SEARCHED or says_refused(method, repr(self.asked))


def known_of(received: Received, model: ModelSettings, capabilities: Capabilities | None) -> Known | None:
    """Return the findings about a model at its upstream, or None if no store of capabilities is available."""
    if capabilities is None:
        return None
    upstream = model.upstream
    return Known(capabilities, received.client, None if upstream is None else upstream.name, model.name)


def first_plan(
    received: Received,
    settings: Settings,
    protocol: ClientProtocol,
    *,
    capabilities: Capabilities | None = None,
    templates: Templates | None = None,
) -> tuple[Received, Plan]:
    """Return the first plan, and the request with the data that the store adds: earlier tools, and call signatures.

    Raises RequestError if a header is invalid, or if a tool that must not be left out cannot be used.
    """
    asked, memory = received.conversation, received.memory
    model = _model_settings(received, settings, templates)
    plain, mode = received.plain, model.mode
    known = known_of(received, model, capabilities)
    native = not plain and mode != "emulate"
    if native and mode == "auto" and known is not None:
        native = not known.lacks("tools")
    emulates = not (native or plain)
    upstream = upstream_protocol_for(protocol, model.protocol)
    same = asked.protocol == upstream.NAME
    if settings.stable_prefix and (emulates or model.upstream is None or not model.upstream.is_vendor):
        asked = prompting.stabilize(asked)
    stabilized = asked is not received.conversation
    transcripts = memory if settings.verbatim and emulates else None
    if transcripts is not None and any(map(_CALLS, asked.messages)):
        asked = restore_tools(asked, transcripts)
        begun = prompting.format_of(asked.messages, transcripts.recall)
        model = model if begun is None else model.continuing_in(begun)
    reads = not plain and mode != "native"
    passthrough = same and not (reads or asked.background)
    signatures = memory if native and not passthrough and PROTOCOLS[upstream.NAME].signs_calls else None
    if signatures is not None:
        asked = restore_signatures(asked, signatures)
    dropped = asked.dropped
    if not same or asked.options.output is not None:
        dropped = _dropped(asked, protocol, upstream.NAME, same=same, passthrough=passthrough, prompted=emulates)
    if emulates and model.forcing != "auto" and not can_force(model.forcing, upstream.NAME):
        dropped += (f"forcing by {model.forcing}",)
    if dropped and not passthrough:
        _check_hosted(dropped, settings)
    plan = Plan(
        model=model,
        upstream=upstream,
        native=native,
        same=same,
        emulates=emulates,
        reads=reads,
        passthrough=passthrough,
        mode=_mode(model, plain=plain, native=native, same=same),
        # if both speak the same protocol, the client itself requests the usage of a stream
        asks_usage=not (same and asked.stream) and (known is None or not known.lacked_here("usage")),
        stabilized=stabilized,
        dropped=dropped,
        transcripts=transcripts,
        signatures=signatures,
    )
    if passthrough and asked is received.conversation:
        return received, plan
    # a stream may stay open for long, and a body that has been read is not needed again
    body = received.body if passthrough else b""
    return Received(received.headers, body, received.client, asked, plain, memory), plan


def next_plan(plan: Plan, refusal: Refusal, known: Known | None) -> Plan | None:
    """Return the plan to use after an upstream error, or None if the error is not about a feature that can be left out.

    A row of the failure table whose evidence is a `RejectedRequest` recognizes the error, and its `effect` changes the
    plan. This function does not store the finding: the caller passes `learnt` to `known`.
    """
    current = plan.forcing.current
    method = None if plan.native or current is None else current.way
    found = find(
        RejectedRequest(
            status=refusal.status,
            message=refusal.message,
            native=plan.native and plan.model.mode == "auto",
            forcing=method,
            asks_usage=plan.asks_usage,
        )
    )
    if found is None:
        return None
    match found.failure.effect:
        case Effect.NONE:
            return evolve(plan, reason=found, learnt="")
        case Effect.WITHOUT_USAGE:
            if known is None:  # without a store, the next request would be declined for the same reason
                return None
            return evolve(plan, reason=found, asks_usage=False, learnt="usage")
        case Effect.TOOLS_AS_TEXT:
            proven = proves_tools_denied(refusal.message, repr(refusal.asked))
            learnt = "tools" if proven else ""
            return evolve(plan, reason=found, native=False, emulates=True, mode="emulate", learnt=learnt)
        case Effect.FORCING_LESS:
            part = None if method is None else refused_part(method, refusal.status, refusal.message)
            if method is None or part is None:  # a registered row with its own detector
                return evolve(plan, reason=found, learnt="")
            forcing, lacking = without(plan.forcing, part)
            quoted = part == "method" and refusal.may_quote(method)
            return evolve(plan, reason=found, forcing=forcing, learnt="" if quoted else lacking)
        case unknown:
            assert_never(unknown)


def _model_settings(received: Received, settings: Settings, templates: Templates | None) -> ModelSettings:
    """Return the model's settings, overridden by request headers if that is allowed."""
    model = settings.for_model(received.conversation.model)
    if templates is not None:
        model = templates.inform(model, received.client)
    if not settings.allow_overrides:
        return model
    given = {name.decode("latin-1"): value.decode("latin-1") for name, value in received.headers}
    mode, format_ = given.get("x-streamtool-mode"), given.get("x-streamtool-format")
    resume = given.get("x-streamtool-resume")
    try:
        if resume is not None:
            model = evolve(model, resume=Settings(resume=int(resume) if resume.isdecimal() else resume).resume)  # type: ignore[arg-type]  # it checks
        if mode is not None:
            model = evolve(model, mode=Settings(mode=mode).mode)  # type: ignore[arg-type]  # it checks
        if format_ is not None:
            taught = Settings(format=format_).format
            match taught:
                case "auto":
                    model = model.with_own_format
                case "response_template":
                    model = model.with_described_format
                case _:
                    model = model.teaching(taught, BY_SETTING)
    except SettingsError as error:
        raise RequestError(f"invalid header: {error.message}", param=error.param) from None
    return model


def _mode(model: ModelSettings, *, plain: bool, native: bool, same: bool) -> str:
    """Return the name, in the record, of the mode in which a request is served."""
    if plain:
        return "passthrough" if same else "translate"
    if model.mode == "auto":
        return "native" if native else "emulate"
    return model.mode


def _dropped(
    asked: Conversation, protocol: ClientProtocol, upstream: str, *, same: bool, passthrough: bool, prompted: bool
) -> tuple[str, ...]:
    """Return the parts of the request that the upstream's protocol cannot express."""
    dropped = asked.dropped
    if not same:
        lost = protocol.REQUEST_FIELDS.dropped(asked, upstream, prompted=prompted)
        dropped += tuple([f"field {name}" for name in lost])
    output = asked.options.output
    if output is not None and output.foreign and not passthrough:
        dropped += ("form of the answer",)
    return dropped


def _check_hosted(dropped: tuple[str, ...], settings: Settings) -> None:
    """Reject a request that demands a call to a hosted tool, or that offers one if the settings refuse such
    requests.
    """
    hosted = [note for note in dropped if note.startswith(HOSTED)]
    if hosted and settings.hosted_tools == "refuse":
        raise RequestError(f"a {hosted[0]} can be run only by its vendor: omit it", param="tools")
    if HOSTED_CHOICE in dropped:
        raise RequestError(
            "tool_choice demands a call to a tool that can be run only by its vendor: choose another tool, or auto",
            param="tool_choice",
        )
