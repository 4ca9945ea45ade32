"""A request that breaks on a reused connection is sent once more, on a new one.

Some servers close a connection that they have promised to keep. httpcore looks for its end before it uses it again, but
the end may come behind the look. If nothing of an answer has come, the request is sent again (RFC 9112, section 9.3.1).

httpcore tells a request's extension `trace` of each step, so this holds for whatever transport is made of it, ours or a
client's, of httpx and of httpx2. Other transports, and HTTP/2, tell no such steps, and are left alone. To get a new
connection, the request refuses reused ones before anything is written to them, which closes them.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

_REFUSALS: Final = 200
"""Reused connections that one request refuses at most: others may be left while it looks for a new one."""


async def send_async(network: Any, request: Any, package: Any) -> Any:
    """The answer of a transport of `package` (httpx or httpx2) to a request, its body still to come.

    It must be possible to read the request's body twice. Raises what the transport raises.
    """
    with _Tries(request, package) as tries:
        request.extensions["trace"] = tries.step_async
        while True:
            try:
                return await network.handle_async_request(request)
            except Exception as error:  # noqa: BLE001  raised again if it is final
                tries.failed(error)


def send_sync(network: Any, request: Any, package: Any) -> Any:
    """The same for a blocking transport."""
    with _Tries(request, package) as tries:
        request.extensions["trace"] = tries.step_sync
        while True:
            try:
                return network.handle_request(request)
            except Exception as error:  # noqa: BLE001  raised again if it is final
                tries.failed(error)


class _ReusedError(Exception):
    """The connection is not new, and nothing was written to it."""


class _Tries:
    """How often a request was sent, and on what: it learns from the steps whether a connection is reused."""

    __slots__ = ("_breaks", "_broken", "_connects", "_refusals", "_request", "_reused", "_trace")

    def __init__(self, request: Any, package: Any) -> None:
        self._breaks = (package.ReadError, package.WriteError, package.RemoteProtocolError)
        self._request = request
        self._trace = request.extensions.get("trace")
        """The caller's own."""
        self._connects = self._reused = False
        self._broken: Exception | None = None
        """How the first try ended; from then on only a new connection will do."""
        self._refusals = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """What comes later is told to the caller alone."""
        if self._trace is None:
            del self._request.extensions["trace"]
        else:
            self._request.extensions["trace"] = self._trace

    def failed(self, error: Exception) -> None:
        """A try has failed. Raises the error unless another try may follow."""
        if isinstance(error, _ReusedError):
            self._refusals += 1
            if self._refusals > _REFUSALS and self._broken is not None:
                raise self._broken
        elif self._broken is None and self._reused and isinstance(error, self._breaks):
            self._broken = error
        else:
            raise error
        self._connects = self._reused = False

    async def step_async(self, step: str, info: Mapping[str, Any]) -> None:
        """What httpcore calls at each step of the request."""
        self._note(step)
        if self._trace is not None:
            await self._trace(step, info)

    def step_sync(self, step: str, info: Mapping[str, Any]) -> None:
        """The same for a blocking transport."""
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
