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
_OF_TEMPLATE: Final = re.compile(
    r"roles must alternate|system (?:role|message)s? (?:is |are )?(?:not supported|must be)|no user query found"
    r"|only user(?: and assistant|, assistant)|jinja (?:exception|error)|raise_exception|TemplateError|chat template",
    re.IGNORECASE,
)
"""How an error of a chat template reads: those of Mistral, Gemma, Qwen; llama.cpp, vLLM, SGLang."""
_HINT: Final = 'a chat template raised this; roles = "strict", system_role = false or media = false may help'
_AUTH_KINDS: Final = {401: "authentication_error", 403: "permission_error"}


_TELLS = "prompt is too long"
"""By which agents know that they have to compact their conversation."""


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
            words = f"{_TELLS}: {told.message.removeprefix(f'{_TELLS}: ')}"
            kind = "invalid_request_error"
            return UpstreamRefused(words, status=400, kind=kind, code="context_length_exceeded").quoting()
        if isinstance(told, UpstreamRefused) and _OF_TEMPLATE.search(told.message[:4000]) is not None:
            words = f"{told.message} ({_HINT})"
            return UpstreamRefused(
                words, status=told.status, kind=told.kind, param=told.param, code=told.code
            ).quoting()
        return told
