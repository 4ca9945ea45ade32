"""An upstream's response with an error status: its body, as far as it is read, and the error that it amounts to."""

import re
from typing import Final

from streamtool.errors import UpstreamError, UpstreamRefused
from streamtool.protocols.interfaces import UpstreamProtocol

ERROR_BODY: Final = 64 * 1024
"""Bytes of an upstream's error body that are read."""
_TOO_LONG: Final = re.compile(
    r"prompt is too long|maximum (?:context|prompt|input|model) length|model'?s (?:maximum )?context length"
    r"|exceeds? the (?:available )?context (?:size|window|length)|greater than the context length"
    r"|input token count.{0,40}exceeds the maximum|context[_ ]length[_ ]exceeded",
    re.IGNORECASE,
)
"""How upstreams say that a prompt does not fit: vLLM, SGLang, llama.cpp, LM Studio, Gemini, Anthropic, OpenAI, xAI."""
_TOO_LONG_STATUSES: Final = frozenset((400, 413, 422, 500))
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
        if told.status in _TOO_LONG_STATUSES and _TOO_LONG.search(told.message[:4000]) is not None:
            words = f"prompt is too long: {told.message}"
            kind = "invalid_request_error"
            return UpstreamRefused(words, status=400, kind=kind, code="context_length_exceeded").quoting()
        return told
