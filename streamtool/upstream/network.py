"""The network path to an upstream: certificates, HTTP proxies from the environment, and reasons for failed requests.

`SSL_CERT_FILE` and `SSL_CERT_DIR` replace the trusted certificate authorities. `HTTP_PROXY`, `HTTPS_PROXY` and
`ALL_PROXY` name a proxy, `NO_PROXY` the hosts that are reached without one; loopback never uses a proxy. A variable
that cannot be honored is reported by name before anything is sent.

There are only a few reasons why an upstream cannot be reached, each with a different remedy. httpx, httpcore, anyio and
trio each wrap the underlying errors differently, so `failure_of` searches the whole exception chain.
"""

import errno
import os
import socket
import ssl
from collections.abc import Iterator
from functools import cache
from typing import Final, Self, cast
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import anyio
import httpx

from streamtool.asgi.off_loop import asyncio_loop
from streamtool.asgi.pieces import TakePiece
from streamtool.core.errors import SettingsError, UpstreamError, UpstreamTimeout
from streamtool.settings import TimeoutSettings
from streamtool.settings.data import is_loopback
from streamtool.upstream.http_messages import HeaderTimeout, HttpRequest, HttpResponse
from streamtool.upstream.resending import send_async

try:
    from streamtool.upstream.http1 import AsyncioNetwork
except ImportError:  # requires the `serve` extra
    AsyncioNetwork = None  # type: ignore[assignment, misc]

_MAX_IDLE: Final = 100
"""Maximum number of idle connections to an upstream."""
_ENDING_SECONDS: Final = 0.1
"""Maximum number of seconds to wait for the end of an abandoned response's body."""
_NO_TLS: Final = frozenset(("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"))
"""OpenSSL's error reasons for input that is not TLS."""
_NO_HTTP: Final = ("illegal request line", "illegal status line")
"""Prefixes of the error messages from h11 and `http1` for input that is not HTTP, such as a TLS alert."""


class Network:
    """Pooled connections to an upstream, which are opened on demand: `fast` ones on asyncio, if they are possible, and
    otherwise those of the httpx transport `general`.
    """

    def __init__(self, general: httpx.AsyncBaseTransport, fast: "AsyncioNetwork | None" = None) -> None:
        self._general = general
        self._fast = fast

    async def send(self, request: HttpRequest, limits: TimeoutSettings) -> HttpResponse:
        """Send the request and return its response, with the body unread. Raises httpx.TransportError, or an error of
        another library. It is HeaderTimeout if no header arrives within `limits.first_byte` seconds.
        """
        fast = self._fast_here
        if fast is not None:
            return await fast.send(request, connect=limits.connect, first_byte=limits.first_byte)
        seconds = {"connect": limits.connect, "write": limits.idle, "read": None, "pool": None}
        httpx_request = httpx.Request(
            request.method,
            request.url.whole,
            headers=request.headers,
            stream=_RequestBody(request.body),
            extensions={"timeout": seconds},
        )
        with anyio.move_on_after(limits.first_byte) as waiting:
            response = await send_async(self._general, httpx_request, httpx)
        if waiting.cancelled_caught:
            raise HeaderTimeout(f"no header arrived within {limits.first_byte:g} seconds")
        if isinstance(httpx_request.stream, _RequestBody):  # a transport may have replaced the stream
            httpx_request.stream.release()
        return HttpResponse(response.status_code, response.headers.raw, _OtherBody(response))

    async def aclose(self) -> None:
        """Close all connections. The next request opens new ones."""
        await (self._fast_here or self._general).aclose()

    @property
    def _fast_here(self) -> "AsyncioNetwork | None":
        """The fast connections, if they work in the event loop that is running."""
        # Determined for each request, because no event loop is running yet when the network is created.
        return None if asyncio_loop() is None else self._fast


def open_network(url: str) -> Network:
    """Return the network for the upstream at `url`.

    All files are read here, so that the only file descriptor that a request requires is its socket. Raises
    SettingsError for a variable that cannot be honored.
    """
    "".encode("idna")  # load the codec used to resolve host names
    certificates = _certificates(os.environ.get("SSL_CERT_FILE", ""), os.environ.get("SSL_CERT_DIR", ""))
    proxy = proxy_of(url)
    general = httpx.AsyncHTTPTransport(
        verify=certificates,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=_MAX_IDLE),
        proxy=proxy,
        trust_env=False,
    )
    return Network(general, AsyncioNetwork(certificates) if proxy is None and AsyncioNetwork is not None else None)


class _RequestBody(httpx.AsyncByteStream):
    """The body of a request, which can be iterated more than once.

    httpx's own stream is a generator, which a cancelled request would leave unfinished.
    """

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._left = b""

    def release(self) -> None:
        """Release the body: it will not be sent again, and the response may stream for long."""
        self._body = b""

    def __aiter__(self) -> Self:
        self._left = self._body
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        left, self._left = self._left, b""
        return left


