"""The network to an upstream: certificates and HTTP proxies as the environment names them, and why a request failed.

`SSL_CERT_FILE` and `SSL_CERT_DIR` replace the certificates of authorities that are trusted. `HTTP_PROXY`, `HTTPS_PROXY`
and `ALL_PROXY` name a proxy on the way, `NO_PROXY` the hosts without one; loopback never has one. What cannot be
honoured is refused by its name before anything is sent.

An upstream that cannot be reached has one of few causes, each with a remedy of its own. httpx, httpcore, anyio and trio
wrap them, each in its own way, so a cause is looked for in the whole chain (`failure`).
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

from streamtool.errors import SettingsError, UpstreamError, UpstreamTimeout
from streamtool.settings.data import is_loopback

try:
    from streamtool.http.asyncio_network import AsyncioNetwork
except ImportError:  # the extra `serve` brings what it needs
    AsyncioNetwork = None  # type: ignore[assignment, misc]

_KEPT: Final = 100
"""Connections to an upstream that are kept for the next request."""
_NO_TLS: Final = frozenset(("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"))
"""What OpenSSL calls an answer that is no TLS."""
_NO_HTTP: Final = ("illegal request line", "illegal status line")
"""What h11 calls an answer that does not begin as one of HTTP; an alert of TLS is such an answer."""


def open_network(url: str) -> httpx.AsyncBaseTransport:
    """Connections to the upstream at `url`, pooled and opened when needed.

    All that this takes is loaded here, so a request needs no file. Raises SettingsError for a variable that cannot be
    honoured.
    """
    "".encode("idna")  # loads the codec by which names are resolved
    certificates = _certificates(os.environ.get("SSL_CERT_FILE", ""), os.environ.get("SSL_CERT_DIR", ""))
    proxy = proxy_of(url)
    general = httpx.AsyncHTTPTransport(
        verify=certificates,
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=_KEPT),
        proxy=proxy,
        trust_env=False,
    )
    if proxy is not None or AsyncioNetwork is None:
        return general
    return _Network(general, AsyncioNetwork(certificates))


class _Network(httpx.AsyncBaseTransport):
    """`fast` on asyncio, `general` on trio."""

    def __init__(self, general: httpx.AsyncBaseTransport, fast: httpx.AsyncBaseTransport) -> None:
        self._general = general
        self._fast = fast

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._chosen.handle_async_request(request)

    async def aclose(self) -> None:
        await self._chosen.aclose()

    @property
    def _chosen(self) -> httpx.AsyncBaseTransport:
        return self._fast if current_async_library() == "asyncio" else self._general


def proxy_of(url: str) -> httpx.Proxy | None:
    """The HTTP proxy on the way to `url`. Raises SettingsError for one that cannot be used."""
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
            f"{name}: the way to {host} leads through an HTTP proxy only, and this names none; "
            f'set it to "http://…", or add {host} to NO_PROXY',
            param=name,
        )
    return found


def failure(error: Exception, where: str) -> UpstreamError:
    """Why a request failed; `where` names the upstream, and the proxy on the way if there is one."""
    causes = list(_causes(error))
    refused = any(isinstance(cause, ConnectionRefusedError) for cause in causes)
    for cause in causes:
        match cause:
            case _ if _lacks_descriptors(cause):
                told = f"no file descriptor is left for a connection to {where}; raise the limit (ulimit -n)"
                return UpstreamError(told, code="no_descriptors")
            case socket.gaierror():
                return UpstreamError(f"the name of {where} cannot be resolved ({cause.strerror}); is its url right?")
            case ssl.SSLCertVerificationError():
                return UpstreamError(
                    f"the certificate of {where} is not accepted ({cause.verify_message}); "
                    "name a file with the certificate of its authority in SSL_CERT_FILE"
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
            return UpstreamTimeout(f"{where} cannot be reached in time")
        case httpx.TimeoutException():
            return UpstreamTimeout(f"{where} did not take the request in time")
        case httpx.ConnectError():
            return UpstreamError(f"{where} cannot be reached; is it running?")
        case httpx.ProxyError():
            return UpstreamError(f"{where} cannot be reached: the proxy answers {error}")
        case httpx.RemoteProtocolError() if str(error).startswith(_NO_HTTP):
            return UpstreamError(f"{where} does not answer in HTTP; should its url begin with https://?")
        case _:
            return UpstreamError(f"the connection to the upstream broke: {type(error).__name__}")


def _lacks_descriptors(cause: BaseException) -> bool:
    """Whether a file could not be opened. The resolver of C calls a name unknown when it cannot read its own files."""
    if isinstance(cause, socket.gaierror):
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            cause = error
    return isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all that it came from, also where a library hides it (`raise … from None`)."""
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
    """The certificates that are trusted; the arguments are those of the environment, which httpx reads itself."""
    try:
        return httpx.create_ssl_context()
    except (OSError, ValueError) as error:
        name = "SSL_CERT_FILE" if file else "SSL_CERT_DIR" if folder else "the trusted certificates"
        raise SettingsError(f"{name} cannot be read: {error}", param=name) from None
