"""Admits requests, tracks the open ones, and ends them when the server stops.

Each driver has a `Gate`. A request enters the outermost driver's gate once and carries its `Entry` in the scope. Code
that serves the request registers with the entry how to end the request early (`end_with`), so that the client learns
the reason; otherwise, the request is cancelled (`cancelling`) and the gate reports the error. A write to the client is
never interrupted: a request ends only after the write has finished.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Self

import anyio

from streamtool.asgi.answers import Answer, send_error
from streamtool.asgi.pieces import OnDisconnect, WriteNow, disconnects_of, writer_of
from streamtool.asgi.request_body import drop_body
from streamtool.asgi.types import ASGIApp, ASGIMessage, Receive, Scope, Send
from streamtool.core.clients import client_of
from streamtool.core.errors import StreamtoolError, TooManyError, UnavailableError
from streamtool.protocols.interfaces import ClientProtocol, Headers
from streamtool.server.budgets import Budgets
from streamtool.settings import LimitSettings

ENTRY: Final = "streamtool.entry"
"""Key of a request's `Entry` in the ASGI scope."""

_SMALL: Final = 64 * 1024
"""Maximum size in bytes of a last message that the client is expected to receive at once. A client that does not read a
larger one keeps its slot until it has been sent.
"""
_log = logging.getLogger("streamtool")


class Entry(Answer):
    """One open request and its response."""

    __slots__ = ("_end", "_gate", "_left", "_writing", "client", "error", "keeps_slot", "on_disconnect")

    def __init__(self, wire: ClientProtocol, send: Send, client: str, gate: "Gate") -> None:
        super().__init__(wire, send)
        self._gate: Gate | None = gate
        """The gate in which the request has a slot; None once it has released the slot."""
        self._left: int | None = None
        """Number of body bytes that are still to be sent; None if the response does not declare its length."""
        self.keeps_slot = False
        """Whether the request counts against the limits even after its response is complete, until it ends."""
        self.client = client
        """Identity of the client (`core.clients.client_of`)."""
        self.error: StreamtoolError | None = None
        """Error that ends the request early; None unless it has to end."""
        self._end: Callable[[], object] = _do_nothing
        self._writing = False
        """Whether a write to the client is in progress."""
        self.on_disconnect: OnDisconnect | None = disconnects_of(send)
        """The server's `on_disconnect`, if it offers one."""

    def end(self, error: StreamtoolError) -> None:
        """End the request early. Only the first call has an effect."""
        if self.error is None:
            self.error = error
            # A cancelled write could leave an event incomplete, and the error that follows would become part of it.
            # `send` therefore ends the request itself, after the write.
            if not self._writing:
                self._end()

    def release_slot(self) -> None:
        """Stop counting against the limits."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.release_slot(self.client)

    async def send(self, message: ASGIMessage) -> None:
        """Send a message to the client. This is the app's `send`."""
        if not self._started and message["type"] == "http.response.start":
            self._begin(message)
            length = next((value for name, value in message.get("headers", ()) if name == b"content-length"), None)
            self._left = int(length) if length is not None and length.isdigit() else None
        self._last = message
        last = not message.get("more_body", True)
        if self._left is not None:
            self._left -= len(message.get("body", b""))
            last = last or not self._left
        # Before the last byte is sent, since the client may send its next request as soon as it has received that byte.
        if last and not self.keeps_slot and len(message.get("body", b"")) <= _SMALL:
            self.release_slot()
        self._writing = True
        try:
            await self._send(message)
        finally:
            self._writing = False
        if self.error is not None:
            self._end()

    @property
    def write_now(self) -> WriteNow | None:
        """The server's `write_now`. Once it is used, `send` no longer sees each piece."""
        return None if self._left is not None else writer_of(self._send)

    async def report(self, error: StreamtoolError) -> bool:
        """Report an error, like `Answer.report`. The slot is released before the response is complete."""
        if not self.keeps_slot:
            self.release_slot()
        return await super().report(error)

    def end_with(self, end: Callable[[], object]) -> Callable[[], object]:
        """Call `end` from now on if the request has to end early, and return what would have been called before. The
        reason is then in `error`.
        """
        # The caller registers the former function again when it is finished. The innermost one knows best how to end
        # the reply. A context manager would take up memory while the reply is streamed.
        before, self._end = self._end, end
        return before

    @contextmanager
    def cancelling(self) -> Iterator[None]:
        """Cancel the block if the request has to end early, and raise its error afterwards. A cancel scope takes up a
        kilobyte, so none should be open while a reply is streamed.
        """
        if self.error is not None:
            raise self.error
        with anyio.CancelScope() as scope:
            before = self.end_with(scope.cancel)
            try:
                yield
            finally:
                self._end = before
        # `cancelled_caught` distinguishes our cancellation from one that the server delivers from outside, which must
        # propagate.
        if scope.cancelled_caught and self.error is not None:
            raise self.error


