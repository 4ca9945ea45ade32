"""An upstream in one protocol, as something that one can talk to; and which protocol that is.

What goes wrong in a request is a part of what was heard. Only an upstream that cannot be reached, or breaks off one
request after the other, ends it all with an error.
"""

from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import Final
from urllib.parse import urlsplit

import anyio
from attrs import evolve, frozen

from streamtool import sample
from streamtool.conversation import Conversation, Forcing, Message, Options, Role, TextPart, Tool
from streamtool.errors import StreamtoolError, UpstreamError, UpstreamRefused, UpstreamTimeout
from streamtool.exchange import Record
from streamtool.http.asgi import SCOPE, AppResponse, ASGIApp, Receive, Scope, Send, ask, nobody_leaves
from streamtool.http.middleware import ToolMiddleware
from streamtool.http.templates import FoundTemplate, ask_for_template
from streamtool.http.upstream import HttpUpstream
from streamtool.protocols import wire
from streamtool.protocols.interfaces import UpstreamProtocol
from streamtool.protocols.registry import UPSTREAM_NAMES, UPSTREAMS, protocol_of_host
from streamtool.reply import Choice, ReplyAccumulator, ReplyEvent, ReplyReasoningDelta, ReplyTextDelta
from streamtool.settings import Settings, UpstreamSettings

ORDER: Final = tuple(dict.fromkeys(("ollama", *UPSTREAM_NAMES)))
"""What is tried, in this order. Many servers speak several; `chat` is the one that loses least to most clients."""
SECONDS: Final = 120.0
"""How long a request may take as a whole; the first one may have to load the model."""
TOKENS: Final = 512
"""How long a reply may become: a model may think before it says what counts."""
_FEW: Final = 16
_OUR_KEY: Final = "upstream_authentication"
"""The code of the error that the configured key is refused."""
_BROKEN: Final = 3
"""Requests in a row without an answer, after which the upstream is left alone."""
_SAID: Final = 120
"""Characters that are kept of what an upstream says."""
_UNABLE: Final = frozenset((401, 403, 408, 425, 429, 502, 503, 504, 529))
"""Statuses that tell nothing about what was asked. (500 may: servers answer it when a chat template says no.)"""
_NO_CHAT: Final = ("embed", "rerank", "whisper")


@frozen
class ProbeResult:
    """What came of one request."""

    choice: Choice
    error: StreamtoolError | None
    said: str
    """The error's sentence, else the beginning of the text."""
    first: float = 0.0
    """Seconds to the first byte; `seconds` to the last."""
    seconds: float = 0.0
    arrivals: int = 0
    """Pieces of the body that brought text."""
    deltas: int = 0
    formats: tuple[str, ...] = ()
    """Formats in which the middleware found calls."""

    @property
    def refused(self) -> bool:
        """The upstream says no to what it was asked."""
        return isinstance(self.error, UpstreamRefused) and self.error.status not in _UNABLE


