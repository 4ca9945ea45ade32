"""Upstreams with fallbacks: the order in which they are tried, and the failures that cause the next one to be tried.

A failure is a problem that another upstream might not have: no connection, silence, a response that ends before its
first byte, a status that means that the server cannot respond now, or a web page in place of a reply. The same request
is then sent to the next upstream. Once a byte of the response's body has arrived, this is no longer possible, because
the client may already have received it.
"""

import logging
import random
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import define, field, frozen

from streamtool.asgi.request_body import ClientLeft, read_body
from streamtool.asgi.types import ASGIApp, ASGIMessage, Receive, Scope, Send
from streamtool.core import sse
from streamtool.core.errors import UpstreamError
from streamtool.settings import LimitSettings, UpstreamSettings
from streamtool.upstream.circuit import Circuit, CircuitListener

_FAILURES: Final = frozenset((429, 500, 502, 503, 504, 529))
"""Statuses that cause the next upstream to be tried."""
_ERROR: Final = 300
"""The lowest status of a response that is not a reply."""
_BLANK: Final = sse.BOM + b" \t\r\n"
"""Bytes that may precede a web page."""
_MAX_BLANK: Final = 4096
"""Maximum number of these bytes to buffer, since some servers send blank lines until they have a reply."""

INTERRUPTIONS: Final = "streamtool.interruptions"
"""Scope key for the upstreams that have interrupted the reply (`Interruptions`)."""

_log = logging.getLogger("streamtool")


@define(eq=False)
class Interruptions:
    """The upstreams that have not finished a reply, which then continues elsewhere if possible."""

    counts: dict[str, int] = field(factory=dict)
    """Name of an upstream → number of attempts that it has not finished."""
    now: bool = False
    """Whether another upstream should serve the next attempt, although this one may have reported no failure."""
    died: bool = False
    """Whether the upstream of the current attempt has failed."""


@frozen(eq=False)
class Alternative:
    """One of the upstreams to try."""

    settings: UpstreamSettings
    app: ASGIApp
    circuit: Circuit


class Failover:
    """An upstream and its fallbacks, as one ASGI app."""

    def __init__(self, alternatives: Sequence[Alternative], limits: LimitSettings) -> None:
        self._alternatives = alternatives
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request to each upstream in turn until one succeeds.

        Raises TooLargeError, or the UpstreamError of the last upstream.
        """
        try:
            body = await read_body(scope, receive, self._limits)
        except ClientLeft:
            return
        known = scope.get(INTERRUPTIONS) or Interruptions()
        order = self._order(known)
        for place, one in enumerate(order):
            pieces = [body]

            async def replay(pieces: list[bytes] = pieces) -> ASGIMessage:
                return {"type": "http.request", "body": pieces.pop()} if pieces else await receive()

            attempt = _Attempt(send, one, known, last=place == len(order) - 1, pages=scope["method"] != "POST")
            try:
                await one.app(scope, replay, attempt.send)
            except UpstreamError as error:
                attempt.fail(error)
                if attempt.begun or attempt.last:
                    raise
            # The caller cancels the request once it has what it needs, so this is the usual end of a reply that the
            # rules cut, and of an error response.
            except BaseException:
                attempt.end()
                raise
            else:
                attempt.end()
                return

    def _order(self, known: Interruptions) -> list[Alternative]:
        """Return the upstreams in the order in which to try them, with the failing ones last, preceded by those that
        have interrupted the reply.
        """
        alternatives = list(self._alternatives)
        first = alternatives[0].settings
        if first.balance:
            weights = [one.settings.weight for one in alternatives]
            chosen = random.choices(alternatives, weights)[0]
            alternatives.sort(key=lambda one: one is not chosen)
        return sorted(alternatives, key=lambda one: (not one.circuit.admits, known.counts.get(one.settings.name, 0)))


def circuits_of(upstreams: Mapping[str, UpstreamSettings], listener: CircuitListener | None) -> dict[str, Circuit]:
    """Return the circuits of the upstreams, by name. Only circuits of upstreams with a health check or a role in
    failover report to the listener.
    """
    after = {name for upstream in upstreams.values() for name in upstream.fallbacks}
    after |= {name for name, upstream in upstreams.items() if upstream.fallbacks or upstream.health is not None}
    return {
        name: Circuit(upstream.circuit, name=name, listener=listener if name in after else None)
        for name, upstream in upstreams.items()
    }


def with_fallbacks(
    upstreams: Mapping[str, UpstreamSettings],
    apps: Mapping[str, ASGIApp],
    circuits: Mapping[str, Circuit],
    limits: LimitSettings,
) -> dict[str, ASGIApp]:
    """Return the upstreams' apps by name, combined with their fallbacks if they have any."""
    found = dict(apps)
    for name, upstream in upstreams.items():
        if upstream.fallbacks:
            names = (name, *upstream.fallbacks)
            found[name] = Failover([Alternative(upstreams[one], apps[one], circuits[one]) for one in names], limits)
    return found


