"""Which requests may begin, which are open, and how they end when the server stops.

Each shell has a `Gate`. A request enters it once, at the outermost shell, and carries its `Entry` in the scope. What
serves the request tells the entry how to end it early (`ends_by`), so that the client learns why; without that it is
cancelled, and the gate tells the client. What is on its way to the client is never taken back: a request ends once that
is out.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Self

import anyio

from streamtool.errors import StreamtoolError, TooManyError, UnavailableError
from streamtool.http.answers import Answer, send_error
from streamtool.http.asgi import ASGIApp, Message, Receive, Scope, Send
from streamtool.http.budgets import Budgets
from streamtool.http.request_body import drop_body
from streamtool.protocols.interfaces import ClientProtocol, Headers
from streamtool.settings import LimitSettings
from streamtool.state.clients import client_of

ENTRY: Final = "streamtool.entry"
"""Key of the ASGI scope under which a request has its `Entry`."""

_log = logging.getLogger("streamtool")


class Entry(Answer):
    """One open request, and its answer."""

    __slots__ = ("_end", "_writing", "error")

    def __init__(self, wire: ClientProtocol, send: Send) -> None:
        super().__init__(wire, send)
        self.error: StreamtoolError | None = None
        """With which it has to end early."""
        self._end: Callable[[], object] = _nothing
        self._writing = False
        """The client has yet to take what it was sent."""

    def end(self, error: StreamtoolError) -> None:
        """End it early. Only the first time counts."""
        if self.error is None:
            self.error = error
            if not self._writing:
                self._end()

    async def put(self, message: Message) -> None:
        """The `send` of whoever serves the request."""
        if not self._started and message["type"] == "http.response.start":
            self._begin(message)
        self._last = message
        self._writing = True
        try:
            await self._send(message)
        finally:
            self._writing = False
        if self.error is not None:
            self._end()

    @contextmanager
    def ends_by(self, end: Callable[[], object]) -> Iterator[None]:
        """Inside of the block, `end` is called to end the request; it finds out why in `error`."""
        before, self._end = self._end, end
        try:
            yield
        finally:
            self._end = before

    @contextmanager
    def cancelling(self) -> Iterator[None]:
        """The block is cancelled to end the request. Raises its error then."""
        with anyio.CancelScope() as scope, self.ends_by(scope.cancel):
            yield
        if scope.cancelled_caught and self.error is not None:
            raise self.error


class Gate:
    """The requests of a shell. `limits` bound how many are open, `budgets` how many begin; None: any number may."""

    __slots__ = (
        "_budgets", "_clients", "_empty", "_inner", "_limits", "_open", "at_drain", "draining", "ended", "quiet",
    )  # fmt: skip

    def __init__(self, limits: LimitSettings | None = None, budgets: Budgets | None = None) -> None:
        self._limits = limits
        self._budgets = budgets
        self._clients = Counter[str]()
        """How many each client has open."""
        self._open: set[Entry] = set()
        self._empty: anyio.Event | None = None
        """While somebody waits for the last request: set when it is over."""
        self._inner: list[Gate] = []
        self.at_drain: set[Callable[[], object]] = set()
        """What is called when no request may begin any more."""
        self.draining = False
        """No request may begin."""
        self.ended: StreamtoolError | None = None
        """With which all that was open had to end early."""
        self.quiet: Callable[[], object] = _nothing
        """Called whenever the last open request is over."""

    def inner(self) -> Self:
        """A gate for requests that serve requests of this one: they may always begin, and end early with these."""
        gate = type(self)()
        self._inner.append(gate)
        return gate

    async def run(
        self,
        app: ASGIApp,
        scope: Scope,
        receive: Receive,
        send: Send,
        wire: ClientProtocol,
        *,
        refused: Callable[[str, StreamtoolError, Headers], object],
        bounded: bool = True,
    ) -> None:
        """Call the app with a request of the protocol `wire`, and tell the client if it raises a StreamtoolError.

        `refused` is called with the protocol's name, the error and the request's headers if the request may not begin.
        One that is not `bounded` may begin however many are open: it asks for, or ends, what another has begun.
        Raises the app's error if the client cannot be told of it.
        """
        if ENTRY in scope:
            await app(scope, receive, send)
            return
        try:
            client = self._admit(scope["headers"], bounded=bounded)
        except StreamtoolError as error:
            refused(wire.NAME, error, scope["headers"])
            await drop_body(scope, receive)
            await send_error(wire, error, send)
            return
        entry = Entry(wire, send)
        self._open.add(entry)
        self._clients[client] += 1
        try:
            with entry.cancelling():
                if self._budgets is not None and bounded:
                    await self._admit_to_budget(self._budgets, scope, receive, wire, refused)
                await app({**scope, ENTRY: entry}, receive, entry.put)
        except StreamtoolError as error:
            if not await entry.tell(error) and error is not entry.error:
                raise  # the server breaks the connection off: a cut body must not look whole
        finally:
            self._leave(entry, client)

    def _admit(self, headers: Headers, *, bounded: bool) -> str:
        """The client that sends these headers, if its request may begin. Raises UnavailableError, TooManyError."""
        if self.draining:
            raise UnavailableError("the server is shutting down; send the request again", code="shutting_down")
        client, limits = client_of(headers), self._limits
        most = 0 if limits is None else limits.exchanges_per_client
        if self._budgets is not None:
            most = self._budgets.of(headers).exchanges or 0
        if limits is None or not bounded:
            return client
        if limits.exchanges and len(self._open) >= limits.exchanges:
            raise UnavailableError(
                f"the server has {limits.exchanges} requests open (limits.exchanges); send the request again later",
                code="overloaded",
            )
        if most and self._clients[client] >= most:
            raise TooManyError(
                f"you have {most} requests open (limits.exchanges_per_client); "
                "send the request again when one of them is over",
                code="rate_limit_exceeded",
            )
        return client

    async def _admit_to_budget(
        self,
        budgets: Budgets,
        scope: Scope,
        receive: Receive,
        wire: ClientProtocol,
        refused: Callable[[str, StreamtoolError, Headers], object],
    ) -> None:
        try:
            await budgets.admit(scope["headers"])
        except StreamtoolError as error:
            refused(wire.NAME, error, scope["headers"])
            await drop_body(scope, receive)
            raise

    def _leave(self, entry: Entry, client: str) -> None:
        self._open.discard(entry)
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]
        if self._open:
            return
        if self._empty is not None:
            self._empty.set()
        self.quiet()

    async def drain(self, seconds: float) -> None:
        """Let nothing begin, let what is open go on for so many seconds, then end it. Returns when all is over."""
        self.draining = True
        for call in list(self.at_drain):
            call()
        with anyio.move_on_after(seconds):
            await self._wait()
        if self._open:
            if self.ended is None:
                _log.warning("shutting down: open requests that are ended: %d", len(self._open))
            self.end(UnavailableError("the server shut down before the reply was complete", code="shutting_down"))
            await self._wait()

    def end(self, error: StreamtoolError) -> None:
        """End all open requests early."""
        self.ended = error
        for gate in self._inner:
            gate.end(error)
        for entry in list(self._open):
            entry.end(error)

    async def _wait(self) -> None:
        while self._open:
            self._empty = self._empty or anyio.Event()
            await self._empty.wait()
            self._empty = None


def _nothing() -> None:
    """Whoever could end the request has not begun, or is over."""
