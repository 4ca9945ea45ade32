"""Resends a request on a new connection if a reused connection breaks.

Some servers close a connection that they promised to keep alive. httpcore checks for this before it reuses a
connection, but the close may arrive after the check. If no byte of the response has arrived, the request is sent again
(RFC 9112, section 9.3.1).

httpcore reports each step to the request's `trace` extension, so this works with any transport based on httpcore,
whether it is ours or a client's, and whether it belongs to httpx or httpx2. Other transports, and HTTP/2, do not report
these steps, and their requests are never resent. To obtain a new connection, the request rejects reused ones before
anything is written to them, which closes them.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

_MAX_REJECTED: Final = 200
"""Maximum number of reused connections that a request rejects before it stops waiting for a new one."""


async def send_async(network: Any, request: Any, package: Any) -> Any:
    """Send a request and return the response, with the body unread. `package` is the transport's library: httpx or
    httpx2.

    The request body must be readable twice. Raises the transport's exceptions.
    """
    with _Attempts(request, package) as tries:
        request.extensions["trace"] = tries.step_async
        while True:
            try:
                return await network.handle_async_request(request)
            except Exception as error:  # noqa: BLE001  raised again if it is final
                tries.handle_failure(error)


def send_sync(network: Any, request: Any, package: Any) -> Any:
    """Blocking version of `send_async`."""
    with _Attempts(request, package) as tries:
        request.extensions["trace"] = tries.step_sync
        while True:
            try:
                return network.handle_request(request)
            except Exception as error:  # noqa: BLE001  raised again if it is final
                tries.handle_failure(error)


class _ReusedError(Exception):
    """The connection is not new. No part of the request has been written to it."""


class _Attempts:
    """The attempts to send a request. The trace steps reveal whether a connection is reused."""

    __slots__ = ("_breaks", "_broken", "_connects", "_rejected", "_request", "_reused", "_trace")

    def __init__(self, request: Any, package: Any) -> None:
        self._breaks = (package.ReadError, package.WriteError, package.RemoteProtocolError)
        self._request = request
        self._trace = request.extensions.get("trace")
        """The caller's own trace callback."""
        self._connects = self._reused = False
        self._broken: Exception | None = None
        """The error of the first attempt; once it is set, only a new connection is accepted."""
        self._rejected = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Restore the caller's callback, because the remaining steps concern only the caller."""
        if self._trace is None:
            del self._request.extensions["trace"]
        else:
            self._request.extensions["trace"] = self._trace

    def handle_failure(self, error: Exception) -> None:
        """Handle a failed attempt. Raises the error unless another attempt should follow."""
        if isinstance(error, _ReusedError):
            self._rejected += 1
            if self._rejected > _MAX_REJECTED and self._broken is not None:
                raise self._broken
        elif self._broken is None and self._reused and isinstance(error, self._breaks):
            self._broken = error
        else:
            raise error
        self._connects = self._reused = False

    async def step_async(self, step: str, info: Mapping[str, Any]) -> None:
        """Handle a step of the request. Called by httpcore."""
        self._note(step)
        if self._trace is not None:
            await self._trace(step, info)

    def step_sync(self, step: str, info: Mapping[str, Any]) -> None:
        """Blocking version of `step_async`."""
        self._note(step)
        if self._trace is not None:
            self._trace(step, info)

    def _note(self, step: str) -> None:
        if step == "http11.send_request_headers.started":
            self._reused = not self._connects
            if self._reused and self._broken is not None:
                raise _ReusedError
        elif step.partition(".")[2].startswith("connect_"):
            self._connects = True
