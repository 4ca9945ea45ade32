"""Reader for Ollama's reply: one JSON object per line.

Theory of operation. The first byte identifies the format: `{` or `[` starts a line of JSON; anything else (a web page,
or an event stream of the same objects) is left to `BodySniffer`. The received bytes are usually one complete line,
which is found with one search and decoded once. An incomplete line is buffered as a list of pieces, which are joined
once. If the first line is not valid JSON, the response is a single document on several lines, which is buffered, up to
a limit, until it ends.

Facts about Ollama:
- The object with `done: true` ends the reply and contains the finish reason and the usage; a reply without such an
  object is truncated.
- A call is sent complete, with its arguments as an object and usually without an id, before the last object. The finish
  reason is `stop` even if there are calls.
- An error in the middle of a reply is an object with `error`, although the HTTP status is 200.

No input from an upstream makes this module raise an exception.
"""

from typing import Final

from streamtool.core import sse
from streamtool.core.errors import UpstreamError
from streamtool.core.json_value import Json, JsonObject
from streamtool.core.reply import (
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
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.body_sniffer import (
    LeadingBytesFilter,
    token_count,
    too_large_error,
    truncated_error,
    unreadable_error,
)
from streamtool.protocols.shared.stream import Events, StreamReader, flush_joiners, nonempty_string, unwrap_list

_REASONS: Final = {"length": Reason.LENGTH}
"""All other reasons (`stop`, `load`, `unload`) count as a plain stop."""

_decode: Final = wire.decode


class LineSplitter:
    """Incremental splitter of a response into lines of JSON.

    `error` is set when no more lines can be read. `document` contains the lines received so far if the response is one
    document on several lines; otherwise, it is None.
    """

    __slots__ = ("_held", "_pieces", "document", "error")

    def __init__(self) -> None:
        self.error: UpstreamError | None = None
        self.document: list[bytes] | None = None
        self._pieces: list[bytes] = []  # pieces of the incomplete line
        self._held = 0  # number of bytes in both lists

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that end in `data`."""
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
        """Buffer a line of a document."""
        self.document = self.document or []
        self._keep(self.document, line + b"\n")

    def rest(self) -> bytes:
        """Return the document, or the unterminated last line."""
        return b"".join((*(self.document or ()), *self._pieces))

    def _keep(self, pieces: list[bytes], data: bytes) -> None:
        pieces.append(data)
        self._held += len(data)
        if self._held > sse.MAX_BUFFERED:
            self.error = too_large_error()


class ReplyReader(StreamReader):
    """Reader for one reply. `n` is always 1, because `write_request` rejects more."""

    __slots__ = ("_beginning", "_calls", "_lines", "_reasoning", "_started", "_text", "_unrecognized")

    def __init__(self, *, n: int = 1) -> None:  # noqa: ARG002
        super().__init__()
        self._beginning: LeadingBytesFilter | None = LeadingBytesFilter()  # None once the format is known
        self._lines: LineSplitter | None = None  # set if the response consists of lines of JSON
        self._unrecognized: Json = None  # the first unrecognized value; None once the reply begins
        self._started = False
        self._calls = 0
        self._text = wire.Joiner()
        self._reasoning = wire.Joiner()

    def feed(self, data: bytes) -> Events:
        """Return the reply events that `data` completes."""
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

    def _begin(self, beginning: LeadingBytesFilter, data: bytes) -> bytes:
        data = beginning.feed(data)
        if data:
            self._beginning = None
            self._lines = LineSplitter() if data[:1] in (b"{", b"[") else None
        return data

    def _read_rest(self, events: Events) -> None:
        if self._lines is None:
            super()._read_rest(events)
            return
        try:
            value = wire.decode_tolerant(self._lines.rest())
        except ValueError:
            return
        self._document(unwrap_list(value), events)
        if self._lines.document is not None and self._started and not self.ended:
            self._finish({}, events)

    # --- lines

    def _line(self, line: bytes, lines: LineSplitter, events: Events) -> None:
        """Read one complete line."""
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
                self._document(unwrap_list(value), events)

    def _odd_line(self, line: bytes, lines: LineSplitter, events: Events) -> None:
        """Read a line that is not strict JSON: an empty line, damaged JSON, or the first line of a document."""
        if not line.strip():
            return
        try:
            value = wire.decode_tolerant(line)
        except ValueError:
            if not self._started and self._unrecognized is None:
                lines.keep(line)
            elif line.lstrip()[:1] == b"{":
                self._fail(unreadable_error(), events)
        else:
            self._document(unwrap_list(value), events)

    # --- an object

    def _document(self, value: Json, events: Events) -> None:
        if type(value) is dict:
            self._read(value, None, events)

    def _read(self, fields: JsonObject, event: sse.ServerSentEvent | None, events: Events) -> None:  # noqa: ARG002
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
            self._unrecognized = self._unrecognized or fields
        if done:
            self._finish(fields, events)

    def _start(self, fields: JsonObject, events: Events) -> None:
        self._started = True
        self._unrecognized = None
        events.append(ReplyStart(model=nonempty_string(fields.get("model"))))

    def _message(self, message: JsonObject, events: Events) -> None:
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
        """Emit the events of a call, which is always complete."""
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or (name := nonempty_string(function.get("name"))) is None:
            return
        arguments = function.get("arguments")
        if not isinstance(arguments, str) or not arguments:
            arguments = wire.encode(arguments or {}).decode()
        index = self._calls
        self._calls += 1
        events += (
            ReplyCallStart(0, index, nonempty_string(call.get("id")), name),
            ReplyArgumentsDelta(0, index, wire.repaired(arguments)),
            ReplyCallEnd(0, index),
        )

    # --- the end

    def _finish(self, fields: JsonObject, events: Events) -> None:
        """Complete the reply. `fields` is the last object of the reply, or {} if it is missing."""
        if not self._started:
            self._start(fields, events)
        flush_joiners(0, self._reasoning, self._text, events)
        reason = fields.get("done_reason")
        events.append(ReplyFinish(0, _REASONS.get(reason, Reason.STOP) if isinstance(reason, str) else Reason.STOP))
        if "prompt_eval_count" in fields or "eval_count" in fields:
            self._counts = fields
        self._done(events)

    def _usage(self, counts: JsonObject) -> Usage:
        return Usage(token_count(counts, "prompt_eval_count"), token_count(counts, "eval_count"))

    def _end(self, events: Events, *, marked: bool) -> None:
        if marked:
            self._finish({}, events)
        elif self._unrecognized is not None and not self._started:
            self._fail(wire.upstream_error(self._unrecognized), events)
        elif self._lines is not None or self._beginning is not None or self._started:
            self._fail(truncated_error(), events)
        else:
            self._fail(self._answer.truncated_error(), events)