class _Attempt:
    """One upstream's response on its way to the client. The head is buffered until the first byte of the body.

    The upstream's circuit records the result once, as soon as it is known, even if the caller then cancels the request.
    An attempt that the caller abandons before any response has no result.
    """

    def __init__(
        self, send: Send, upstream: Alternative, interruptions: Interruptions, *, last: bool, pages: bool
    ) -> None:
        self._send = send
        self._pages = pages
        """Whether the response may be a web page."""
        self._interruptions = interruptions
        self._upstream = upstream
        upstream.circuit.record_attempt()
        self._head: ASGIMessage | None = None
        self._blank = b""
        """The beginning of the body, which may precede a web page."""
        self._known = False
        """Whether the result has been recorded."""
        self.last = last
        """Whether this is the last upstream."""
        self.begun = False
        """Whether the client has received any of the response."""

    async def send(self, message: ASGIMessage) -> None:
        """Pass a message on. Raises UpstreamError if the status or the first byte is a failure, unless this is the last
        upstream.
        """
        if self.begun:
            await self._send(message)
        elif message["type"] == "http.response.start":
            if message["status"] in _FAILURES:
                self._fail_early(f"it responded with status {message['status']}")
            self._head = message
        elif message.get("body") or not message.get("more_body"):
            body = self._blank + message.get("body", b"")
            page_possible = not self._pages and self._head is not None and self._head["status"] < _ERROR
            if page_possible:
                first = body.lstrip(_BLANK)[:1]
                if not first and message.get("more_body") and len(body) <= _MAX_BLANK:
                    self._blank = body
                    return
                if first == b"<":
                    self._fail_early("it responded with a web page")
            self.begun = True
            if self._head is not None:
                await self._send(self._head)
            await self._send({**message, "body": body})

    def _fail_early(self, why: str) -> None:
        """Record a failure before any of the response has been sent. Raises UpstreamError, unless this is the last
        upstream.
        """
        error = UpstreamError(why)
        if not self.last:
            raise error
        self.fail(error)  # now, since the caller may cancel the request as soon as it has the response

    def fail(self, error: UpstreamError) -> None:
        """Record a failure."""
        if self._known:
            return
        self._interruptions.now = self._interruptions.now or self.begun
        self._note_interruption()
        self._known = True
        name, circuit = self._upstream.settings.name, self._upstream.circuit
        _log.warning("upstream %s: %s", name, error.message)
        if circuit.record_failure():
            seconds = self._upstream.settings.circuit.seconds
            _log.warning("upstream %s: skipped for %g seconds after repeated failures", name, seconds)

    def end(self) -> None:
        """Record a success if the response has begun. If not, nothing is known about the upstream."""
        self._note_interruption()
        if self._interruptions.died:
            self.fail(UpstreamError("it did not finish its reply"))
        if self._known or not self.begun:
            return
        self._known = True
        if self._upstream.circuit.record_success():
            _log.info("upstream %s: responding again", self._upstream.settings.name)

    def _note_interruption(self) -> None:
        known, name = self._interruptions, self._upstream.settings.name
        if known.now:
            known.counts[name] = known.counts.get(name, 0) + 1
            known.now = False
