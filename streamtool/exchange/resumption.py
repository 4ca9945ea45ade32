"""Resumption of a reply whose upstream died, reported an error or reached its own limit in the middle.

The next attempt's prompt ends with the text that the model has written, cut back to a position between two tokens
(`split_at_seam`). The model writes the part that was cut off again; it is compared with the original as it arrives, and
dropped (`ContinuationReader`). The same parser then reads the text that follows, so the client sees one reply.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final

from attrs import frozen

from streamtool.core.conversation import Conversation
from streamtool.core.errors import StreamtoolError, UpstreamError
from streamtool.core.reply import (
    Reason,
    ReplyEvent,
    ReplyFailure,
    ReplyFinish,
    ReplyReasoningDelta,
    ReplyStart,
    ReplyTextDelta,
    Usage,
    UsageReport,
)
from streamtool.exchange.interfaces import Interruption
from streamtool.exchange.plan import Plan
from streamtool.forcing import CLIENT_CONSTRAINTS
from streamtool.protocols.interfaces import UpstreamReader

CONTRADICTED: Final = "continuation_differs"
_OURS: Final = frozenset(("reply_too_large", "prompt_truncated"))
"""Codes of errors that our own limits and settings cause."""
_FAILED: Final = 500
"""The lowest status of a server that has failed."""
_TEMPORARY: Final = (408, 429)
"""Statuses below 500 of a server that may accept the same request later."""
_TAIL: Final = 512
"""Number of characters at the end of the text in which the seam is searched."""
_UNIT: Final = re.compile(
    r"""\s*(?:
        </?[^\s<>]{0,62}>? | \[/?[A-Z_]{2,40}\]?      # a marker that may be a single token
        | \\(?:u[0-9a-fA-F]{0,4}|[^u])?               # an escape in JSON
        | \d[\d.,]*
        | [\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]   # scripts without spaces between words
        | (?:(?![\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])\w){1,64}
        | [^\w\s<\\]{1,16}
    )""",
    re.VERBOSE,
)
"""A word, number, marker or run of punctuation, with the whitespace before it. Few tokens extend over its end."""


@frozen
class Resumption:
    """A reply that the next attempt continues."""

    cause: StreamtoolError | ReplyFinish
    """How the reply ends if it cannot be continued."""
    text: str
    """The text that the model has written in this attempt and in those that it continues."""
    cut: int
    """Position in the text: the prompt contains the part before it, and the model writes the rest again."""
    most: int | None
    """Maximum number of tokens that may follow, or None if the client has not limited them."""
    interruption: Interruption
    failures: int = 0
    """Number of attempts that have not continued the text."""

    @property
    def readings(self) -> tuple[str, ...]:
        """The ways in which the next reply may begin: with the part that was cut off, possibly without its leading
        whitespace, or, if the server repeats the prompt's end, with the whole text.
        """
        rest = self.text[self.cut :]
        return tuple(dict.fromkeys((rest, *((rest.lstrip(), self.text) if self.cut and rest.strip() else ()))))


def continues(plan: Plan, asked: Conversation, prompt: Conversation) -> bool:
    """Return whether the upstream continues the beginning of a reply, in this request with this prompt."""
    protocol, found = plan.upstream.NAME, plan.model.engine
    able = protocol == "completions" or (
        protocol in ("chat", "ollama") and found is not None and found.engine.prefill == "continued"
    )
    free = CLIENT_CONSTRAINTS.isdisjoint(asked.raw)
    return able and free and plan.emulates and asked.options.n == 1 and not _is_begun(prompt)


def _is_begun(prompt: Conversation) -> bool:
    """Return whether the client itself has begun the reply."""
    forced = prompt.forcing is not None and prompt.forcing.way == "prefill"
    return not forced and prompt.messages[-1].role == "assistant"


def may_be_continued(error: StreamtoolError) -> bool:
    """Return whether another attempt may continue the reply that ended with this error: if the upstream failed, but
    has not rejected the request.
    """
    if not isinstance(error, UpstreamError) or error.code in _OURS:
        return False
    return error.status >= _FAILED or error.status in _TEMPORARY


def split_at_seam(text: str, failures: int = 0) -> int:
    """Return the position of the cut in the text: before its last word, number, marker or run of punctuation, and
    before the whitespace in front of it. A word of more than 64 characters is cut inside. Each failure so far moves
    the position back by one word.

    The position is further back if the reply to the text before it could be taken for a repetition of that text.
    """
    start = max(0, len(text) - _TAIL)
    bounds = [found.start() for found in _UNIT.finditer(text, start)]
    if start:
        del bounds[:1]  # the tail may begin inside a word
    elif bounds:
        bounds[0] = 0
    left = failures
    for bound in reversed(bounds):
        rest = text[bound:]
        if bound and text.startswith((rest, rest.lstrip())):
            continue
        if not left:
            return bound
        left -= 1
    return start


class ContinuationReader:
    """A reader for an attempt that continues a reply. It drops the text that the client has already received.

    `on_continued` is called when all of that text has been written again; from then on, the wrapped reader can be used
    directly. If the reply differs from the text, it ends with a failure.
    """

    __slots__ = ("_at", "_on_continued", "_readings", "reader", "tool_names")

    def __init__(self, reader: UpstreamReader, readings: Iterable[str], on_continued: Callable[[], None]) -> None:
        self.reader = reader
        self.tool_names = reader.tool_names
        self._readings = list(readings)
        self._at = 0
        """Number of characters that have been compared."""
        self._on_continued = on_continued

    @property
    def usage(self) -> Usage | None:
        """Usage as last reported by the upstream."""
        return self.reader.usage

    def feed(self, data: bytes, /) -> list[ReplyEvent]:
        """Return the reply events that `data` completes."""
        return self._read(self.reader.feed(data))

    def close(self) -> list[ReplyEvent]:
        """Return the events at the end of the reply."""
        return self._read(self.reader.close())

    def _read(self, events: Iterable[ReplyEvent]) -> list[ReplyEvent]:
        out: list[ReplyEvent] = []
        for event in events:
            if not self._readings or isinstance(event, ReplyStart | UsageReport | ReplyFailure):
                out.append(event)
            elif isinstance(event, ReplyTextDelta):
                new = self._compare(event.text)
                if new is None:
                    return [*out, ReplyFailure(contradiction_error())]
                if new:
                    out.append(ReplyTextDelta(event.choice, new))
            elif isinstance(event, ReplyFinish) and event.reason is Reason.LENGTH:
                self._end_comparison()  # the limit leaves no room for more than the text that is already known
                out.append(event)
            elif not (isinstance(event, ReplyReasoningDelta) and not event.text):
                return [*out, ReplyFailure(contradiction_error())]
        return out

    def _end_comparison(self) -> None:
        self._readings.clear()
        self._on_continued()

    def _compare(self, text: str) -> str | None:
        """Compare the next piece with the text. Return the part of the piece that is new, or None if it differs."""
        alive = []
        for known in self._readings:
            left = len(known) - self._at
            if left > len(text):
                if known.startswith(text, self._at):
                    alive.append(known)
            elif text.startswith(known[self._at :]):
                self._end_comparison()
                return text[left:]
        self._at += len(text)
        self._readings = alive
        return "" if alive else None


def contradiction_error() -> UpstreamError:
    """Return the error for a reply that does not continue the text."""
    return UpstreamError("the reply does not continue the text that the client has received", code=CONTRADICTED)
