"""Which requests of browsers the proxy answers: a web page must not be a client unless the settings say so.

A page that somebody happens to open can send requests to loopback. Three rules keep it out:

- `Host` names us. A page whose own name has been made to resolve to our address (DNS rebinding) sends that name, and
  could read replies. An address as `Host` cannot be rebound. Client keys protect a proxy as well, since such a page has
  none; so with keys, and without `hosts`, any name will do.
- A request that may act comes from no other origin than our own and those of `cors_origins`. Browsers say where it
  comes from (`Sec-Fetch-Site`, `Origin`), and no page can change that. What sends neither is no browser.
- A body is JSON. A page may send the other types of forms without asking first.

Browsers ask before they send anything else to another origin (a preflight), and show a reply to a page only if its
headers allow it: https://fetch.spec.whatwg.org/#http-cors-protocol. Cookies are never allowed, so `*` exposes all
headers.
"""

import ipaddress
from fnmatch import fnmatchcase
from typing import Final

from streamtool.errors import ForbiddenError, MediaTypeError, MisdirectedError
from streamtool.http.asgi import Message, Scope, Send
from streamtool.settings import Settings

_SAFE: Final = frozenset(("GET", "HEAD"))
"""Methods that change nothing."""
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_EXPOSED: Final = (b"access-control-expose-headers", b"*")
_REMEMBERED: Final = b"600"
"""Seconds for which a browser need not ask again."""
_SHOWN: Final = 80
"""Characters of a name from outside that an error repeats."""

Headers = list[tuple[bytes, bytes]]


class Origins:
    """The rules for browsers that `settings` describe."""

    def __init__(self, settings: Settings) -> None:
        self._origins = settings.cors_origins
        self._checks_host = bool(settings.hosts) or not settings.client_keys
        self._hosts = ("localhost", "*.localhost", settings.host.lower(), *settings.hosts)

    def admit(self, scope: Scope) -> Headers:
        """The headers that answer a browser that asks what it may send; for any other request, none.

        Raises MisdirectedError if the request is for a name that is not ours, ForbiddenError if it may act and comes
        from a page of another origin.
        """
        self._check_host(scope)
        if scope["method"] == "OPTIONS" and (method := _header(scope, b"access-control-request-method")):
            return self._preflight(scope, method)
        self.check_origin(scope)
        return []

    def check_type(self, scope: Scope) -> None:
        """Raises MediaTypeError if the body says that it is no JSON; one that says nothing may be."""
        kind = _header(scope, b"content-type").partition(";")[0].strip().lower()
        if kind not in ("", "application/json") and not kind.endswith("+json"):
            raise MediaTypeError(
                f'the body has the content type "{kind[:_SHOWN]}"; send JSON, with content-type: application/json',
                code="unsupported_content_type",
            )

    def answering(self, scope: Scope, send: Send) -> Send:
        """A `send` that says in the head of the response whether the page that asked may read it."""
        if not self._origins:
            return send
        added: Headers = [(b"vary", b"origin")]
        origin = _header(scope, b"origin")
        if self._allows(origin):
            added += [(b"access-control-allow-origin", origin.encode("latin-1")), _EXPOSED]

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        return answer

    def _check_host(self, scope: Scope) -> None:
        host = _header(scope, b"host")
        if not (self._checks_host and host):  # a browser always names one
            return
        name = _name_of(host.lower())
        if not (_is_address(name) or _fits(name.removesuffix("."), self._hosts)):
            raise MisdirectedError(
                f'this proxy does not answer for the host "{host[:_SHOWN]}"; '
                "if it is reached by this name, add the name to the setting hosts",
                code="unknown_host",
            )

    def check_origin(self, scope: Scope) -> None:
        """Raises ForbiddenError if the request may act and comes from a page of another origin."""
        origin, site = _header(scope, b"origin"), _header(scope, b"sec-fetch-site")
        if scope["method"] in _SAFE or self._allows(origin) or site in ("same-origin", "none"):
            return
        if site or (origin and not _same(origin, _header(scope, b"host"))):
            raise _foreign(origin)

    def _preflight(self, scope: Scope, method: str) -> Headers:
        """What a page wants to send is allowed as it asks for it: SDKs send headers of their own, more with each
        version, and an allow-list decides which of them reach an upstream.
        """
        origin = _header(scope, b"origin")
        if not self._allows(origin):
            raise _foreign(origin)
        asked = _header(scope, b"access-control-request-headers").encode("latin-1")
        return [
            (b"access-control-allow-methods", method.encode("latin-1")),
            *([(b"access-control-allow-headers", asked)] if asked else ()),
            (b"access-control-max-age", _REMEMBERED),
            (b"vary", b"access-control-request-method, access-control-request-headers"),
        ]

    def _allows(self, origin: str) -> bool:
        return bool(origin) and _fits(origin.lower(), self._origins)


def _foreign(origin: str) -> ForbiddenError:
    return ForbiddenError(
        f"web pages of {origin[:_SHOWN] or 'other sites'} may not use this proxy; "
        "if this one should, add its origin to the setting cors_origins",
        code="foreign_origin",
    )


def _header(scope: Scope, wanted: bytes) -> str:
    """The first header of this name; empty if there is none."""
    return next((value for name, value in scope["headers"] if name.lower() == wanted), b"").decode("latin-1")


def _name_of(host: str) -> str:
    """A host without its port, and without brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _fits(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _same(origin: str, host: str) -> bool:
    """Whether an origin is that of the host. The scheme does not count: TLS may end in front of us."""
    scheme, _, own = origin.lower().partition("://")
    port = _DEFAULT_PORTS.get(scheme)
    return bool(own) and own.removesuffix(f":{port}") == host.lower().removesuffix(f":{port}")
