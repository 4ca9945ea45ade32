"""Reads an upstream's Messages reply, in whatever shape it really comes, into reply events.

Theory of operation. What the answer is (an event stream, one document, a web page), `BodySniffer` tells. A whole reply
goes through the same code as a stream: its message begins, each of its blocks begins and ends, its stop reason comes.
The usual event, a piece of text of the block that is open, is recognised by its first and last bytes, and only its text
is decoded; any other spelling of it is decoded whole, and leaves with its own bytes as well if nothing else is in it.

What is worth knowing about upstreams:
- One call is open at a time: what belongs to other blocks while it is unfinished is queued, block by block. An upstream
  that closes one block before the next, as all should, never meets the queue.
- Whether a call without arguments takes none or was cut, only the next event tells; so its end waits for that.
- Text may stand in the event that begins a block, a call's whole input too.
- Half a character may stand at the end of a piece (`wire.Joiner`).
Nothing here raises on what an upstream sends.
"""

from typing import Any, Final

import msgspec
from attrs import Factory, define

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
Fields = dict[str, Json]

_REASONS: Final = {
    "max_tokens": Reason.LENGTH,
    "model_context_window_exceeded": Reason.LENGTH,
    "refusal": Reason.FILTER,
    "pause_turn": Reason.PAUSE,
    "stop_sequence": Reason.STOP_SEQUENCE,
}
"""Everything else (`end_turn`, `tool_use`, …) is a stop."""
_COUNTS: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")

_TEXT: Final = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":"'
)
_BEHIND: Final = b'"}}\n\n'
_decode: Final = wire.decode
_string: Final = msgspec.json.Decoder(str).decode


@define(eq=False)
class _Call:
    """A call whose end has not been seen."""

    block: Json
    """The index of its block."""
    number: int
    input: str
    """The whole input, where the block began with it; it counts if nothing follows."""
    pieces: list[str] = Factory(list)
    joiner: wire.Joiner = Factory(wire.Joiner)
    stopped: bool = False
    """Its block has ended, and it has no arguments yet."""


