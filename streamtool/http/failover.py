"""Several upstreams of which each may stand in for another: the order in which they are asked, and what counts as a
failure.

A failure is what another upstream may do better: no connection, silence, an answer that breaks off before its first
byte, and the statuses by which a server says that it cannot serve now. The next one is asked then, with the same
request. Once a byte of an answer has come there is no way back: its client may have it.
"""

import logging
import random
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import frozen

from streamtool.errors import UpstreamError
from streamtool.http.asgi import ASGIApp, Message, Receive, Scope, Send
from streamtool.http.request_body import ClientLeft, read_body
from streamtool.settings import LimitSettings, UpstreamSettings
from streamtool.state.circuit import Circuit, CircuitListener

_FAILURES: Final = frozenset((429, 500, 502, 503, 504, 529))
"""Statuses after which another upstream is asked."""

_log = logging.getLogger("streamtool")


@frozen(eq=False)
class Alternative:
    """One of the upstreams."""

    settings: UpstreamSettings
    app: ASGIApp
    circuit: Circuit


class Failover:
    """An upstream and its fallbacks, as one ASGI app."""

    def __init__(self, alternatives: Sequence[Alternative], limits: LimitSettings) -> None:
        self._alternatives = alternatives
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on to the first that does not fail. Raises the last one's UpstreamError; TooLargeError."""
        try:
            body = await read_body(scope, receive, self._limits)
        except ClientLeft:
            return
        order = self._order()
        for place, one in enumerate(order):
            pieces = [body]

            async def replay(pieces: list[bytes] = pieces) -> Message:
                return {"type": "http.request", "body": pieces.pop()} if pieces else await receive()

            attempt = _Attempt(send, last=place == len(order) - 1)
            one.circuit.tried()
            try:
                await one.app(scope, replay, attempt.send)
            except UpstreamError as error:
                self._failed(one, error)
                if attempt.begun or attempt.last:
                    raise
            else:
                if attempt.status in _FAILURES:
                    self._failed(one, attempt.refusal())
                elif attempt.status and one.circuit.worked():
                    _log.info("upstream %s: answers again", one.settings.name)
                return

    def _order(self) -> list[Alternative]:
        """In which order they are asked. Those that are known to fail come last, if at all."""
        alternatives = list(self._alternatives)
        first = alternatives[0].settings
        if first.balance:
            weights = [one.settings.weight for one in alternatives]
            chosen = random.choices(alternatives, weights)[0]
            alternatives.sort(key=lambda one: one is not chosen)
        return [one for one in alternatives if one.circuit.admits] or alternatives

    def _failed(self, one: Alternative, error: UpstreamError) -> None:
        _log.warning("upstream %s: %s", one.settings.name, error.message)
        if one.circuit.failed():
            seconds = one.settings.circuit.seconds
            _log.warning("upstream %s: not asked for %g seconds, as it fails", one.settings.name, seconds)


def circuits_of(upstreams: Mapping[str, UpstreamSettings], listener: CircuitListener | None) -> dict[str, Circuit]:
    """The circuits of upstreams, by name. The listener hears of those that are looked after."""
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
    """The apps of upstreams, by name; those with fallbacks with these behind them."""
    found = dict(apps)
    for name, upstream in upstreams.items():
        if upstream.fallbacks:
            names = (name, *upstream.fallbacks)
            found[name] = Failover([Alternative(upstreams[one], apps[one], circuits[one]) for one in names], limits)
    return found


class _Attempt:
    """What one upstream answers, on its way to the client. The header waits for the first byte."""

    __slots__ = ("_head", "_send", "begun", "last", "status")

    def __init__(self, send: Send, *, last: bool) -> None:
        self._send = send
        self._head: Message | None = None
        self.last = last
        """Nobody else can be asked."""
        self.status = 0
        self.begun = False
        """The client has something of it."""

    def refusal(self) -> UpstreamError:
        """The error of its status."""
        return UpstreamError(f"it answered with status {self.status}")

    async def send(self, message: Message) -> None:
        """Raises UpstreamError for an answer that is a failure, unless it is the last one."""
        if self.begun:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self.status = message["status"]
            if self.status in _FAILURES and not self.last:
                raise self.refusal()
            self._head = message
        elif message.get("body") or not message.get("more_body"):
            self.begun = True
            if self._head is not None:
                await self._send(self._head)
            await self._send(message)
