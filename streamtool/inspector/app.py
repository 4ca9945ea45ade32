"""The HTTP interface of the inspector: one page and its data. The page does not contact any other host.

    /inspect                          the page; its styles and scripts are below this path
    /inspect/exchanges                the list of exchanges
    /inspect/exchanges/ID             one exchange as timelines
    /inspect/exchanges/ID/session     the turns of its session: exchanges, results, the user's messages
    /inspect/exchanges/ID/prompt      the prompt of each attempt, with marks
    /inspect/exchanges/ID/requests    the request as received, and as sent to the upstream
    /inspect/exchanges/ID/bytes       the bytes sent to the client
    /inspect/exchanges/ID/case        a conformance case for one parser (`parser=N`)
    /inspect/exchanges/ID/recording   the exchange as a recording
    /inspect/events                   changes to the list, as Server-Sent Events
    /inspect/parse                    parse the posted text (POST)
    /inspect/formats                  the table of formats
    /inspect/example                  the initial state of the playground

The page itself contains no data. All other paths require a client key or, if no keys are configured, a request from
this machine. Text is shown only if the `contents` setting allows it; if not, its characters are replaced with dots.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.resources import files
from typing import Final
from urllib.parse import parse_qs

import anyio

from streamtool.asgi.off_loop import off_loop
from streamtool.asgi.request_body import ClientLeft, read_body
from streamtool.asgi.types import ClientWatch, Receive, Scope, Send, route_path
from streamtool.core.clients import ClientNames
from streamtool.core.errors import (
    AuthenticationError,
    ForbiddenError,
    MethodError,
    NotFoundError,
    RequestError,
    StreamtoolError,
    UnavailableError,
)
from streamtool.core.json_value import Json
from streamtool.inspector import views
from streamtool.inspector.playground import play
from streamtool.inspector.session import Exchanges
from streamtool.observe.logs import log_refused
from streamtool.protocols.shared.wire import decode_tolerant, encode
from streamtool.server.origins import Origins
from streamtool.settings import Settings, is_loopback

PATH: Final = "/inspect"
PAGE: Final[Mapping[str, tuple[str, str]]] = {
    "": ("index.html", "text/html; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    **{
        f"{name}.js": (f"{name}.js", "text/javascript; charset=utf-8")
        for name in ("main", "api", "dom", "list", "exchange", "picture", "details", "playground", "words")
    },
}
"""The page's files and their content types, by the last part of the path."""
POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", POLICY),
)
POLL_INTERVAL: Final = 0.25
"""Seconds between two checks for changes."""
KEEPALIVE_INTERVAL: Final = 15.0
"""Seconds without events before a keep-alive comment is sent."""
MAX_WATCHERS: Final = 32
"""Maximum number of open event streams."""
DIRECT: Final = frozenset(
    (
        b"authorization",
        b"cache-control",
        b"connection",
        b"cookie",
        b"dnt",
        b"expect",
        b"host",
        b"keep-alive",
        b"origin",
        b"pragma",
        b"priority",
        b"range",
        b"referer",
        b"save-data",
        b"te",
        b"upgrade-insecure-requests",
        b"user-agent",
        b"x-api-key",
        b"x-requested-with",
    )
)
"""Headers that browsers and command-line clients send, together with those that begin with `_DIRECT_PREFIXES`. If a
request has any other header, it may have passed through a reverse proxy, a content delivery network or a tunnel, whose
headers are too many to list.
"""
_DIRECT_PREFIXES: Final = (b"accept", b"content-", b"if-", b"sec-")
_LOOPBACK_HOST: Final = re.compile(
    rb"(?:(?:[a-z0-9_-]+\.)*localhost\.?|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]*)?", re.IGNORECASE
)