class ReplyReader:
    """Reads one reply. `n` is always 1 in this protocol.

    `usage` is the last report so far, also when the reply never ends; `ended` says that nothing more will come out.
    """

    __slots__ = (
        "_answer", "_before", "_call", "_calls", "_counts", "_going_on", "_kept", "_late", "_quick", "_reason",
        "_started", "_stop_sequence", "_text", "_thoughts", "ended", "usage",
    )  # fmt: skip

    def __init__(self, *, n: int = 1) -> None:  # noqa: ARG002
        self.usage: Usage | None = None
        self.ended = False
        self._answer = BodySniffer(final=(b"[DONE]",))
        self._started = False
        self._before: bytes | None = None  # how an event begins that holds text of the open block and nothing else
        self._quick: bytes | None = None  # the same, while an event begins next and no half of a character is held
        self._text = wire.Joiner()
        self._thoughts = wire.Joiner()
        self._call: _Call | None = None
        self._calls = 0
        self._late: dict[Json, list[Fields]] = {}  # events of other blocks than the open call's, by block
        self._going_on = False  # what waited is being read
        self._kept = 0  # characters of what is kept: the open call's arguments, and what waits for its end
        self._counts: dict[str, int] = {}
        self._reason: Reason | None = None
        self._stop_sequence: str | None = None

    def feed(self, data: bytes) -> list[ReplyEvent]:
        """What `data` says."""
        quick = self._quick
        if quick is not None and data.startswith(quick) and data.endswith(_BEHIND):
            try:  # with its quotes it is one string, or else something that only looked like this event
                text = _string(data[len(quick) - 1 : 1 - len(_BEHIND)])
            except wire.UNREADABLE:
                text = ""
            if text:
                return [ReplyTextDelta(0, text, data)]
        events: list[ReplyEvent] = []
        if self.ended:
            return events
        for event in self._answer.feed(data):
            self._event(event, events)
        if self._answer.error is not None and not self.ended:
            self._fail(self._answer.error, events)
        stream = self._answer.stream
        self._quick = self._before if stream is not None and stream.idle and not self._text.holds else None
        return events

    def close(self) -> list[ReplyEvent]:
        """What the end of the answer says; a reply that broke off ends in a `ReplyFailure`."""
        events: list[ReplyEvent] = []
        self._quick = None
        if self.ended:
            return events
        for event in self._answer.close():
            self._event(event, events)
        if self._answer.error is not None and not self.ended:
            self._fail(self._answer.error, events)
        body = self._answer.body
        if body is not None and not self.ended:
            self._whole(body, events)
        if not self.ended:
            self._end(events, marked=False)
        return events

    # --- one document

    def _whole(self, body: bytes, events: list[ReplyEvent]) -> None:
        try:
            value = wire.decode_tolerant(body)
        except ValueError:
            self._fail(broken_off(), events)
            return
        if isinstance(value, list) and value:
            value = value[0]
        if not isinstance(value, dict) or not isinstance(value.get("content"), list) or value.get("error"):
            self._fail(wire.upstream_error(value), events)
            return
        self._start(value, events)
        for position, block in enumerate(value["content"]):
            self._block({"type": "content_block_start", "index": position, "content_block": block}, events)
            self._block({"type": "content_block_stop", "index": position}, events)
        self._stop_reason(value)
        if not self.ended:
            self._end(events, marked=True)

    # --- an event stream

    def _event(self, event: sse.Event, events: list[ReplyEvent]) -> None:
        if self.ended:
            return
        try:
            fields = _decode(event.data)
        except wire.UNREADABLE:
            self._odd(event, events)
            return
        if type(fields) is not dict:
            return
        if event.raw is not None and event.name == "content_block_delta" and self._before is not None:
            text = self._forwardable(fields)
            if text is not None:
                events.append(ReplyTextDelta(0, text, event.raw))
                return
        self._fields(fields, event.name, events)

    def _forwardable(self, fields: Fields) -> str | None:
        """The text of an event that holds nothing else, and no half of a character."""
        delta = fields.get("delta")
        if len(fields) != 3 or type(delta) is not dict or len(delta) != 2:
            return None
        text = delta.get("text")
        canonical = fields.get("type") == "content_block_delta" and delta.get("type") == "text_delta"
        if canonical and type(text) is str and text and type(fields.get("index")) is int and not self._text.holds:
            return text
        return None

    def _odd(self, event: sse.Event, events: list[ReplyEvent]) -> None:
        """An event that is not strict JSON: damaged JSON, or something that nobody defined."""
        data = event.data.strip()
        if data.startswith(b"[DONE]"):  # some who imitate this protocol end so
            self._end(events, marked=True)
            return
        try:
            fields = wire.decode_tolerant(data)
        except ValueError:
            if data[:1] == b"{":
                self._fail(unreadable(), events)
            elif event.name == "error":
                self._fail(wire.upstream_error(data.decode("utf-8", "replace")), events)
            return
        if isinstance(fields, dict):
            self._fields(fields, event.name, events)

    def _fields(self, fields: Fields, name: str | None, events: list[ReplyEvent]) -> None:
        kind = fields.setdefault("type", name)
        match kind:
            case "content_block_delta" | "content_block_start" | "content_block_stop":
                self._start({}, events)
                self._block(fields, events)
            case "message_start":
                message = fields.get("message")
                self._start(message if isinstance(message, dict) else {}, events)
            case "message_delta":
                delta = fields.get("delta")
                self._usage(fields)
                if isinstance(delta, dict):
                    self._stop_reason(delta)
            case "message_stop":
                self._end(events, marked=True)
            case "error":
                self._fail(wire.upstream_error(fields), events)
            case _ if fields.get("error"):
                self._fail(wire.upstream_error(fields), events)

    def _start(self, message: Fields, events: list[ReplyEvent]) -> None:
        if self._started:
            return
        self._started = True
        identity, model = (message.get(key) for key in ("id", "model"))
        self._usage(message)
        events.append(ReplyStart(_word(identity), None, _word(model)))

    def _usage(self, fields: Fields) -> None:
        """Token counts so far; those that are left out, or 0 because they are not known, stay."""
        usage = fields.get("usage")
        if not isinstance(usage, dict):
            return
        counts = self._counts
        for key in _COUNTS:
            counts[key] = tokens(usage, key) or counts.get(key, 0)
        cached = counts["cache_read_input_tokens"]
        details = usage.get("output_tokens_details")
        self.usage = Usage(
            input=counts["input_tokens"] + cached + counts["cache_creation_input_tokens"],
            output=counts["output_tokens"],
            cached=cached,
            reasoning=tokens(details, "thinking_tokens"),
        )

    def _stop_reason(self, fields: Fields) -> None:
        reason, sequence = fields.get("stop_reason"), fields.get("stop_sequence")
        if isinstance(reason, str) and reason:
            self._reason = _REASONS.get(reason, Reason.STOP)
        if isinstance(sequence, str) and sequence:
            self._stop_sequence = wire.repaired(sequence)

    # --- blocks

    def _block(self, fields: Fields, events: list[ReplyEvent]) -> None:
        """One event of a block, or later if another block's call is open."""
        if self.ended:
            return
        index = fields.get("index")
        if not isinstance(index, int | str):
            index = None
        call = self._call
        if call is not None and call.block != index and not self._may_leave(call, events):
            self._late.setdefault(index, []).append(fields)
            self._keep(sum(len(value) for value in _strings(fields)) + 64, events)
            return
        match fields["type"]:
            case "content_block_start":
                block = fields.get("content_block")
                self._open(block if isinstance(block, dict) else {}, index, events)
            case "content_block_stop":
                self._stop_block(index, events)
            case _:
                delta = fields.get("delta")
                if isinstance(delta, dict):
                    self._delta(delta, index, events)

    def _open(self, block: Fields, index: Json, events: list[ReplyEvent]) -> None:
        self._flush(events)
        if self._call is not None:  # the same index again
            self._end_call(self._call, events, cut=False)
        kind = block.get("type")
        self._before = _TEXT % index if kind == "text" and isinstance(index, int) and index >= 0 else None
        if kind == "text":
            self._say(block.get("text"), events)
        elif kind == "thinking":
            self._think(block.get("thinking"), block.get("signature"), events)
        elif kind == "tool_use" and _word(block.get("name")):
            value = block.get("input")
            given = wire.repaired(value) if isinstance(value, str) else wire.encode(value).decode() if value else ""
            self._call = _Call(index, self._calls, given)
            self._calls += 1
            events.append(ReplyCallStart(0, self._call.number, _word(block.get("id")), wire.repaired(block["name"])))

    def _delta(self, delta: Fields, index: Json, events: list[ReplyEvent]) -> None:
        kind = delta.get("type")
        if self._call is not None and kind in ("text_delta", "thinking_delta", "signature_delta"):
            self._end_call(self._call, events, cut=False)  # its block goes on as another's
        match kind:
            case "text_delta":
                self._say(delta.get("text"), events)
            case "thinking_delta":
                self._think(delta.get("thinking"), None, events)
            case "signature_delta":
                self._think(None, delta.get("signature"), events)
            case "input_json_delta" if self._call is not None and self._call.block == index:
                self._argue(self._call, delta.get("partial_json"), events)

    def _stop_block(self, index: Json, events: list[ReplyEvent]) -> None:
        call = self._call
        if call is None or call.block != index:
            self._flush(events)
            self._before = None
        elif call.input or any(map(str.strip, call.pieces)):
            self._end_call(call, events, cut=False)
            self._go_on(events)
        else:
            call.stopped = True
            if self._late:
                self._may_leave(call, events)
                self._go_on(events)

    def _say(self, text: Json, events: list[ReplyEvent]) -> None:
        text = self._text.feed(text) if isinstance(text, str) else ""
        if text:
            events.append(ReplyTextDelta(0, text))

    def _think(self, text: Json, signature: Json, events: list[ReplyEvent]) -> None:
        text = self._thoughts.feed(text) if isinstance(text, str) else ""
        if text:
            events.append(ReplyReasoningDelta(0, text))
        if isinstance(signature, str) and signature:
            self._flush(events)
            events.append(ReplyReasoningDelta(0, "", wire.repaired(signature)))

    def _flush(self, events: list[ReplyEvent]) -> None:
        """Half a character at the end of a block stays alone."""
        for joiner, kind in ((self._thoughts, ReplyReasoningDelta), (self._text, ReplyTextDelta)):
            rest = joiner.close()
            if rest:
                events.append(kind(0, rest))

    # --- calls

    def _argue(self, call: _Call, text: Json, events: list[ReplyEvent]) -> None:
        text = call.joiner.feed(text) if isinstance(text, str) else ""
        if text:
            call.pieces.append(text)
            events.append(ReplyArgumentsDelta(0, call.number, text))
            self._keep(len(text), events)

    def _may_leave(self, call: _Call, events: list[ReplyEvent]) -> bool:
        """Whether what is not of the open call may leave now; ends the call if its arguments are whole."""
        if not call.stopped and (self._late or not _is_object(call.pieces)):
            return False
        self._end_call(call, events, cut=False)
        return True

    def _go_on(self, events: list[ReplyEvent]) -> None:
        """A call is over: what waited for that leaves, block by block, until the next call is open."""
        if self._going_on:
            return
        self._going_on = True
        while self._late and not self.ended and (self._call is None or self._call.stopped):
            for fields in self._late.pop(next(iter(self._late))):
                self._block(fields, events)
        self._going_on = False

    def _end_call(self, call: _Call, events: list[ReplyEvent], *, cut: bool) -> None:
        self._call = None
        rest = call.joiner.close()
        if not any(map(str.strip, call.pieces)):
            rest = call.input or rest
        if rest:
            call.pieces.append(rest)
            events.append(ReplyArgumentsDelta(0, call.number, rest))
        blank = not any(map(str.strip, call.pieces))
        events.append(ReplyCallEnd(0, call.number, not cut if blank else _is_object(call.pieces)))

    def _keep(self, length: int, events: list[ReplyEvent]) -> None:
        self._kept += length
        if self._kept > sse.HELD:
            self._fail(too_large(), events)

    # --- the end

    def _end(self, events: list[ReplyEvent], *, marked: bool) -> None:
        """The answer is over; `marked` says that the upstream said so itself."""
        if not marked and (self._reason is None or not self._started):
            self._fail(broken_off() if self._started else self._answer.broken_off(), events)
            return
        self._start({}, events)
        reason = self._reason or Reason.STOP
        cut = reason in (Reason.LENGTH, Reason.FILTER)
        while self._call is not None or (self._late and not self.ended):
            if self._call is not None:
                self._end_call(self._call, events, cut=cut and not self._late)
            self._go_on(events)
        self._flush(events)
        if self.ended:  # too much had waited
            return
        events.append(ReplyFinish(0, reason, self._stop_sequence))
        if self.usage is not None:
            events.append(UsageReport(self.usage))
        events.append(ReplyEnd())
        self.ended = True
        self._before = None

    def _fail(self, error: UpstreamError, events: list[ReplyEvent]) -> None:
        if not self.ended:
            events.append(ReplyFailure(error))
        self.ended = True
        self._before = None


def _word(value: Json) -> str | None:
    return wire.repaired(value) if isinstance(value, str) and value else None


def _strings(fields: Fields) -> list[str]:
    """The texts in an event that waits."""
    inner = fields.get("delta") or fields.get("content_block")
    return [value for value in inner.values() if isinstance(value, str)] if isinstance(inner, dict) else []


def _is_object(pieces: list[str]) -> bool:
    try:
        return isinstance(wire.decode("".join(pieces)), dict)
    except wire.UNREADABLE:
        return False
