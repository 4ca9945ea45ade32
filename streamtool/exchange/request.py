"""The first half of an exchange: what the client asks, and how each attempt asks the upstream.

    body ─▶ read_request (the client's protocol) ─▶ Conversation ─▶ project ─▶ write_request (the upstream's)

The settings of the model say which protocol the upstream speaks, and whether it gets the tools as text or natively. A
request that has nothing to do with tools passes untouched if the upstream speaks the client's own protocol. If it does
not, the request is translated.
"""

from collections.abc import Callable, Iterable
from functools import partial

from attrs import evolve

from streamtool import prompting
from streamtool.conversation import HOSTED, HOSTED_CHOICE, Conversation, ForcingMethod
from streamtool.errors import RequestError, SettingsError
from streamtool.exchange.call_forcing import CallForcing
from streamtool.exchange.encoding import decode_body
from streamtool.exchange.interfaces import Memory, Services, Templates, UpstreamRequest
from streamtool.policy import (
    USAGE_REFUSED,
    Finding,
    RefusedRequest,
    Rules,
    find,
    proves_tools_denied,
    refused_part,
    rules_for,
    says_refused,
)
from streamtool.policy.refusals import Phrases
from streamtool.prompting.one_object import is_whole
from streamtool.prompting.turn_instructions import tail
from streamtool.prompting.window import fitted
from streamtool.protocols.interfaces import ClientProtocol, Headers, UpstreamProtocol
from streamtool.protocols.registry import PROTOCOLS, upstream_protocol_for
from streamtool.protocols.wire import with_key
from streamtool.settings import BY_SETTING, ModelSettings, Settings
from streamtool.state.clients import client_of
from streamtool.state.signatures import signed
from streamtool.state.tool_sets import shared, with_tools

_DROPPED = frozenset(
    (b"content-length", b"content-encoding", b"transfer-encoding", b"accept-encoding", b"expect", b"content-type")
)
_SEARCHED = 256 * 1024
"""Bytes of a request that is searched for what its refusal may quote; a larger one may hold anything."""
_OF_PROTOCOLS = (b"anthropic-", b"openai-", b"x-stainless-", b"x-goog-api-client")
"""Beginnings of headers that mean nothing to another protocol."""