class Inspector:
    """An ASGI app for `/inspect` and the paths below it.

    `closing` returns whether the server is about to stop. `example` is the initial state of the playground, with the
    keys `text`, `tools`, `formats` and `cut`.
    """

    def __init__(
        self,
        settings: Settings,
        exchanges: Exchanges,
        closing: Callable[[], bool] = lambda: False,
        *,
        example: Json = None,
    ) -> None:
        self._settings = settings
        self._exchanges = exchanges
        self._closing = closing
        self._example = example
        self._clients = ClientNames(settings.client_keys)
        self._origins = Origins(settings)
        self._watchers = 0

    @staticmethod
    def serves(path: str) -> bool:
        """Return whether the inspector serves this path."""
        return path == PATH or path.startswith(PATH + "/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._origins.admit(scope)
            await self._answer(scope, receive, send)
        except ClientLeft:
            return
        except StreamtoolError as error:
            log_refused(scope["method"], route_path(scope), error)
            body = encode({"error": error.message})
            await _send(send, body, "application/json", status=error.status, extra=error.headers)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. Raises StreamtoolError."""
        rest = route_path(scope)[len(PATH) :].strip("/")
        wanted = "POST" if rest == "parse" else "GET"
        if scope["method"] not in (wanted, "HEAD"):
            raise MethodError(f"{PATH}/{rest} accepts {wanted}, not {scope['method']}")
        if rest in PAGE:
            name, kind = PAGE[rest]
            await _send(send, files("streamtool.inspector").joinpath("page", name).read_bytes(), kind)
            return
        self._check(scope)
        if rest == "events":
            await self._watch(receive, send)
            return
        if rest == "parse":
            self._origins.check_type(scope)
            body = await read_body(scope, receive, self._settings.limits)
            await _send_json(send, await off_loop(partial(_play_body, body)))
            return
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        told = await off_loop(partial(self._data_at, rest, query))
        await (_send(send, told, "text/plain; charset=utf-8") if isinstance(told, bytes) else _send_json(send, told))

    def _check(self, scope: Scope) -> None:
        """Raise AuthenticationError or ForbiddenError unless the client may use the inspector."""
        if self._settings.client_keys:
            if not self._clients.of(scope["headers"]):
                raise AuthenticationError("a client key is required", code="invalid_api_key")
            return
        if not (self._settings.inspect_remote or _is_direct(scope)):
            raise ForbiddenError(
                "without client_keys, the inspector is available only at http://localhost on this machine, and not "
                "through a reverse proxy; set client_keys, or inspect_remote = true to show it to everyone"
            )

    def _data_at(self, rest: str, query: Mapping[str, list[str]]) -> Json | bytes:
        """Return the data at a path. Raises NotFoundError, ForbiddenError, RequestError."""
        if rest == "exchanges":
            return {"exchanges": self._summaries(self._exchanges.versions()), "contents": self._settings.contents}
        if rest == "example":
            return self._example or {}
        if rest == "formats":
            return views.formats()
        kind, _, which = rest.partition("/")
        id, _, part = which.partition("/")
        view = views.VIEWS.get(part)
        if kind != "exchanges" or view is None:
            raise NotFoundError(f"nothing is served at {PATH}/{rest}")
        if part and not self._settings.contents:
            raise ForbiddenError("exchange contents are shown only with the setting contents = true")
        try:
            told: Json = view(self._exchanges, id, query)
        except KeyError:
            raise NotFoundError(f"exchange {id} does not exist; only recent ones are stored") from None
        return told if part or self._settings.contents else views.mask(told)

    def _summaries(self, ids: Iterable[str]) -> list[Json]:
        found = []
        for id in ids:
            try:
                told = self._exchanges.summary(id)
                found.append(told if self._settings.contents else views.mask_summary(told))
            except KeyError:  # just deleted
                continue
        return found

    # --- events

    async def _watch(self, receive: Receive, send: Send) -> None:
        """Stream changes until the client disconnects or the server is about to stop. Raises UnavailableError."""
        if self._watchers >= MAX_WATCHERS:
            raise UnavailableError(f"{MAX_WATCHERS} inspector pages are already open")
        self._watchers += 1
        try:
            await send(_start("text/event-stream", ()))
            client = ClientWatch(receive, send)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.cancel_on_disconnect, tasks.cancel_scope)
                await self._stream_changes(client.send)
                tasks.cancel_scope.cancel()
        finally:
            self._watchers -= 1

    async def _stream_changes(self, send: Send) -> None:
        known: Mapping[str, int] = {}
        silent = 0.0
        while not self._closing():
            now = dict(self._exchanges.versions())
            changed = [id for id, count in now.items() if known.get(id) != count]
            gone = [id for id in known if id not in now]
            if changed or gone or not silent:
                told = {"exchanges": self._summaries(changed), "gone": gone, "contents": self._settings.contents}
                await send(
                    {"type": "http.response.body", "body": b"data: " + encode(told) + b"\n\n", "more_body": True}
                )
                silent = 0.0
            elif silent >= KEEPALIVE_INTERVAL:
                await send(_more(b": \n\n"))
                silent = 0.0
            known = now
            silent += POLL_INTERVAL
            await anyio.sleep(POLL_INTERVAL)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _play_body(body: bytes) -> Json:
    try:
        return play(decode_tolerant(body))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from None


def _is_direct(scope: Scope) -> bool:
    """Return whether a request comes directly from this machine, as far as that can be recognized.

    A reverse proxy on this machine that adds no headers and passes on a loopback `Host` looks the same.
    """
    client = scope.get("client")
    names = [name.lower() for name, _ in scope["headers"]]
    hosts = [value for name, value in scope["headers"] if name.lower() == b"host"]
    return (
        client is not None
        and is_loopback(client[0])
        and len(hosts) == 1
        and _LOOPBACK_HOST.fullmatch(hosts[0]) is not None
        and all(name in DIRECT or name.startswith(_DIRECT_PREFIXES) for name in names)
    )


def _start(kind: str, extra: Iterable[tuple[bytes, bytes]], status: int = 200) -> dict[str, Json]:
    headers = [(b"content-type", kind.encode()), *HEADERS, *extra]
    return {"type": "http.response.start", "status": status, "headers": headers}


def _more(body: bytes) -> dict[str, Json]:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def _send_json(send: Send, told: Json) -> None:
    await _send(send, encode(told), "application/json")


async def _send(
    send: Send, body: bytes, kind: str, *, status: int = 200, extra: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    await send(_start(kind, [(b"content-length", str(len(body)).encode()), *extra], status))
    await send({"type": "http.response.body", "body": body, "more_body": False})
