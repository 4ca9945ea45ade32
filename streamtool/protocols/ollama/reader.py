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

from typing import Final

from streamtool import sse
from streamtool.errors import UpstreamError
from streamtool.protocols import wire
from streamtool.protocols.body_sniffer import Beginning, broken_off, tokens, too_large, unreadable
from streamtool.protocols.stream import Events, Fields, Json, StreamReader, first, flush, word
from streamtool.reply import (
    Reason,
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyFinish,
    ReplyReasoningDelta,
    ReplyStart,
    ReplyTextDelta,
    Usage,
)

_REASONS: Final = {"length": Reason.LENGTH}
"""Everything else (`stop`, `load`, `unload`) is a stop."""

_decode: Final = wire.decode


class Lines:
    """Cuts an answer into lines of JSON, and reads each.

    `error` is set when nothing more can come of it. `document` are the lines so far of an answer that is one document
    printed over several lines, None while it is none.
    """

    __slots__ = ("_held", "_pieces", "document", "error")

    def __init__(self) -> None:
        self.error: UpstreamError | None = None
        self.document: list[bytes] | None = None
        self._pieces: list[bytes] = []  # of the line that is not whole yet
        self._held = 0  # bytes in both

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that end in `data`."""
        end = data.find(b"\n")
        if end < 0:
            self._keep(self._pieces, data)
            return []
        line = data[:end]
        if self._pieces:
            self._pieces.append(line)
            line = b"".join(self._pieces)
            self._held -= len(line) - end
            self._pieces.clear()
        if end + 1 == len(data):
            return [line]
        *lines, rest = data[end + 1 :].split(b"\n")
        if rest:
            self._keep(self._pieces, rest)
        return [line, *lines]

    def keep(self, line: bytes) -> None:
        """The line is part of a document."""
        self.document = self.document or []
        self._keep(self.document, line + b"\n")

    def rest(self) -> bytes:
        """The document, or a last line without its end."""
        return b"".join((*(self.document or ()), *self._pieces))

    def _keep(self, pieces: list[bytes], data: bytes) -> None:
        pieces.append(data)
        self._held += len(data)
        if self._held > sse.HELD:
            self.error = too_large()


class ReplyReader(StreamReader):
    """Reads one reply. `n` is always 1: `write_request` refuses more."""

    __slots__ = ("_beginning", "_calls", "_lines", "_reasoning", "_started", "_strange", "_text")

    def __init__(self, *, n: int = 1) -> None:  # noqa: ARG002
        super().__init__()
        self._beginning: Beginning | None = Beginning()  # until the kind of the answer is known
        self._lines: Lines | None = None  # the answer, if it is lines of JSON
        self._strange: Json = None  # the first value, while nothing of a reply has come
        self._started = False
        self._calls = 0
        self._text = wire.Joiner()
        self._reasoning = wire.Joiner()

    def feed(self, data: bytes) -> Events:
        """What `data` says."""
        events: Events = []
        if self._beginning is not None:
            data = self._begin(self._beginning, data)
        if self.ended or not data:
            return events
        lines = self._lines
        if lines is None:
            return super().feed(data)
        for line in lines.feed(data):
            self._line(line, lines, events)
        if lines.error is not None:
            self._fail(lines.error, events)
        return events

    def _begin(self, beginning: Beginning, data: bytes) -> bytes:
        data = beginning.feed(data)
        if data:
            self._beginning = None
            self._lines = Lines() if data[:1] in (b"{", b"[") else None
        return data

    def _last(self, events: Events) -> None:
        if self._lines is None:
            super()._last(events)
            return
        try:
            value = wire.decode_tolerant(self._lines.rest())
        except ValueError:
            return
        self._document(first(value), events)
        if self._lines.document is not None and self._started and not self.ended:
            self._finish({}, events)

    # --- lines

    def _line(self, line: bytes, lines: Lines, events: Events) -> None:
        """One whole line."""
        if self.ended:
            return
        if lines.document is not None:
            lines.keep(line)
            return
        try:
            value = _decode(line)
        except wire.UNREADABLE:
            self._odd_line(line, lines, events)
        else:
            if type(value) is dict:
                self._read(value, None, events)
            else:
                self._document(first(value), events)

    def _odd_line(self, line: bytes, lines: Lines, events: Events) -> None:
        """A line that is not strict JSON: nothing, damaged JSON, or the first of a document."""
        if not line.strip():
            return
        try:
            value = wire.decode_tolerant(line)
        except ValueError:
            if not self._started and self._strange is None:
                lines.keep(line)
            elif line.lstrip()[:1] == b"{":
                self._fail(unreadable(), events)
        else:
            self._document(first(value), events)

    # --- an object

    def _document(self, value: Json, events: Events) -> None:
        if type(value) is dict:
            self._read(value, None, events)

    def _read(self, fields: Fields, event: sse.Event | None, events: Events) -> None:  # noqa: ARG002
        if fields.get("error"):
            self._fail(wire.upstream_error(fields), events)
            return
        message = fields.get("message")
        done = fields.get("done") is True
        if type(message) is dict:
            if not self._started:
                self._start(fields, events)
            self._message(message, events)
        elif not done:
            self._strange = self._strange or fields
        if done:
            self._finish(fields, events)

    def _start(self, fields: Fields, events: Events) -> None:
        self._started = True
        self._strange = None
        events.append(ReplyStart(model=word(fields.get("model"))))

    def _message(self, message: Fields, events: Events) -> None:
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
        if type(calls) is list:
            for call in calls:
                self._call(call, events)

    def _call(self, call: Json, events: Events) -> None:
        """A call, which comes whole."""
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or (name := word(function.get("name"))) is None:
            return
        arguments = function.get("arguments")
        if not isinstance(arguments, str) or not arguments:
            arguments = wire.encode(arguments or {}).decode()
        index = self._calls
        self._calls += 1
        events += (
            ReplyCallStart(0, index, word(call.get("id")), name),
            ReplyArgumentsDelta(0, index, wire.repaired(arguments)),
            ReplyCallEnd(0, index),
        )

    # --- the end

    def _finish(self, fields: Fields, events: Events) -> None:
        """The reply is whole; `fields` is its last object."""
        if not self._started:
            self._start(fields, events)
        flush(0, self._reasoning, self._text, events)
        reason = fields.get("done_reason")
        events.append(ReplyFinish(0, _REASONS.get(reason, Reason.STOP) if isinstance(reason, str) else Reason.STOP))
        if "prompt_eval_count" in fields or "eval_count" in fields:
            self._counts = fields
        self._done(events)

    def _usage(self, counts: Fields) -> Usage:
        return Usage(tokens(counts, "prompt_eval_count"), tokens(counts, "eval_count"))

    def _end(self, events: Events, *, marked: bool) -> None:
        if marked:
            self._finish({}, events)
        elif self._strange is not None and not self._started:
            self._fail(wire.upstream_error(self._strange), events)
        elif self._lines is not None or self._beginning is not None or self._started:
            self._fail(broken_off(), events)
        else:
            self._fail(self._answer.broken_off(), events)
