"""An upstream's response with an error status: its body, as far as it is read, and the error that it amounts to."""

from typing import Final

from streamtool.errors import UpstreamError, UpstreamRefused
from streamtool.protocols.interfaces import UpstreamProtocol

ERROR_BODY: Final = 64 * 1024
"""Bytes of an upstream's error body that are read."""
_AUTH_KINDS: Final = {401: "authentication_error", 403: "permission_error"}


class ErrorResponse:
    """One such response."""

    __slots__ = ("_body", "status")

    def __init__(self, status: int) -> None:
        self.status = status
        self._body = b""

    def feed(self, data: bytes) -> bool:
        """Whether enough has come."""
        self._body += data[: ERROR_BODY - len(self._body)]
        return len(self._body) == ERROR_BODY

    def error(self, upstream: UpstreamProtocol) -> UpstreamError:
        """What it amounts to."""
        if not 400 <= self.status < 600:
            return UpstreamError(f"the upstream answered with status {self.status}")
        told = upstream.read_error(self.status, self._body)
        kind = _AUTH_KINDS.get(self.status)
        if kind is not None:  # whoever holds the key decides whose fault this is; here it is the client's
            return UpstreamRefused(told.message, status=self.status, kind=kind, code=told.code).quoting()
        return told
