"""Reads Ollama's reply, one JSON object per line, into reply events.

Theory of operation. The first byte decides: `{` or `[` begins lines, everything else (a web page, an event stream with
the same objects) is told apart by `BodySniffer`. A chunk is one whole line as a rule: one search, one decode. A line
that is not whole is kept as a list of its pieces and joined once. If the very first line is no JSON by itself, the
answer is one document that was printed over several lines; it is kept, within bounds, until the end.

What is worth knowing about Ollama:
- The object with `done: true` ends the reply and bears the reason and the counts; without it the reply broke off.
- Calls come whole, with an object of arguments, mostly without an id, in an object that is not the last one. The reason
  is `stop` all the same.
- An error after the reply has begun is an object with `error`, under status 200.
Nothing here raises on what an upstream sends.
"""

from typing import Any, Final

from streamtool import sse
from streamtool.errors import UpstreamError
from streamtool.protocols import wire
from streamtool.protocols.body_sniffer import BodySniffer, broken_off, tokens, too_large, unreadable
from streamtool.reply import (
    Reason,
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyEnd,
    ReplyEvent,
    ReplyFailure,
    ReplyFinish,
    ReplyReasoningDelta,
    ReplyStart,
    ReplyTextDelta,
    Usage,
    UsageReport,
)

Json = Any  # a decoded JSON value

_REASONS: Final = {"length": Reason.LENGTH}
"""Everything else (`stop`, `load`, `unload`) is a stop."""

_decode: Final = wire.decode