class _OtherBody:
    """The body of a response from another transport than ours."""

    def __init__(self, response: httpx.Response) -> None:
        self._response = response
        self._pieces = aiter(cast(httpx.AsyncByteStream, response.stream))
        self._complete = False
        self.begun = False

    async def pass_to(self, take: TakePiece, *, first: float, idle: float) -> None:
        limit = first
        while True:
            with anyio.move_on_after(limit) as waiting:
                piece = await anext(self._pieces, None)
            if waiting.cancelled_caught:
                raise httpx.ReadTimeout(f"nothing arrived for {limit:g} seconds")
            if piece is None:
                break
            self.begun, limit = True, idle
            blocked = take(piece)
            if blocked is not None:
                await blocked
        self._complete = True

    async def aclose(self) -> None:
        if self._complete:  # the connection has been released already, so this does not wait
            await self._response.aclose()
            return
        # The body consists of nested generators. They are finalized properly only if an exception is raised inside
        # them: the one caused by reading from the closed connection. Reading first would wait for an upstream that may
        # send nothing more.
        with anyio.CancelScope(shield=True):
            await self._response.aclose()
            with anyio.move_on_after(_ENDING_SECONDS):
                try:
                    async for _ in self._pieces:
                        pass
                except Exception:  # noqa: BLE001, S110  any error will do
                    pass


def proxy_of(url: str) -> httpx.Proxy | None:
    """Return the HTTP proxy to use for `url`, or None. Raises SettingsError if the proxy cannot be used."""
    parts = urlsplit(url)
    host, proxies = parts.hostname or "", getproxies_environment()
    kind = parts.scheme if parts.scheme in proxies else "all"
    if kind not in proxies or is_loopback(host) or proxy_bypass(parts.netloc):
        return None
    address, name = proxies[kind], f"{kind.upper()}_PROXY"
    if "://" not in address:
        address = f"http://{address}"
    try:
        found = httpx.Proxy(address)
    except (ValueError, httpx.InvalidURL):
        found = None
    if found is None or found.url.scheme not in ("http", "https") or not found.url.host:
        raise SettingsError(
            f"{name}: not an HTTP proxy URL, and no other kind of proxy can be used to reach {host}; "
            f'set it to "http://…", or add {host} to NO_PROXY',
            param=name,
        )
    return found


def failure_of(error: Exception, where: str) -> UpstreamError:
    """Return the error to report for a failed request. `where` names the upstream and any proxy."""
    causes = list(_causes(error))
    # If a host has addresses of both families but the machine lacks an IPv6 route, the chain also contains an
    # ENETUNREACH. The refusal from the other address is the useful reason.
    refused = any(isinstance(cause, ConnectionRefusedError) for cause in causes)
    for cause in causes:
        match cause:
            # This case is first, because the resolver reports a lack of descriptors as an unknown name.
            case _ if _lacks_descriptors(cause):
                told = f"no file descriptor is left for a connection to {where}; raise the limit (ulimit -n)"
                return UpstreamError(told, code="no_descriptors")
            case socket.gaierror():
                return UpstreamError(f"the name of {where} cannot be resolved ({cause.strerror}); is its url correct?")
            case ssl.SSLCertVerificationError():
                return UpstreamError(
                    f"the certificate of {where} is not accepted ({cause.verify_message}); "
                    "set SSL_CERT_FILE to a file that contains the certificate of the issuing authority"
                )
            case ssl.SSLError(reason=reason) if reason in _NO_TLS:
                return UpstreamError(f"{where} does not speak TLS; should its url begin with http://?")
            case ssl.SSLError():
                return UpstreamError(f"TLS with {where} failed ({cause.reason})")
            case OSError(errno=errno.ENETUNREACH | errno.EHOSTUNREACH as number) if not refused:
                return UpstreamError(f"{where} cannot be reached ({os.strerror(number)})")
            case _:
                pass
    match error:
        case httpx.ConnectTimeout():
            return UpstreamTimeout(f"connecting to {where} timed out")
        case httpx.TimeoutException():
            return UpstreamTimeout(f"{where} did not accept the request in time")
        case httpx.ConnectError():
            return UpstreamError(f"{where} cannot be reached; is it running?")
        case httpx.ProxyError():
            return UpstreamError(f"{where} cannot be reached: the proxy answered {error}")
        case httpx.RemoteProtocolError() if str(error).startswith(_NO_HTTP):
            return UpstreamError(f"{where} does not speak HTTP; should its url begin with https://?")
        case _:
            return UpstreamError(f"connection error: the connection to {where} broke")


def _lacks_descriptors(cause: BaseException) -> bool:
    """Return whether a file could not be opened for lack of descriptors. If the C resolver cannot open its own files,
    it reports the name as unknown.
    """
    if isinstance(cause, socket.gaierror):
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            cause = error
    return isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and all of its causes, including those that a library suppressed with `raise … from None`."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [one.__cause__ or one.__context__]
            waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()


@cache
def _certificates(file: str, folder: str) -> ssl.SSLContext:
    """Return a TLS context with the trusted certificates. The arguments are only cache keys: httpx reads the
    environment itself.
    """
    try:
        return httpx.create_ssl_context()
    except (OSError, ValueError) as error:
        name = "SSL_CERT_FILE" if file else "SSL_CERT_DIR" if folder else "the trusted certificates"
        raise SettingsError(f"{name} cannot be read: {error}", param=name) from None
