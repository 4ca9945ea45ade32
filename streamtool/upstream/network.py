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
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

import httpx
from sniffio import current_async_library

from streamtool.core.errors import SettingsError, UpstreamError, UpstreamTimeout
from streamtool.settings.data import is_loopback

try:
    from streamtool.upstream.http1 import AsyncioNetwork
except ImportError:  # requires the `serve` extra
    AsyncioNetwork = None  # type: ignore[assignment, misc]

_MAX_IDLE: Final = 100
"""Maximum number of idle connections to an upstream."""
_NO_TLS: Final = frozenset(("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"))
"""OpenSSL's error reasons for input that is not TLS."""
_NO_HTTP: Final = ("illegal request line", "illegal status line")
"""Prefixes of the error messages from h11 and `http1` for input that is not HTTP, such as a TLS alert."""


def open_network(url: str) -> httpx.AsyncBaseTransport:
    """Return a transport for the upstream at `url`. Connections are pooled and opened on demand.

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
    if proxy is not None or AsyncioNetwork is None:
        return general
    return _Network(general, AsyncioNetwork(certificates))


class _Network(httpx.AsyncBaseTransport):
    """A transport that uses `fast` on asyncio and `general` on trio."""

    def __init__(self, general: httpx.AsyncBaseTransport, fast: httpx.AsyncBaseTransport) -> None:
        self._general = general
        self._fast = fast

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._chosen.handle_async_request(request)

    async def aclose(self) -> None:
        await self._chosen.aclose()

    @property
    def _chosen(self) -> httpx.AsyncBaseTransport:
        # Chosen for each request, because no event loop is running yet when the transport is created.
        return self._fast if current_async_library() == "asyncio" else self._general


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