class ClientRequest:
    """A client's request. Raises RequestError when it cannot be honoured."""

    __slots__ = (
        "_body", "_headers", "_services", "conversation", "dropped", "forcing", "model", "native",
        "sent", "signatures", "transcripts", "upstream",
    )  # fmt: skip

    def __init__(
        self,
        settings: Settings,
        client: ClientProtocol,
        body: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        services: Services,
    ) -> None:
        memory = services.memory
        self._services = services
        self._body = body
        self._headers = tuple((name.lower(), value) for name, value in headers)
        self.conversation: Conversation = shared(self._read(settings, client, memory))
        self.model: ModelSettings = self._overridden(settings, services.templates)
        self.native = self._begins_native()
        """The upstream gets the tools natively."""
        self.upstream: UpstreamProtocol = upstream_protocol_for(client, self.model.protocol)
        kept = self.memory
        self.transcripts = kept if settings.verbatim and self.emulates else None
        """Where it is remembered how the model writes its calls, and which tools it has."""
        if self.transcripts is not None:
            self.conversation = with_tools(self.conversation, self.transcripts)
            begun = prompting.format_of(self.conversation.messages, self.transcripts.recall)
            self.model = self.model if begun is None else self.model.going_on_in(begun)
        self.forcing = CallForcing(self.model, self.upstream.NAME, self._unsupported())
        self.dropped = self._not_honoured(client)
        """What could not be honoured, as far as it is known."""
        signs = self.native and not self.passthrough and PROTOCOLS[self.upstream.NAME].signs_calls
        self.signatures = kept if signs else None
        """Where the signatures of calls are remembered."""
        if self.signatures is not None:
            self.conversation = signed(self.conversation, self.signatures)
        if self.emulates and self.forcing.impossible:
            self.dropped += (f"forcing by {self.model.forcing}",)
        self.sent = 0
        """Bytes of the last attempt."""
        if not self.passthrough:
            self._body = b""  # it has been read, and a stream may stay open for long
            self._refuse_hosted(settings)

    def _refuse_hosted(self, settings: Settings) -> None:
        """Refuse a request that demands a call of a tool which only the origin can run, or may not lose one."""
        hosted = [note for note in self.dropped if note.startswith(HOSTED)]
        if hosted and settings.hosted_tools == "refuse":
            raise RequestError(f"a {hosted[0]} can only be run by its own origin: leave it out", param="tools")
        if HOSTED_CHOICE in self.dropped and not self.passthrough:
            raise RequestError(
                "tool_choice asks for a call of a tool that can only be run by its own origin: choose another, or auto",
                param="tool_choice",
            )

    def _read(self, settings: Settings, client: ClientProtocol, memory: Memory | None) -> Conversation:
        """The conversation; one without messages if it cannot be read and need not be, since it may pass as it came."""
        body = decode_body(self._body, self._headers, settings.limits.body)
        try:
            if memory is not None and client.memories is not None:
                return client.read_request(body, settings.limits, memory.demand)
            return client.read_request(body, settings.limits)
        except RequestError:
            unread = client.read_unread(body, settings.limits)
            if (
                unread is None
                or upstream_protocol_for(client, settings.for_model(unread.model).protocol).NAME != client.NAME
            ):
                raise
            return unread

    def _not_honoured(self, client: ClientProtocol) -> tuple[str, ...]:
        """What of the request cannot be said to the upstream."""
        conversation = self.conversation
        dropped = conversation.dropped
        if not self.same:
            dropped += tuple(f"field {name}" for name in sorted(conversation.raw.keys() - client.FIELDS))
        output = conversation.options.output
        if output is not None and output.foreign and not self.passthrough:
            dropped += ("form of the answer",)
        return dropped

    @property
    def memory(self) -> Memory | None:
        """Where the reply is remembered; None: nowhere."""
        memory = self._services.memory
        if memory is None or self.conversation.raw.get("store") is not False:
            return memory
        return memory.unstored

    @property
    def same(self) -> bool:
        """Client and upstream speak the same protocol."""
        return self.conversation.protocol == self.upstream.NAME

    @property
    def plain(self) -> bool:
        """The request has nothing to do with tools."""
        asked = self.conversation
        return not (asked.tools or asked.dropped or asked.has_tool_history)

    @property
    def passthrough(self) -> bool:
        """There is nothing to do: request and reply pass as they are."""
        return self.same and not (self.reads or self.conversation.background)

    @property
    def reads(self) -> bool:
        """Calls are looked for in the upstream's text."""
        return not self.plain and self.model.mode != "native"

    @property
    def listens(self) -> tuple[str, ...] | None:
        """The formats that the parser is to know: those of the model, and that of a reply that is one object."""
        known = self.model.listens
        current = self.forcing.current
        bare = current is not None and current.way in ("schema", "guided")
        return known if known is None or not bare or "object" in known else (*known, "object")

    def rules(self, settings: Settings, phrases: Phrases | None) -> Rules:
        """The rules for the reply."""
        whole = is_whole(self.model.format)
        return rules_for(self.conversation, settings, native=self.native, one_object=whole, phrases=phrases)

    @property
    def turn_instructions(self) -> str:
        """What is said for this reply alone, corrections apart."""
        asked = self.conversation
        return tail(asked.choice, None, asked.options.output)

    @property
    def opener(self) -> str:
        """The opener of reasoning that the prompt has written; "" if it has written none.

        A reply that is held to one form from its first character begins without reasoning.
        """
        current, options = self.forcing.current, self.conversation.options
        if current is not None and current.way in ("schema", "guided"):
            return ""
        return self.model.opener(thinking=False if options.effort == "none" else options.thinking)

    @property
    def _asks_usage(self) -> bool:
        """Counts of tokens are asked for although the client has not done so."""
        if self.same and self.conversation.stream:  # it is the client's business
            return False
        known = self._services.capabilities  # its store is not asked: it may be slow, and the event loop waits
        return known is None or not known.lacked_here(self._client, self._upstream_name, self.model.name, "usage")

    @property
    def emulates(self) -> bool:
        """Tools and past calls reach the upstream as text."""
        return not (self.native or self.plain)

    @property
    def mode(self) -> str:
        """How it is served; the word of the log record."""
        if self.plain:
            return "passthrough" if self.same else "translate"
        if self.model.mode == "auto":
            return "native" if self.native else "emulate"
        return self.model.mode

    def falls_back(self, status: int, message: str) -> Finding | None:
        """What the upstream says that it does not support; the next attempt does without. None: it says no such thing.

        A model that is `auto` gets its tools as text, and one that was to be forced is held to less, or asked in words.
        """
        current = self.forcing.current
        method = None if self.native or current is None else current.way
        becomes_text = self.native and self.model.mode == "auto"
        refused = RefusedRequest(
            status=status,
            message=message,
            native=becomes_text,
            forcing=method,
            asks_usage=self._asks_usage,
        )
        found = find(refused)
        known = self._services.capabilities
        if found is not None and found.failure is USAGE_REFUSED:
            if known is None:
                return None
            known.learn(self._client, self._upstream_name, self.model.name, "usage")
            return found
        if self.forcing.doubted and known is not None:  # it was not the constraint
            known.forget(self._client, self._upstream_name, self.model.name, self.forcing.doubted)
        if found is not None:
            part = None if method is None else refused_part(method, status, message)
            if part is None:
                self.native = False
                lacks = "tools" if proves_tools_denied(message, repr(self.conversation)) else ""
            else:
                lacks = self.forcing.refuse(part)
                if method is not None and part == "method" and self._may_be_quoted(method):
                    lacks = ""
            if known is not None and lacks:
                known.learn(self._client, self._upstream_name, self.model.name, lacks)
        return found

    def _may_be_quoted(self, method: ForcingMethod) -> bool:
        """Whether an error that refuses this method may only quote the request."""
        return self.sent > _SEARCHED or says_refused(method, repr(self.conversation))

    def _unsupported(self) -> Callable[[str], bool]:
        """Says whether the upstream is known to lack an ability."""
        known = self._services.capabilities
        if known is None:
            return _nothing
        return partial(known.lacks, self._client, self._upstream_name, self.model.name)

    def _begins_native(self) -> bool:
        if self.plain or self.model.mode == "emulate":
            return False
        return not (self.model.mode == "auto" and self._unsupported()("tools"))

    def _overridden(self, settings: Settings, templates: Templates | None) -> ModelSettings:
        """The model's settings under the headers of this request, where they are honoured."""
        model = settings.for_model(self.conversation.model)
        if templates is not None:
            model = model.with_template(templates.of(model, self._client))
        if not settings.allow_overrides:
            return model
        given = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._headers}
        mode, format_ = given.get("x-streamtool-mode"), given.get("x-streamtool-format")
        try:
            if mode is not None:
                model = evolve(model, mode=Settings(mode=mode).mode)  # type: ignore[arg-type]  # it checks
            if format_ is not None:
                taught = Settings(format=format_).format
                model = model.itself if taught == "auto" else model.taught(taught, BY_SETTING)
        except SettingsError as error:
            raise RequestError(f"a header is wrong: {error.message}", param=error.param) from None
        return model

    def untouched(self) -> UpstreamRequest:
        """The request as it came, but for the model's name."""
        if self.model.name == self.conversation.model:
            return UpstreamRequest(None, self._headers, self._body, self._upstream_name, 1)
        body = self.upstream.write_request(self.conversation, self.model, stream=self.conversation.stream)
        return UpstreamRequest(
            self._path(stream=self.conversation.stream), self._headers_for(body), body, self._upstream_name, 1
        )

    def attempt(self, number: int, *, correction: str | None, continued: str | None) -> UpstreamRequest:
        """The request of an attempt, its tools as text. Raises RequestError when the contract does not fit."""
        options = evolve(self.conversation.options, stop=())  # only we know which text is visible
        if options.output is not None and options.output.foreign and not self.same:
            options = evolve(options, output=None)
        usage = self.conversation.include_usage or self._asks_usage
        asked = evolve(self.conversation, options=options, include_usage=usage)
        if not self.emulates:
            projected = asked if correction is None else prompting.corrected(asked, correction)
        else:
            projected = prompting.project(
                asked,
                self.model,
                self.model.format,
                correction=correction,
                continued=continued,
                recall=None if self.transcripts is None else self.transcripts.recall,
            )
            projected = self.forcing.apply(self.conversation, projected)
        tokenizers = self._services.tokenizers
        projected = fitted(projected, self.model.context, None if tokenizers is None else tokenizers.of(self.model))
        if number == 1:
            self.dropped += projected.dropped[len(asked.dropped) :]
        body = self.upstream.write_request(projected, self.model, stream=True)
        self.sent = len(body)
        path = self._path(stream=True)
        return UpstreamRequest(path, self._headers_for(body), body, self._upstream_name, number, projected)

    def _path(self, *, stream: bool) -> str | None:
        """Where the request goes; None: where the client has sent it, if the path does not name the model."""
        stays = self.same and not PROTOCOLS[self.upstream.NAME].model_in_path
        return None if stays else self.upstream.request_path(self.model, stream=stream)

    @property
    def _client(self) -> str:
        return client_of(self._headers)

    @property
    def _upstream_name(self) -> str | None:
        return self.model.upstream.name if self.model.upstream else None

    def _headers_for(self, body: bytes) -> Headers:
        kept = [(name, value) for name, value in self._headers if name not in _DROPPED]
        if not self.same:
            kept = [(name, value) for name, value in kept if not name.startswith(_OF_PROTOCOLS)]
            kept = with_key(kept, self.upstream.KEY_HEADER)
        given = {name for name, _ in kept}
        return (
            *kept,
            *(pair for pair in self.upstream.HEADERS if pair[0] not in given),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"accept-encoding", b"identity"),
        )


def _nothing(_: str) -> bool:
    """Nothing is known to be lacking."""
    return False