class ProbeClient:
    """The upstream in one protocol. Counts what it is asked."""

    __slots__ = (
        "_app", "_key", "_lost", "_patience", "_seconds", "_settings", "_wire",
        "bounded", "model", "models", "protocol", "requests",
    )  # fmt: skip

    def __init__(
        self, upstream: UpstreamSettings, protocol: str, app: ASGIApp, *, seconds: float, requests: int
    ) -> None:
        self._app = app
        self._wire = UPSTREAMS[protocol]
        self._key = upstream.key
        self._seconds = seconds
        self._lost: list[UpstreamError] = []
        """Why no answer came, for each of the last requests in a row."""
        self._patience = 1
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
        """The upstream takes a limit of tokens."""

    async def begin(self, model: str | None) -> ProbeResult:
        """A first word with this model, else with the first one of the list."""
        self.models = await self._list()
        chat = [name for name in self.models or () if not any(word in name.lower() for word in _NO_CHAT)]
        self.model = self._settings.for_model(model or next(iter([*chat, *(self.models or ())]), "default"))
        heard = await self._hello()
        if heard.refused and "max_tokens" in heard.said:
            self.bounded = False
            heard = await self._hello()
        self._patience = _BROKEN
        return heard

    async def _hello(self) -> ProbeResult:
        return await self.say(("user", "Reply with one word: pong"), tokens=_FEW)

    async def say(
        self,
        *turns: tuple[Role, str],
        tokens: int = TOKENS,
        tools: tuple[Tool, ...] = (),
        stop: tuple[str, ...] = (),
        forcing: Forcing | None = None,
    ) -> ProbeResult:
        """What the upstream answers to this conversation."""
        asked = self._conversation(turns, tokens, tools, stop, forcing)
        path = self._wire.request_path(self.model, stream=True)
        return await self._hear(self._ask, self._wire, path, self._wire.write_request(asked, self.model, stream=True))

    async def taught(self, format: str, question: str, tool: Tool, *, system_role: bool) -> ProbeResult:
        """What comes of the question if the tool is taught in this format."""
        records: list[Record] = []
        settings = evolve(self._settings, format=format, system_role=system_role)
        middleware = ToolMiddleware(self._ask, settings=settings, on_exchange=records.append)
        chat = UPSTREAMS["chat"]
        asked = self._conversation([("user", question)], TOKENS, (tool,), (), None)
        path, body = chat.request_path(self.model, stream=True), chat.write_request(asked, self.model, stream=True)
        heard = await self._hear(middleware, chat, path, body)
        return evolve(heard, formats=records[0].formats if records else ())

    async def template(self) -> FoundTemplate | None:
        """The chat template that the upstream shows; neither a vendor nor the sample is asked."""
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
        """The upstream's app, counted."""
        self.requests += 1
        try:
            await self._app(scope, receive, send)
        except UpstreamError as error:
            if error.code != _OUR_KEY:
                self._lost.append(error)
            raise
        self._lost.clear()

    async def _list(self) -> tuple[str, ...] | None:
        answer, error = await self._answer(self._ask, self._wire, "GET", self._wire.MODELS_PATH)
        if answer is None or error is not None:
            return None
        try:
            return tuple(wire.repaired(self._wire.read_models(answer.body)))
        except ValueError:
            return None

    async def _hear(self, app: ASGIApp, protocol: UpstreamProtocol, path: str, body: bytes) -> ProbeResult:
        """The answer of `app` to one request, in `protocol`."""
        reader, fold = protocol.ReplyReader(), ReplyAccumulator()
        began = anyio.current_time()
        times: list[float] = []
        news: list[int] = []

        def take(piece: bytes) -> None:
            events = reader.feed(piece)
            fold.feed(events)
            if piece:
                times.append(anyio.current_time() - began)
            news.append(_texts(events))

        answer, error = await self._answer(app, protocol, "POST", path, body=body, on_piece=take)
        if answer is not None and error is None:
            rest = reader.close()
            fold.feed(rest)
            news.append(_texts(rest))
        reply = fold.close()
        if error is None and reply.failure is not None:
            error = self._clean(reply.failure)
        refused = answer is not None and answer.status != 200
        choice = next(iter(() if refused else reply.choices), Choice(0))
        return ProbeResult(
            choice,
            error,
            self._short(error.message if error else choice.text),
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
        """The answer, if there is one, and what is wrong. Raises UpstreamError when too many in a row are missing."""
        answer: AppResponse | None = None
        error: StreamtoolError | None = None
        headers = [(b"content-type", b"application/json")] if body else []
        try:
            with anyio.move_on_after(self._seconds):
                answer = await ask(
                    app, SCOPE, method, path, body=body, headers=headers, receive=nobody_leaves, on_piece=on_piece
                )
            if answer is None:
                error = UpstreamTimeout(f"the upstream's reply took longer than {self._seconds:g} seconds")
                self._lost.append(error)
        except UpstreamError as raised:
            error = raised
            if raised.code == _OUR_KEY:
                answer, error = AppResponse(401, b""), UpstreamRefused(raised.message, status=401, code=raised.code)
        if answer is not None and answer.status != 200 and error is None:
            told = protocol.read_error(answer.status, answer.body)
            error = UpstreamRefused(told.message, status=answer.status, code=told.code)
        if len(self._lost) >= self._patience:
            raise self._clean(self._lost[-1])
        return answer, None if error is None else self._clean(error)

    def _clean(self, error: StreamtoolError) -> StreamtoolError:
        error.message = self._hidden(error.message)
        error.args = (error.message,)
        return error

    def _hidden(self, text: str) -> str:
        """The text without the key, which an upstream may repeat."""
        return text.replace(self._key, "…") if self._key else text

    def _short(self, text: str) -> str:
        text = " ".join(self._hidden(text).split())
        return text if len(text) <= _SAID else text[: _SAID - 1] + "…"


async def find(
    upstream: UpstreamSettings,
    model: str | None,
    stack: AsyncExitStack,
    *,
    seconds: float,
) -> ProbeClient:
    """The upstream in the protocol that it speaks, with a model that answers. `stack` closes its connections.

    Raises UpstreamError when it cannot be reached in time, UpstreamRefused when it refuses, StreamtoolError when it
    speaks none of the protocols.
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
        errors.append((_weight(heard.error, listed=line.models is not None), heard.error))
    weight, error = max(errors, key=lambda pair: pair[0])
    if not weight and len(errors) > 1:
        error = StreamtoolError(
            f"nothing at {upstream.url} answers as a model would, in any of the protocols {', '.join(ORDER)}"
        )
    raise error if isinstance(error, UpstreamRefused) else StreamtoolError(error.message)


def _candidates(upstream: UpstreamSettings) -> tuple[str, ...]:
    known = upstream.url == "sample" or upstream.protocol != "auto" or upstream.wire_protocol != "chat"
    return (upstream.wire_protocol,) if known else ORDER


def _weight(error: StreamtoolError, *, listed: bool) -> int:
    """How much an error says about why nothing works."""
    if isinstance(error, UpstreamRefused):
        if error.status in (401, 403):
            return 3
        return 2 if listed or error.status not in (404, 405, 501) else 0
    return 1


def _texts(events: Iterable[ReplyEvent]) -> int:
    """How many of the events bring text."""
    return sum(isinstance(event, ReplyTextDelta | ReplyReasoningDelta) and event.text != "" for event in events)
