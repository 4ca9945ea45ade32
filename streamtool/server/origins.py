"""Protects the proxy from web pages: a page must not be a client unless the settings allow it.

Any page that a user opens can send requests to loopback. Three rules protect the proxy:

- `Host` must be one of our names. A page whose own name was made to resolve to our address (DNS rebinding) sends its
  own name, and could otherwise read replies. An IP address in `Host` cannot be rebound. Client keys protect the proxy,
  too, because such a page does not have one. Therefore, if keys are set and `hosts` is not, any name is accepted.
- A request that may have effects must come from our own origin or from one of `cors_origins`. Browsers report the
  origin (`Sec-Fetch-Site`, `Origin`), and pages cannot change these headers. A request without either header is not
  from a browser.
- A body must be JSON. A page could send the content types of forms without a preflight.

Before other requests to a different origin, browsers send a preflight, and they let a page read a response only if its
headers allow that: https://fetch.spec.whatwg.org/#http-cors-protocol. Cookies are never allowed, so `*` exposes all
headers.
"""

import ipaddress
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from streamtool.asgi.types import ASGIMessage, Scope, Send
from streamtool.core.errors import ForbiddenError, MediaTypeError, MisdirectedError
from streamtool.settings import Settings

_SAFE: Final = frozenset(("GET", "HEAD"))
"""Methods without effects."""
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_EXPOSED: Final = (b"access-control-expose-headers", b"*")
_MAX_AGE: Final = b"600"
"""Seconds that a browser may cache the response to a preflight."""
_MAX_SHOWN: Final = 80
"""Maximum number of characters of a foreign name that an error repeats."""

_HOSTS: Final = 64
"""Number of values of `Host` whose check is cached: clients of a server use only a few."""

HeaderList = list[tuple[bytes, bytes]]


class Origins:
    """The rules for browser requests, derived from `settings`."""

    def __init__(self, settings: Settings) -> None:
        self._origins = settings.cors_origins
        self._checks_host = bool(settings.hosts) or not settings.client_keys
        self._hosts = ("localhost", "*.localhost", settings.host.lower(), *settings.hosts)
        self._serves = lru_cache(_HOSTS)(self._is_own_name)
        _matches("", (*self._hosts, *self._origins))  # compiles the patterns up to one that matches any name

    def admit(self, scope: Scope) -> HeaderList:
        """Return the response headers for a preflight, or an empty list for any other request.

        Raises MisdirectedError if `Host` is not one of our names, and ForbiddenError if the request may have effects
        and comes from a page of another origin.
        """
        self._check_host(scope)
        if scope["method"] == "OPTIONS" and (method := _header(scope, b"access-control-request-method")):
            return self._preflight(scope, method)
        self.check_origin(scope)
        return []

    def check_type(self, scope: Scope) -> None:
        """Raise MediaTypeError if the body is declared as anything but JSON. A body without a content type is
        accepted.
        """
        kind = _header(scope, b"content-type").partition(";")[0].strip().lower()
        if kind not in ("", "application/json") and not kind.endswith("+json"):
            raise MediaTypeError(
                f'the body has the content type "{kind[:_MAX_SHOWN]}"; send JSON, with content-type: application/json',
                code="unsupported_content_type",
            )

    def with_cors_headers(self, scope: Scope, send: Send) -> Send:
        """Return a `send` that adds headers to let the requesting page read the response, if that page is allowed
        to.
        """
        if not self._origins:
            return send
        added: HeaderList = [(b"vary", b"origin")]
        origin = _header(scope, b"origin")
        if self._allows(origin):
            added += [(b"access-control-allow-origin", origin.encode("latin-1")), _EXPOSED]

        async def answer(message: ASGIMessage) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        return answer

    def _check_host(self, scope: Scope) -> None:
        host = _header(scope, b"host")
        if not (self._checks_host and host):  # browsers always send one
            return
        if not self._serves(host):
            raise MisdirectedError(
                f'this proxy does not serve the host "{host[:_MAX_SHOWN]}"; '
                "if this is one of its names, add it to the hosts setting",
                code="unknown_host",
            )

    def _is_own_name(self, host: str) -> bool:
        """Return whether this value of `Host` is one of our names."""
        name = _name_of(host.lower())
        return _is_address(name) or _matches(name.removesuffix("."), self._hosts)

    def check_origin(self, scope: Scope) -> None:
        """Raise ForbiddenError if the request may have effects and comes from a page of another origin."""
        origin, site = _header(scope, b"origin"), _header(scope, b"sec-fetch-site")
        if scope["method"] in _SAFE or self._allows(origin) or site in ("same-origin", "none"):
            return
        if site or (origin and not _same(origin, _header(scope, b"host"))):
            raise _foreign_error(origin)

    def _preflight(self, scope: Scope, method: str) -> HeaderList:
        """Return the headers that allow the request that the page announces. Any header is allowed: new SDK versions
        keep adding headers, and an allow-list decides which of them reach an upstream.
        """
        origin = _header(scope, b"origin")
        if not self._allows(origin):
            raise _foreign_error(origin)
        asked = _header(scope, b"access-control-request-headers").encode("latin-1")
        return [
            (b"access-control-allow-methods", method.encode("latin-1")),
            *([(b"access-control-allow-headers", asked)] if asked else ()),
            (b"access-control-max-age", _MAX_AGE),
            (b"vary", b"access-control-request-method, access-control-request-headers"),
        ]

    def _allows(self, origin: str) -> bool:
        return bool(origin) and _matches(origin.lower(), self._origins)


def _foreign_error(origin: str) -> ForbiddenError:
    return ForbiddenError(
        f"web pages from {origin[:_MAX_SHOWN] or 'other sites'} may not use this proxy; "
        "to allow them, add their origin to the cors_origins setting",
        code="foreign_origin",
    )


def _header(scope: Scope, wanted: bytes) -> str:
    """Return the value of the first header with this name, or an empty string."""
    return next((value for name, value in scope["headers"] if name.lower() == wanted), b"").decode("latin-1")


def _name_of(host: str) -> str:
    """Return the host without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _same(origin: str, host: str) -> bool:
    """Return whether an origin is the host's own. The scheme is ignored, because TLS may be terminated in front of the
    proxy.
    """
    scheme, _, own = origin.lower().partition("://")
    port = _DEFAULT_PORTS.get(scheme)
    return bool(own) and own.removesuffix(f":{port}") == host.lower().removesuffix(f":{port}")
