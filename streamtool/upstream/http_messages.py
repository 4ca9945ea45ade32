"""HTTP requests to upstreams, and their responses, as plain values.

httpx parses the URL of each request, and normalizes each header of a request and of a response. That costs as much as
sending the request, and an upstream needs neither.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import httpx
from attrs import define

from streamtool.asgi.pieces import TakePiece

HttpOrigin = tuple[str, str, int]
"""Scheme, host and port."""
_PORTS: Final = {"http": 80, "https": 443}


class RequestUrl:
    """The URL of a request, taken apart."""

    __slots__ = ("host", "origin", "path", "whole")

    def __init__(self, url: httpx.URL) -> None:
        self.whole = url
        self.origin: HttpOrigin = (url.scheme, url.raw_host.decode("ascii"), url.port or _PORTS.get(url.scheme, 0))
        self.host: bytes = url.netloc
        """The value of the header `host`."""
        self.path: bytes = url.raw_path
        """The path with the query, percent-encoded."""


@define(eq=False)
class HttpRequest:
    """A request, with all of its headers. The body may be cleared once the response has begun."""

    method: str
    url: RequestUrl
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes = b""


class HeaderTimeout(httpx.ReadTimeout):
    """No header of a response has arrived in time."""


class ResponsePieces(Protocol):
    """The body of a response."""

    @property
    def begun(self) -> bool:
        """Whether a piece has arrived."""
        ...

    async def pass_to(self, take: TakePiece, *, first: float, idle: float) -> None:
        """Pass each piece to `take` as it arrives, until the end of the body. If `take` returns a coroutine, await it
        before the next piece.

        The first piece has to arrive within `first` seconds, and each of the others within `idle` seconds. Raises
        httpx.ReadTimeout, another httpx.TransportError, or an error that `take` raises.
        """
        ...

    async def aclose(self) -> None:
        """Release the connection. It is closed unless the body has been read to its end."""
        ...


@define(eq=False)
class HttpResponse:
    """A response whose header has arrived."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: ResponsePieces
