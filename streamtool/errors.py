"""The errors of streamtool: one tree, each with the HTTP status that a server should answer.

    StreamtoolError
    ├── SettingsError            a setting is unknown, contradictory or unreadable          (exit code 2)
    ├── RequestError       400   the client's request cannot be read or honoured
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
    ├── UnavailableError   503   the server has too many requests open, or is shutting down
    ├── ReplyCancelled           the client has cancelled the reply, which was made in the background
    ├── AgentError               an agent found no answer
    ├── StoreError         503   what is remembered of earlier replies cannot be read at the moment
    └── UpstreamError      502   the upstream refused, sent an invalid reply, or failed
        ├── UpstreamRefused      the upstream's own status, if the client can act on it
        └── UpstreamTimeout      504

A message is one sentence that says what to do. `param` names the place in the request (`messages[2].role`), `code`
is a short machine-readable word; both may be None. Each protocol writes an error in its own shape; `headers` travel
with the status. If `quotes` is true, the message contains words of the upstream or of the model: the client receives
them, the log does not.
"""

from collections.abc import Iterable
from typing import Self

_LATER = ((b"retry-after", b"2"),)


class StreamtoolError(Exception):
    """Base of all errors that streamtool raises on purpose."""

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
        """The same error, marked as one whose message quotes the upstream or the model."""
        self.quotes = True
        return self


class SettingsError(StreamtoolError):
    """A setting is unknown, contradictory or unreadable."""


class RequestError(StreamtoolError):
    """The client's request cannot be read or honoured."""

    status = 400
    kind = "invalid_request_error"


class AuthenticationError(RequestError):
    """The client key is missing or wrong."""

    status = 401
    kind = "authentication_error"


class ForbiddenError(RequestError):
    """The request comes from a web page that may not send it."""

    status = 403
    kind = "permission_error"


class NotFoundError(RequestError):
    """Nothing is served at this path."""

    status = 404
    kind = "not_found_error"


class MethodError(RequestError):
    """The path exists, the method does not."""

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
    """The body is of a type that is not read here."""

    status = 415


class MisdirectedError(RequestError):
    """The request is for a host that is not served here."""

    status = 421


class TooManyError(RequestError):
    """The client has too many requests open."""

    status = 429
    kind = "rate_limit_error"
    headers = _LATER


class HeaderTooLargeError(RequestError):
    """The header of the request exceeds a limit."""

    status = 431
    kind = "request_too_large"


class UnavailableError(StreamtoolError):
    """The server cannot serve the request at this moment; the client may send it again."""

    status = 503
    kind = "overloaded_error"
    headers = _LATER


class ReplyCancelled(StreamtoolError):
    """The client has cancelled the reply, which was made in the background."""


class AgentError(StreamtoolError):
    """An agent found no answer: too many turns, replies in no accepted form, an MCP server that cannot be opened."""


class StoreError(StreamtoolError):
    """What is remembered of earlier replies cannot be read at the moment; the client may try again."""

    status = 503


class UpstreamError(StreamtoolError):
    """The upstream refused, sent an invalid reply, or failed; the client is not at fault."""

    status = 502
    kind = "upstream_error"


class UpstreamRefused(UpstreamError):
    """The upstream answered with an error status that the client can act on; it is passed on as it came."""

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
    """The upstream did not answer in time."""

    status = 504
    kind = "timeout_error"
