"""An upstream's error response: its body, up to a limit, and the error that it represents."""

import re
from typing import Final

from attrs import define, field

from streamtool.core.errors import CONTEXT_EXCEEDED, StreamtoolError, UpstreamError, UpstreamRefused
from streamtool.protocols.interfaces import UpstreamProtocol
from streamtool.protocols.shared.wire import NO_MESSAGE
from streamtool.settings import UpstreamSettings

ERROR_BODY: Final = 64 * 1024
"""Maximum number of bytes of an error body to read."""
_TOO_LONG: Final = re.compile(
    r"prompt is too long|maximum (?:context|prompt|input|model) length|model'?s (?:maximum )?context length"
    r"|exceeds? the (?:available )?context (?:size|window|length)|greater than the context length"
    r"|input token count.{0,40}exceeds the maximum|context[_ ]length[_ ]exceeded",
    re.IGNORECASE,
)
"""Matches error messages about a prompt that is too long: from vLLM, SGLang, llama.cpp, LM Studio, Gemini, Anthropic,
OpenAI and xAI.
"""
_TOO_LONG_STATUSES: Final = frozenset((400, 413, 422, 500))
_OF_TEMPLATE: Final = re.compile(
    r"roles must alternate|system (?:role|message)s? (?:is |are )?(?:not supported|must be)|no user query found"
    r"|only user(?: and assistant|, assistant)|jinja (?:exception|error)|raise_exception|TemplateError|chat template",
    re.IGNORECASE,
)
"""Matches errors raised by chat templates (of Mistral, Gemma and Qwen), as reported by llama.cpp, vLLM and SGLang."""
_HINT: Final = 'a chat template raised this; roles = "strict", system_role = false or media = false may help'
_SILENT: Final = frozenset((NO_MESSAGE, *(f"The upstream returned status {status}." for status in range(400, 600))))
"""Messages of errors that the upstream reports without a message."""
_MISDIRECTED: Final = frozenset((301, 302, 303, 307, 308, 404, 405, 501))
"""Statuses that mostly mean that the request was sent to the wrong place."""
_DOUBT: Final = "; are url and protocol right?"
_AUTH_KINDS: Final = {401: "authentication_error", 403: "permission_error"}


_COMPACTION_PHRASE = "prompt is too long"
"""A phrase that makes agents compact the conversation."""


@define(eq=False)
class ErrorResponse:
    """An error response, as far as it has been read."""

    status: int
    _body: bytes = field(default=b"", init=False)

    def feed(self, data: bytes) -> bool:
        """Add data and return whether enough has been read."""
        self._body += data[: ERROR_BODY - len(self._body)]
        return len(self._body) == ERROR_BODY

    def error(self, upstream: UpstreamProtocol) -> UpstreamError:
        """Return the error that the response represents, for the client."""
        if not 400 <= self.status < 600:
            return UpstreamError(f"the upstream answered with status {self.status}")
        told = upstream.read_error(self.status, self._body)
        kind = _AUTH_KINDS.get(self.status)
        if kind is not None:  # its meaning depends on whose key was rejected; here it was the client's
            return UpstreamRefused(told.message, status=self.status, kind=kind, code=told.code).quoting()
        if told.status in _TOO_LONG_STATUSES and _TOO_LONG.search(told.message[:4000]) is not None:
            words = f"{_COMPACTION_PHRASE}: {told.message.removeprefix(f'{_COMPACTION_PHRASE}: ')}"
            kind = "invalid_request_error"
            return UpstreamRefused(words, status=400, kind=kind, code=CONTEXT_EXCEEDED).quoting()
        if isinstance(told, UpstreamRefused) and _OF_TEMPLATE.search(told.message[:4000]) is not None:
            words = f"{told.message} ({_HINT})"
            return UpstreamRefused(
                words, status=told.status, kind=told.kind, param=told.param, code=told.code
            ).quoting()
        return told


def is_misdirected(error: StreamtoolError, status: int) -> bool:
    """Return whether an error response mostly means that the request was sent to the wrong path. A refusal of an
    unknown model has the same status.
    """
    return status in _MISDIRECTED and "model" not in error.message.lower()


def attribute(error: StreamtoolError, status: int, upstream: UpstreamSettings | None, *, misdirected: bool) -> None:
    """Begin the message of an error response with the upstream's URL and status. If the request was `misdirected`, the
    message ends with a question.

    The URL is omitted if the upstream has fallbacks, because any of them may have answered. If the app that the
    middleware wraps has answered (None), the message stays as it is, as does that about a prompt that is too long,
    because agents look for its beginning.
    """
    if upstream is None or error.code == CONTEXT_EXCEEDED:
        return
    where = "" if upstream.fallbacks or upstream.server is None else f" ({upstream.url})"
    told = f": {error.message}" if error.quotes and error.message not in _SILENT else ""
    if misdirected:
        told = told.rstrip(".")
    error.message = f"the upstream{where} answered {status}{told}{_DOUBT if misdirected else ''}"