class ReplyReader:
    """Reads one reply.

    `usage` is the last report so far, also when the reply never ends; `ended` says that nothing more will come out.
    """

    __slots__ = (
        "_answer", "_calls", "_document", "_head", "_held", "_lines", "_pieces", "_reasoning", "_started", "_strange",
        "_text", "ended", "usage",
    )  # fmt: skip

    def __init__(self, *, n: int = 1) -> None:  # noqa: ARG002  `write_request` refuses more
        self.usage: Usage | None = None
        self.ended = False
        self._head = b""  # the beginning while it may still become a byte order mark
        self._lines = False  # the answer is known to be lines of JSON
        self._answer: BodySniffer | None = None  # the answer, if it is something else
        self._pieces: list[bytes] = []  # pieces of the line that is not whole yet
        self._held = 0  # bytes in `_pieces` and `_document`
        self._document: list[bytes] | None = None  # lines of a document that is not whole yet
        self._strange: Json = None  # the first value, while nothing of a reply has come
        self._started = False
        self._calls = 0
        self._text = wire.Joiner()
        self._reasoning = wire.Joiner()

    def feed(self, data: bytes) -> list[ReplyEvent]:
        """What `data` says."""
        events: list[ReplyEvent] = []
        if self.ended:
            return events
        if self._lines:
            self._cut(data, events)
        elif self._answer is not None:
            self._stream(self._answer, data, events)
        else:
            self._begin(data, events)
        return events

    def close(self) -> list[ReplyEvent]:
        """What the end of the answer says; a reply that broke off ends in a `ReplyFailure`."""
        events: list[ReplyEvent] = []
        if self.ended:
            return events
        answer = self._answer
        if answer is not None:
            for event in answer.close():
                self._event(event, events)
            if answer.error is not None:
                self._fail(answer.error, events)
        else:
            self._last(events)
        if not self.ended:
            if self._strange is not None and not self._started:
                self._fail(wire.upstream_error(self._strange), events)
            else:
                self._fail(broken_off() if answer is None or self._started else answer.broken_off(), events)
        return events

    def _begin(self, data: bytes, events: list[ReplyEvent]) -> None:
        """Tell what the answer is, at its first byte that is not white space."""
        head = self._head + data
        start = head.removeprefix(sse.BOM).lstrip()
        if not start or sse.BOM.startswith(head):
            self._head = head if sse.BOM.startswith(head) else b""
            return
        self._head = b""
        if start[:1] in (b"{", b"["):
            self._lines = True
            self._cut(start, events)
            return
        self._answer = BodySniffer(final=(b"[DONE]",))
        self._stream(self._answer, start, events)

    # --- lines

    def _cut(self, data: bytes, events: list[ReplyEvent]) -> None:
        end = data.find(b"\n")
        if end < 0:
            self._keep(self._pieces, data, events)
            return
        line = data[:end]
        if self._pieces:
            self._pieces.append(line)
            line = b"".join(self._pieces)
            self._held -= len(line) - end
            self._pieces.clear()
        self._line(line, events)
        if end + 1 == len(data):
            return
        *lines, rest = data[end + 1 :].split(b"\n")
        for more in lines:
            if self.ended:
                return
            self._line(more, events)
        if rest and not self.ended:
            self._keep(self._pieces, rest, events)

    def _keep(self, pieces: list[bytes], data: bytes, events: list[ReplyEvent]) -> None:
        pieces.append(data)
        self._held += len(data)
        if self._held > sse.HELD:
            self._fail(too_large(), events)

    def _line(self, line: bytes, events: list[ReplyEvent]) -> None:
        """One whole line."""
        if self._document is not None:
            self._keep(self._document, line + b"\n", events)
            return
        try:
            value = _decode(line)
        except wire.UNREADABLE:
            self._odd(line, events)
            return
        self._value(value, events)

    def _odd(self, line: bytes, events: list[ReplyEvent]) -> None:
        """A line that is not strict JSON: nothing, damaged JSON, or the first of a document."""
        if not line.strip():
            return
        try:
            value = wire.decode_tolerant(line)
        except ValueError:
            if not self._started and self._strange is None:
                self._document = []
                self._keep(self._document, line + b"\n", events)
            elif line.lstrip()[:1] == b"{":
                self._fail(unreadable(), events)
            return
        self._value(value, events)

    def _last(self, events: list[ReplyEvent]) -> None:
        """A document, or a last line without its end; both may have been cut."""
        rest = b"".join((*(self._document or ()), *self._pieces))
        try:
            value = wire.decode_tolerant(rest)
        except ValueError:
            return
        self._value(value, events)
        if self._document is not None and self._started and not self.ended:
            self._finish({}, events)

    # --- an event stream

    def _stream(self, answer: BodySniffer, data: bytes, events: list[ReplyEvent]) -> None:
        for event in answer.feed(data):
            self._event(event, events)
        if answer.error is not None and not self.ended:
            self._fail(answer.error, events)

    def _event(self, event: sse.Event, events: list[ReplyEvent]) -> None:
        if self.ended:
            return
        data = event.data.strip()
        if data == b"[DONE]":
            self._finish({}, events)
            return
        try:
            value = wire.decode_tolerant(data)
        except ValueError:
            if data[:1] == b"{":
                self._fail(unreadable(), events)
            elif event.name == "error":
                self._fail(wire.upstream_error(data.decode("utf-8", "replace")), events)
            return
        if event.name == "error" and isinstance(value, dict) and not value.get("error"):
            self._fail(wire.upstream_error(value), events)
            return
        self._value(value, events)

    # --- an object

    def _value(self, value: Json, events: list[ReplyEvent]) -> None:
        if type(value) is list and value:
            value = value[0]
        if type(value) is not dict:
            return
        if value.get("error"):
            self._fail(wire.upstream_error(value), events)
            return
        message = value.get("message")
        done = value.get("done") is True
        if type(message) is dict:
            if not self._started:
                self._start(value, events)
            self._message(message, events)
        elif not done:
            self._strange = self._strange or value
        if done:
            self._finish(value, events)

    def _start(self, value: dict[str, Json], events: list[ReplyEvent]) -> None:
        self._started = True
        self._strange = None
        model = value.get("model")
        events.append(ReplyStart(model=wire.repaired(model) if isinstance(model, str) and model else None))

    def _message(self, message: dict[str, Json], events: list[ReplyEvent]) -> None:
        thinking = message.get("thinking")
        if type(thinking) is str and thinking:
            thinking = self._reasoning.feed(thinking)
            if thinking:
                events.append(ReplyReasoningDelta(0, thinking))
        text = message.get("content")
        if type(text) is str and text:
            text = self._text.feed(text)
            if text:
                events.append(ReplyTextDelta(0, text))
        calls = message.get("tool_calls")
        for call in calls if type(calls) is list else ():
            self._call(call, events)

    def _call(self, call: Json, events: list[ReplyEvent]) -> None:
        """A call, which comes whole."""
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            return
        identity, arguments = call.get("id"), function.get("arguments")
        if not isinstance(arguments, str) or not arguments:
            arguments = wire.encode(arguments or {}).decode()
        index = self._calls
        self._calls += 1
        events += (
            ReplyCallStart(0, index, wire.repaired(identity) if isinstance(identity, str) and identity else None,
                      wire.repaired(function["name"])),
            ReplyArgumentsDelta(0, index, wire.repaired(arguments)),
            ReplyCallEnd(0, index),
        )  # fmt: skip

    # --- the end

    def _finish(self, value: dict[str, Json], events: list[ReplyEvent]) -> None:
        """The reply is whole; `value` is its last object."""
        if not self._started:
            self._start(value, events)
        for joiner, kind in ((self._reasoning, ReplyReasoningDelta), (self._text, ReplyTextDelta)):
            rest = joiner.close()
            if rest:
                events.append(kind(0, rest))
        reason = value.get("done_reason")
        events.append(ReplyFinish(0, _REASONS.get(reason, Reason.STOP) if isinstance(reason, str) else Reason.STOP))
        if "prompt_eval_count" in value or "eval_count" in value:
            self.usage = Usage(tokens(value, "prompt_eval_count"), tokens(value, "eval_count"))
            events.append(UsageReport(self.usage))
        events.append(ReplyEnd())
        self.ended = True

    def _fail(self, error: UpstreamError, events: list[ReplyEvent]) -> None:
        events.append(ReplyFailure(error))
        self.ended = True
