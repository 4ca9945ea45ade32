"""Client for an upstream in one protocol, and detection of that protocol.

The failure of a request is reported in the request's result. The probe ends with an error only if the upstream cannot
be reached, or if it leaves several requests in a row unanswered.
"""

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import Final
from urllib.parse import urlsplit

import anyio
from attrs import evolve, frozen

from streamtool import sample
from streamtool.asgi.types import SCOPE, AppResponse, ASGIApp, Receive, Scope, Send, ask, never_disconnects
from streamtool.core.conversation import Conversation, Forcing, Message, Options, Role, TextPart, Tool
from streamtool.core.errors import StreamtoolError, UpstreamError, UpstreamRefused, UpstreamTimeout
from streamtool.core.reply import Choice, ReplyAccumulator, ReplyEvent, ReplyReasoningDelta, ReplyTextDelta
from streamtool.exchange.record import Record
from streamtool.middleware import ToolMiddleware
from streamtool.protocols.interfaces import UpstreamProtocol
from streamtool.protocols.registry import UPSTREAMS
from streamtool.protocols.shared import wire
from streamtool.protocols.table import UPSTREAM_NAMES, protocol_of_host
from streamtool.settings import Settings, UpstreamSettings
from streamtool.upstream.app import HttpUpstream
from streamtool.upstream.chat_templates import FoundTemplate, ask_for_template

ORDER: Final = tuple(dict.fromkeys(("ollama", *UPSTREAM_NAMES)))
"""Protocols to try, in this order. Many servers support several of them. Apart from `ollama`, `chat` is first, because
it loses the least for most clients.
"""
SECONDS: Final = 120.0
"""Timeout for a complete request, in seconds. It is long because the server may have to load the model for the first
request.
"""
TOKENS: Final = 512
"""Maximum length of a reply, in tokens; a model may think before it answers."""
_FEW_TOKENS: Final = 16
_KEY_REJECTED: Final = "upstream_authentication"
"""Error code for a configured key that the upstream rejects."""
_MAX_BROKEN: Final = 3
"""Number of consecutive unanswered requests that ends the probe."""
_MAX_EXCERPT: Final = 120
"""Maximum number of characters that are quoted from an upstream's text."""
_UNRELATED_STATUSES: Final = frozenset((401, 403, 408, 425, 429, 502, 503, 504, 529))
"""Statuses that do not depend on the content of the request. 500 is not one of them: servers send it when a chat
template raises an error.
"""
_NO_CHAT: Final = ("embed", "rerank", "whisper")


@frozen
class ProbeResult:
    """Result of one request."""

    choice: Choice
    error: StreamtoolError | None
    said: str
    """The error's message or, if the request succeeded, the beginning of the text."""
    first: float = 0.0
    """Seconds to the first byte."""
    seconds: float = 0.0
    """Seconds to the last byte."""
    arrivals: int = 0
    """Number of body pieces that contained text."""
    deltas: int = 0
    formats: tuple[str, ...] = ()
    """Formats of the calls that the middleware found."""

    @property
    def rejected(self) -> bool:
        """Whether the upstream rejects the content of the request."""
        return isinstance(self.error, UpstreamRefused) and self.error.status not in _UNRELATED_STATUSES