class Gate:
    """Admits and tracks the requests of a driver.

    `limits` bounds how many may be open, and `budgets` how many may begin; None means no limit.
    """

    def __init__(self, limits: LimitSettings | None = None, budgets: Budgets | None = None) -> None:
        self._limits = limits
        self._budgets = budgets
        self._clients = Counter[str]()
        """Number of slots in use, by client. A request takes one until the last byte of its response is sent."""
        self._slots = 0
        """Number of slots in use."""
        self._open: set[Entry] = set()
        self._empty: anyio.Event | None = None
        """Event that is set when the last request has ended; None unless something is waiting for it."""
        self._inner: list[Gate] = []
        self.on_drain: set[Callable[[], object]] = set()
        """Callbacks to run when draining begins."""
        self.draining = False
        """Whether new requests are rejected."""
        self.end_error: StreamtoolError | None = None
        """Error that ended all open requests, or None if they have not been ended."""
        self.on_idle: Callable[[], object] = _do_nothing
        """Callback that is called each time the last open request has ended."""

    def inner(self) -> Self:
        """Return a gate for requests made on behalf of this gate's requests.

        Such requests are always admitted, and end early together with the outer ones.
        """
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
        on_rejected: Callable[[str, StreamtoolError, Headers], object],
        bounded: bool = True,
        ends_early: bool = False,
    ) -> None:
        """Call the app with a request in the protocol `wire`, and report its StreamtoolErrors to the client.

        If the request has to end early, the app is cancelled, unless it does what is necessary itself (`ends_early`).
        If the request is rejected, `on_rejected` is called with the protocol's name, the error and the request's
        headers. If not `bounded`, the request is admitted regardless of how many are open, because it polls or cancels
        work that another request has started. Raises the app's error if it cannot be reported to the client.
        """
        if ENTRY in scope:
            await app(scope, receive, send)
            return
        try:
            # No await between here and `_open.add`: otherwise two requests could both take the last free slot, and
            # `drain` could miss one that has already been admitted.
            client = self._admit(scope["headers"], bounded=bounded)
        except StreamtoolError as error:
            on_rejected(wire.NAME, error, scope["headers"])
            await drop_body(scope, receive)
            await send_error(wire, error, send)
            return
        entry = Entry(wire, send, client, self)
        self._open.add(entry)
        self._clients[client] += 1
        self._slots += 1
        try:
            # The budget is checked only now because its store may be slow: the request already counts as open, so it is
            # bounded meanwhile, and draining can end it.
            if self._budgets is not None and bounded and self._budgets.limits(scope["headers"]):
                with entry.cancelling():
                    await self._admit_to_budget(self._budgets, client, scope, receive, wire, refused=on_rejected)
            scope = {**scope, ENTRY: entry}
            if ends_early:
                await app(scope, receive, entry.send)
            else:
                with entry.cancelling():
                    await app(scope, receive, entry.send)
        except StreamtoolError as error:
            # `report` returns False if the body has begun and cannot carry an event. The gate's own error is not raised
            # even then: returning with an unfinished body aborts the connection too, but without a traceback.
            if not await entry.report(error) and error is not entry.error:
                raise  # the server then aborts the connection, so that a truncated body does not look complete
        finally:
            entry.release_slot()
            self._leave(entry)

    def _admit(self, headers: Headers, *, bounded: bool) -> str:
        """Return the identity of the client that sent these headers.

        Raises UnavailableError or TooManyError if its request may not begin.
        """
        if self.draining:
            raise UnavailableError("the server is shutting down; send the request again", code="shutting_down")
        client, limits = client_of(headers), self._limits
        most = 0 if limits is None else limits.exchanges_per_client
        if self._budgets is not None:
            most = self._budgets.limits_for(headers).exchanges or 0
        if limits is None or not bounded:
            return client
        if limits.exchanges and self._slots >= limits.exchanges:
            raise UnavailableError(
                f"the server has {limits.exchanges} requests open (limits.exchanges); send the request again later",
                code="overloaded",
            )
        if most and self._clients[client] >= most:
            raise TooManyError(
                f"you have {most} requests open (limits.exchanges_per_client); "
                "send the request again when one of them has ended",
                code="rate_limit_exceeded",
            )
        return client

    async def _admit_to_budget(
        self,
        budgets: Budgets,
        client: str,
        scope: Scope,
        receive: Receive,
        wire: ClientProtocol,
        *,
        refused: Callable[[str, StreamtoolError, Headers], object],
    ) -> None:
        try:
            await budgets.admit(scope["headers"], client)
        except StreamtoolError as error:
            refused(wire.NAME, error, scope["headers"])
            await drop_body(scope, receive)
            raise

    def release_slot(self, client: str) -> None:
        """Stop counting a request of this client."""
        self._slots -= 1
        # Remove entries at zero, since clients come and go and the counter would grow without bound.
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]

    def _leave(self, entry: Entry) -> None:
        self._open.discard(entry)
        if self._open:
            return
        if self._empty is not None:
            self._empty.set()
        self.on_idle()

    async def drain(self, seconds: float) -> None:
        """Reject new requests, let the open ones continue for `seconds`, and then end them.

        Returns when all requests have ended.
        """
        # Before the callbacks and the first await, so that a request that arrives meanwhile is rejected and the set of
        # open ones only shrinks.
        self.draining = True
        for call in list(self.on_drain):
            call()
        with anyio.move_on_after(seconds):
            await self._wait()
        if self._open:
            if self.end_error is None:
                _log.warning("shutting down: ending %d open requests", len(self._open))
            self.end(UnavailableError("the server shut down before the reply was complete", code="shutting_down"))
            # Without a limit: ended requests still send their error and release their connections, and the caller
            # enforces the grace period.
            await self._wait()

    def end(self, error: StreamtoolError) -> None:
        """End all open requests early."""
        self.end_error = error
        for gate in self._inner:
            gate.end(error)
        for entry in list(self._open):
            entry.end(error)

    async def _wait(self) -> None:
        while self._open:
            self._empty = self._empty or anyio.Event()
            await self._empty.wait()
            self._empty = None


def _do_nothing() -> None:
    """Do nothing: the request cannot be ended yet, or has already ended."""
