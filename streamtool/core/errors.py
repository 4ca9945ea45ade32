"""The errors of streamtool: one hierarchy, each class with the HTTP status that a server should respond with.

    StreamtoolError
    ├── SettingsError            a setting is unknown, contradictory or unreadable          (exit code 2)
    ├── RequestError       400   the client's request is invalid or cannot be fulfilled
    │   ├── AuthenticationError  401
    │   ├── ForbiddenError       403
    │   ├── NotFoundError        404
    │   ├── MethodError          405
    │   ├── RequestTimeout       408
    │   ├── TooLargeError        413
    │   ├── MediaTypeError       415
    │   ├── MisdirectedError     421
    │   ├── TooManyError         429
    │   └── HeaderTooLargeError  431
    ├── UnavailableError   503   the server has too many open requests, or is shutting down
    ├── ReplyCancelled           the client has cancelled a reply that was made in the background
    ├── AgentError               an agent could not produce an answer
    ├── StoreError         503   the store of earlier replies cannot be read at the moment
    └── UpstreamError      502   the upstream rejected the request, sent an invalid reply, or failed
        ├── LoopError        508   this server is its own upstream
        ├── UpstreamRefused      the upstream's own status, if the client can act on it
        └── UpstreamTimeout      504

A message is one sentence that explains what to do. `param` names the field of the request (`messages[2].role`), and
`code` is a short machine-readable word; both are optional. Each protocol formats errors in its own way; `headers` are
sent with the status. If `quotes` is true, the message contains text from the upstream or the model: it is sent to the
client, but not logged.
"""

from collections.abc import Iterable
from typing import Final, Self

CONTEXT_EXCEEDED: Final = "context_length_exceeded"
"""Code of the error for a prompt that does not fit into the model's window."""
_LATER = ((b"retry-after", b"2"),)


class StreamtoolError(Exception):
    """The base class of all errors that streamtool raises deliberately."""

    status: int = 500
    kind: str = "server_error"
    quotes: bool = False
    headers: Iterable[tuple[bytes, bytes]] = ()

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code

    def quoting(self) -> Self:
        """Mark the error's message as quoting the upstream or the model, and return the error."""
        self.quotes = True
        return self


class SettingsError(StreamtoolError):
    """A setting is unknown, contradictory or unreadable."""

    line: int | None = None
    """The line of the settings file, if the error is about one."""


class RequestError(StreamtoolError):
    """The client's request is invalid or cannot be fulfilled."""

    status = 400
    kind = "invalid_request_error"


class AuthenticationError(RequestError):
    """The client key is missing or wrong."""

    status = 401
    kind = "authentication_error"


class ForbiddenError(RequestError):
    """The request comes from a web page that is not allowed to send it."""

    status = 403
    kind = "permission_error"


class NotFoundError(RequestError):
    """Nothing is served at this path."""

    status = 404
    kind = "not_found_error"


class MethodError(RequestError):
    """The path does not support the request's method."""

    status = 405


class RequestTimeout(RequestError):
    """The request did not arrive in time."""

    status = 408
    kind = "timeout_error"


class TooLargeError(RequestError):
    """The request exceeds a limit."""

    status = 413
    kind = "request_too_large"


class MediaTypeError(RequestError):
    """The media type of the body is not supported."""

    status = 415


class MisdirectedError(RequestError):
    """The request names a host that this server does not serve."""

    status = 421


class TooManyError(RequestError):
    """The client has too many open requests."""

    status = 429
    kind = "rate_limit_error"
    headers = _LATER


class HeaderTooLargeError(RequestError):
    """The header section of the request exceeds a limit."""

    status = 431
    kind = "request_too_large"


class UnavailableError(StreamtoolError):
    """The server cannot handle the request at the moment; the client may send it again."""

    status = 503
    kind = "overloaded_error"
    headers = _LATER


class ReplyCancelled(StreamtoolError):
    """The client has cancelled a reply that was being generated in the background."""


class AgentError(StreamtoolError):
    """An agent could not produce an answer: it took too many turns, the model's replies had the wrong form, or an MCP
    server could not be started.
    """


class StoreError(StreamtoolError):
    """The store of earlier replies cannot be read at the moment; the client may try again."""

    status = 503


class UpstreamError(StreamtoolError):
    """The upstream rejected the request, sent an invalid reply, or failed; the client is not at fault."""

    status = 502
    kind = "upstream_error"


class LoopError(UpstreamError):
    """The server is its own upstream, directly or through others."""

    status = 508


class UpstreamRefused(UpstreamError):
    """The upstream responded with an error status that the client can act on; it is passed on unchanged."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        kind: str = "upstream_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.status = status
        self.kind = kind


class UpstreamTimeout(UpstreamError):
    """The upstream did not respond in time."""

    status = 504
    kind = "timeout_error"