class ProbeClient:
    """The upstream, accessed in one protocol. Counts its requests."""

    def __init__(
        self, upstream: UpstreamSettings, protocol: str, app: ASGIApp, *, seconds: float, requests: int
    ) -> None:
        self._app = app
        self._wire = UPSTREAMS[protocol]
        self._key = upstream.key
        self._seconds = seconds
        self._missing_answers: list[UpstreamError] = []
        """Errors of the most recent consecutive requests that were not answered."""
        self._max_missing = 1
        self._settings = Settings(
            upstreams={upstream.name: evolve(upstream, protocol=protocol)},
            retries=0,
            refusals="pass",
            unknown_tools="deliver",
        )
        self.protocol = protocol
        self.requests = requests
        self.models: tuple[str, ...] | None = None
        self.model = self._settings.for_model("default")
        self.bounded = True
        """Whether the upstream accepts a token limit."""

    async def begin(self, model: str | None) -> ProbeResult:
        """Send a first request to this model or, if `model` is None, to the first one that the upstream lists."""
        self.models = await self._list()
        chat = [name for name in self.models or () if not any(word in name.lower() for word in _NO_CHAT)]
        self.model = self._settings.for_model(model or next(iter([*chat, *(self.models or ())]), "default"))
        heard = await self._hello()
        if heard.rejected and "max_tokens" in heard.said:
            self.bounded = False
            heard = await self._hello()
        self._max_missing = _MAX_BROKEN
        return heard

    async def _hello(self) -> ProbeResult:
        return await self.say(("user", "Reply with one word: pong"), tokens=_FEW_TOKENS)

    async def say(
        self,
        *turns: tuple[Role, str],
        tokens: int = TOKENS,
        tools: tuple[Tool, ...] = (),
        stop: tuple[str, ...] = (),
        forcing: Forcing | None = None,
    ) -> ProbeResult:
        """Send this conversation, and return the result."""
        asked = self._conversation(turns, tokens, tools, stop, forcing)
        path = self._wire.request_path(self.model, stream=True)
        return await self._send(self._ask, self._wire, path, self._wire.write_request(asked, self.model, stream=True))

    async def ask_taught(self, format: str, question: str, tool: Tool, *, system_role: bool) -> ProbeResult:
        """Ask the question, with the tool taught in this format."""
        records: list[Record] = []
        settings = evolve(self._settings, format=format, system_role=system_role)
        middleware = ToolMiddleware(self._ask, settings=settings, on_exchange=records.append)
        chat = UPSTREAMS["chat"]
        asked = self._conversation([("user", question)], TOKENS, (tool,), (), None)
        path, body = chat.request_path(self.model, stream=True), chat.write_request(asked, self.model, stream=True)
        heard = await self._send(middleware, chat, path, body)
        return evolve(heard, formats=records[0].formats if records else ())

    async def fetch_template(self) -> FoundTemplate | None:
        """Return the chat template that the upstream exposes, or None if it exposes none. No request is sent to vendors
        or the sample.
        """
        (upstream,) = self._settings.upstreams.values()
        host = urlsplit(upstream.url).hostname
        if host is None or protocol_of_host(host) != "chat":
            return None
        with anyio.move_on_after(self._seconds):
            return await ask_for_template(self._ask, self.protocol, self.model.name, ())
        return None

    def _conversation(
        self,
        turns: Iterable[tuple[Role, str]],
        tokens: int,
        tools: tuple[Tool, ...],
        stop: tuple[str, ...],
        forcing: Forcing | None,
    ) -> Conversation:
        return Conversation(
            "probe",
            self.model.name,
            tuple(Message(role, (TextPart(text),)) for role, text in turns),
            tools=tools,
            include_usage=True,
            options=Options(stop=stop, max_tokens=tokens if self.bounded else None),
            forcing=forcing,
        )

    async def _ask(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the upstream's app, and count the request."""
        self.requests += 1
        try:
            await self._app(scope, receive, send)
        except UpstreamError as error:
            if error.code != _KEY_REJECTED:
                self._missing_answers.append(error)
            raise
        self._missing_answers.clear()

    async def _list(self) -> tuple[str, ...] | None:
        answer, error = await self._answer(self._ask, self._wire, "GET", self._wire.MODELS_PATH)
        if answer is None or error is not None:
            return None
        try:
            return tuple(wire.repaired(self._wire.read_models(answer.body)))
        except ValueError:
            return None

    async def _send(self, app: ASGIApp, protocol: UpstreamProtocol, path: str, body: bytes) -> ProbeResult:
        """Send one request to `app` in `protocol`, and return the result."""
        reader, fold = protocol.ReplyReader(), ReplyAccumulator()
        began = anyio.current_time()
        times: list[float] = []
        news: list[int] = []

        def take(piece: bytes) -> None:
            events = reader.feed(piece)
            fold.feed(events)
            if piece:
                times.append(anyio.current_time() - began)
            news.append(_count_texts(events))

        answer, error = await self._answer(app, protocol, "POST", path, body=body, on_piece=take)
        if answer is not None and error is None:
            rest = reader.close()
            fold.feed(rest)
            news.append(_count_texts(rest))
        reply = fold.close()
        if error is None and reply.failure is not None:
            error = self._redact_error(reply.failure)
        refused = answer is not None and answer.status != 200
        choice = next(iter(() if refused else reply.choices), Choice(0))
        return ProbeResult(
            choice,
            error,
            self._excerpt(error.message if error else choice.text),
            first=times[0] if times else 0.0,
            seconds=times[-1] if times else 0.0,
            arrivals=sum(count > 0 for count in news),
            deltas=sum(news),
        )

    async def _answer(
        self,
        app: ASGIApp,
        protocol: UpstreamProtocol,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        on_piece: Callable[[bytes], object] | None = None,
    ) -> tuple[AppResponse | None, StreamtoolError | None]:
        """Send a request, and return the response and the error; either can be None. Raises UpstreamError if too many
        consecutive requests are not answered.
        """
        answer: AppResponse | None = None
        error: StreamtoolError | None = None
        headers = [(b"content-type", b"application/json")] if body else []
        try:
            with anyio.move_on_after(self._seconds):
                answer = await ask(
                    app, SCOPE, method, path, body=body, headers=headers, receive=never_disconnects, on_piece=on_piece
                )
            if answer is None:
                error = UpstreamTimeout(f"the upstream's reply took longer than {self._seconds:g} seconds")
                self._missing_answers.append(error)
        except UpstreamError as raised:
            error = raised
            if raised.code == _KEY_REJECTED:
                answer, error = AppResponse(401, b""), UpstreamRefused(raised.message, status=401, code=raised.code)
        if answer is not None and answer.status != 200 and error is None:
            told = protocol.read_error(answer.status, answer.body)
            error = UpstreamRefused(told.message, status=answer.status, code=told.code)
        if len(self._missing_answers) >= self._max_missing:
            raise self._redact_error(self._missing_answers[-1])
        return answer, None if error is None else self._redact_error(error)

    def _redact_error(self, error: StreamtoolError) -> StreamtoolError:
        error.message = self._redact(error.message)
        error.args = (error.message,)
        return error

    def _redact(self, text: str) -> str:
        """Return the text with the key removed, because an upstream may repeat it."""
        return text.replace(self._key, "…") if self._key else text

    def _excerpt(self, text: str) -> str:
        text = " ".join(self._redact(text).split())
        return text if len(text) <= _MAX_EXCERPT else text[: _MAX_EXCERPT - 1] + "…"


async def find_client(
    upstream: UpstreamSettings,
    model: str | None,
    stack: AsyncExitStack,
    *,
    seconds: float,
) -> ProbeClient:
    """Find the upstream's protocol, and a model that replies. `stack` closes the connections.

    Raises UpstreamError if the upstream cannot be reached in time, UpstreamRefused if it rejects the request, and
    StreamtoolError if it supports none of the protocols.
    """
    errors: list[tuple[int, StreamtoolError]] = []
    requests = 0
    for protocol in _candidates(upstream):
        app: ASGIApp = sample.app
        if upstream.url != "sample":
            app = await stack.enter_async_context(HttpUpstream(evolve(upstream, protocol=protocol)))
        line = ProbeClient(upstream, protocol, app, seconds=seconds, requests=requests)
        heard = await line.begin(model)
        if heard.error is None:
            return line
        if isinstance(heard.error, UpstreamTimeout):
            raise heard.error
        requests = line.requests
        errors.append((_explanatory_weight(heard.error, listed=line.models is not None), heard.error))
    weight, error = max(errors, key=lambda pair: pair[0])
    if not weight and len(errors) > 1:
        error = StreamtoolError(f"no model responds at {upstream.url} in any of the protocols {', '.join(ORDER)}")
    raise error if isinstance(error, UpstreamRefused) else StreamtoolError(error.message)


def _candidates(upstream: UpstreamSettings) -> tuple[str, ...]:
    known = upstream.url == "sample" or upstream.protocol != "auto" or upstream.wire_protocol != "chat"
    return (upstream.wire_protocol,) if known else ORDER


def _explanatory_weight(error: StreamtoolError, *, listed: bool) -> int:
    """Return a weight for how well an error explains why no protocol works; a higher weight is better."""
    if isinstance(error, UpstreamRefused):
        if error.status in (401, 403):
            return 3
        return 2 if listed or error.status not in (404, 405, 501) else 0
    return 1


def _count_texts(events: Iterable[ReplyEvent]) -> int:
    """Return how many of the events contain text."""
    return sum(isinstance(event, ReplyTextDelta | ReplyReasoningDelta) and event.text != "" for event in events)
