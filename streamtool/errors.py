"""The errors of streamtool: one tree, each with the HTTP status that a server should answer.

    StreamtoolError
    ├── SettingsError            a setting is unknown, contradictory or unreadable          (exit code 2)
    ├── RequestError       400   the client's request cannot be read or honoured
    │   ├── AuthenticationError  401
    │   ├── NotFoundError        404
    │   ├── MethodError          405
    │   └── TooLargeError        413
    ├── AgentError               an agent came to no answer
    └── UpstreamError      502   the upstream refused, lied or died
        ├── UpstreamRefused      the upstream's own status, when it is the caller's business
        └── UpstreamTimeout      504

A message is one sentence that says what to do. `param` names the place in the request (`messages[2].role`), `code`
is a short machine-readable word; both may be None. Protocol modules turn an error into their own shape. An error that
`quotes` holds words of the upstream or of the model: the client is shown them, a log is not.
"""

from typing import Self


class StreamtoolError(Exception):
    """Base of all errors that streamtool raises on purpose."""

    status: int = 500
    kind: str = "server_error"
    quotes: bool = False

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code

    def quoting(self) -> Self:
        """The same error, marked as one that holds somebody else's words."""
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


class NotFoundError(RequestError):
    """Nothing is served at this path."""

    status = 404
    kind = "not_found_error"


class MethodError(RequestError):
    """The path exists, the method does not."""

    status = 405


class TooLargeError(RequestError):
    """The request exceeds a limit."""

    status = 413
    kind = "request_too_large"


class AgentError(StreamtoolError):
    """An agent came to no answer: too many turns, a model that keeps to no form, a server that cannot be opened."""


class UpstreamError(StreamtoolError):
    """The upstream refused, lied or died; the fault is not the caller's."""

    status = 502
    kind = "upstream_error"


class UpstreamRefused(UpstreamError):
    """The upstream answered with an error status that is the caller's business: it is passed on as it came."""

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
