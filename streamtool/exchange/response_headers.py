"""The status and headers of the response to the client: our own headers, and most of the upstream's."""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from attrs import define, field

from streamtool.core.errors import StreamtoolError
from streamtool.exchange.interfaces import ResponseHead
from streamtool.exchange.plan import Plan
from streamtool.exchange.record import PromptCut
from streamtool.protocols.interfaces import ClientProtocol, Headers

VERDICT_HEADER: Final = b"x-streamtool-verdict"
_DROPPED: Final = frozenset(
    (
        b"content-length",
        b"content-encoding",
        b"transfer-encoding",
        b"content-type",
        b"cache-control",
        b"etag",
        b"connection",
        b"keep-alive",
        b"x-accel-buffering",
        b"x-request-id",
        b"request-id",
        b"trailer",
        b"x-streamtool-mode",
        b"x-streamtool-format",
        b"x-streamtool-attempts",
        b"x-streamtool-unmet",
        b"x-streamtool-truncated",
        VERDICT_HEADER,
    )
)
_RETRY_HINTS: Final = frozenset((b"retry-after", b"retry-after-ms", b"x-should-retry"))


@define(eq=False)
class ResponseHeaders:
    """The headers for the response to the client, as far as they are known."""

    _protocol: ClientProtocol
    plan: Plan
    request_id: str
    """The upstream's request id, or one that was generated for the exchange."""
    _upstream: Headers = field(default=(), init=False)
    attempts: int = field(default=0, init=False)
    unmet: str | None = field(default=None, init=False)
    """The cause of the last attempt's failure, if its reply is delivered anyway."""
    prompt_cut: PromptCut | None = field(default=None, init=False)
    """How much of the prompt the upstream read, if it cut the prompt."""
    notes: Callable[[], Headers] = field(default=lambda: (), init=False)
    """Returns further headers for a reply that is sent in one piece."""

    def take(self, headers: Headers) -> None:
        """Adopt the upstream's headers, whose names are in lower case. They replace the headers of the previous
        attempt.
        """
        self._upstream = tuple((name, value) for name, value in headers if name not in _DROPPED)
        found = dict(headers)
        told = found.get(b"x-request-id") or found.get(b"request-id") or b""
        self.request_id = told.decode("latin-1") or self.request_id

    def stream(self) -> ResponseHead:
        """Return the head of a stream."""
        return ResponseHead(200, (*self._upstream, *self._protocol.STREAM_HEADERS, *self._own_headers()))

    def complete(self, body: bytes) -> ResponseHead:
        """Return the head of a reply that is sent in one piece."""
        return ResponseHead(200, (*self._upstream, *self._body_headers(body), *self._own_headers(), *self.notes()))

    def failure(self, error: StreamtoolError, body: bytes) -> ResponseHead:
        """Return the head of an error response."""
        hints = tuple(pair for pair in self._upstream if pair[0] in _RETRY_HINTS)
        own = (*self._own_headers(), *self.notes())
        return ResponseHead(error.status, (*hints, *error.headers, *self._body_headers(body), *own))

    def _body_headers(self, body: bytes) -> Headers:
        return (*self._protocol.COMPLETE_HEADERS, (b"content-length", str(len(body)).encode()))

    def _own_headers(self) -> Headers:
        plan = self.plan
        return (
            (self._protocol.REQUEST_ID, self.request_id.encode("latin-1", "replace")),
            *_plan_headers(plan.mode, plan.model.format if plan.emulates else None, self.attempts),
            *(((b"x-streamtool-unmet", self.unmet.encode()),) if self.unmet is not None else ()),
            *(((b"x-streamtool-truncated", str(self.prompt_cut).encode()),) if self.prompt_cut is not None else ()),
        )


@lru_cache(maxsize=64)
def _plan_headers(mode: str, format: str | None, attempts: int) -> Headers:
    """Return the headers that describe how a request is served. Replies share them while their streams are open."""
    return (
        (b"x-streamtool-mode", mode.encode()),
        *(((b"x-streamtool-format", format.encode()),) if format is not None else ()),
        (b"x-streamtool-attempts", str(attempts).encode()),
    )
