"""Reads an upstream's Messages reply, in whatever shape it really comes, into reply events.

Theory of operation. A whole reply goes through the same code as a stream: its message begins, each of its blocks begins
and ends, its stop reason comes. The usual event, a piece of text of the block that is open, is recognised by its first
and last bytes, and only its text is decoded; any other spelling of it is decoded whole, and leaves with its own bytes
as well if nothing else is in it. What stands in blocks is read by `blocks`.
"""

from typing import Final

import msgspec

from streamtool import sse
from streamtool.errors import UpstreamError
from streamtool.protocols import wire
from streamtool.protocols.body_sniffer import broken_off, tokens, too_large
from streamtool.protocols.messages.blocks import BlockReader
from streamtool.protocols.stream import Events, Fields, Json, StreamReader, word
from streamtool.reply import Reason, ReplyFinish, ReplyStart, ReplyTextDelta, Usage

_REASONS: Final = {
    "max_tokens": Reason.LENGTH,
    "model_context_window_exceeded": Reason.LENGTH,
    "refusal": Reason.FILTER,
    "pause_turn": Reason.PAUSE,
    "stop_sequence": Reason.STOP_SEQUENCE,
}
"""Everything else (`end_turn`, `tool_use`, …) is a stop."""
_COUNTS: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")

_BEHIND: Final = b'"}}\n\n'
_string: Final = msgspec.json.Decoder(str).decode


class ReplyReader(StreamReader):
    """Reads one reply. `n` is always 1 in this protocol."""

    __slots__ = ("_blocks", "_quick", "_reason", "_started", "_stop_sequence")

    def __init__(self, *, n: int = 1) -> None:  # noqa: ARG002
        super().__init__()
        self._started = False
        self._blocks = BlockReader()
        self._quick: bytes | None = None  # the blocks' prefix, while an event begins next and its text may pass
        self._reason: Reason | None = None
        self._stop_sequence: str | None = None

    def feed(self, data: bytes) -> Events:
        """What `data` says."""
        quick = self._quick
        if quick is not None and data.startswith(quick) and data.endswith(_BEHIND):
            try:  # with its quotes it is one string, or else something that only looked like this event
                text = _string(data[len(quick) - 1 : 1 - len(_BEHIND)])
            except wire.UNREADABLE:
                text = ""
            if text:
                return [ReplyTextDelta(0, text, data)]
        events = super().feed(data)
        stream, blocks = self._answer.stream, self._blocks
        self._quick = blocks.prefix if stream is not None and stream.idle and not blocks.splits else None
        return events

    def close(self) -> Events:
        """What the end of the answer says; a reply that broke off ends in a `ReplyFailure`."""
        self._quick = None
        return super().close()

    def _document(self, value: Json, events: Events) -> None:
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

    def _forwardable(self, fields: Fields) -> str | None:
        """The text of an event that holds nothing else, and no half of a character."""
        delta = fields.get("delta")
        if len(fields) != 3 or type(delta) is not dict or len(delta) != 2:
            return None
        text = delta.get("text")
        canonical = fields.get("type") == "content_block_delta" and delta.get("type") == "text_delta"
        if canonical and type(text) is str and text and type(fields.get("index")) is int and not self._blocks.splits:
            return text
        return None

    def _read(self, fields: Fields, event: sse.Event | None, events: Events) -> None:
        name = None if event is None else event.name
        if event is not None and event.raw is not None and name == "content_block_delta" and self._blocks.prefix:
            text = self._forwardable(fields)
            if text is not None:
                events.append(ReplyTextDelta(0, text, event.raw))
                return
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
                self._count(fields)
                if isinstance(delta, dict):
                    self._stop_reason(delta)
            case "message_stop":
                self._end(events, marked=True)
            case "error":
                self._fail(wire.upstream_error(fields), events)
            case _ if fields.get("error"):
                self._fail(wire.upstream_error(fields), events)

    def _start(self, message: Fields, events: Events) -> None:
        if self._started:
            return
        self._started = True
        identity, model = (message.get(key) for key in ("id", "model"))
        self._count(message)
        usage = self.usage
        events.append(ReplyStart(word(identity), None, word(model), 0 if usage is None else usage.input))

    def _count(self, fields: Fields) -> None:
        """Token counts so far; those that are left out, or 0 because they are not known, stay."""
        usage = fields.get("usage")
        if not isinstance(usage, dict):
            return
        before = self._counts or {}
        self._counts = {key: tokens(usage, key) or before.get(key, 0) for key in _COUNTS}
        self._counts["thinking_tokens"] = tokens(usage.get("output_tokens_details"), "thinking_tokens")

    def _usage(self, counts: Fields) -> Usage:
        cached = counts["cache_read_input_tokens"]
        return Usage(
            input=counts["input_tokens"] + cached + counts["cache_creation_input_tokens"],
            output=counts["output_tokens"],
            cached=cached,
            reasoning=counts["thinking_tokens"],
        )

    def _stop_reason(self, fields: Fields) -> None:
        reason, sequence = fields.get("stop_reason"), fields.get("stop_sequence")
        if isinstance(reason, str) and reason:
            self._reason = _REASONS.get(reason, Reason.STOP)
        if isinstance(sequence, str) and sequence:
            self._stop_sequence = wire.repaired(sequence)

    def _block(self, fields: Fields, events: Events) -> None:
        if not self.ended:
            self._blocks.read(fields, events)
            if self._blocks.full:
                self._fail(too_large(), events)

    # --- the end

    def _end(self, events: Events, *, marked: bool) -> None:
        if not marked and (self._reason is None or not self._started):
            self._fail(broken_off() if self._started else self._answer.broken_off(), events)
            return
        self._start({}, events)
        reason = self._reason or Reason.STOP
        self._blocks.close(events, cut=reason in (Reason.LENGTH, Reason.FILTER))
        if self._blocks.full:  # too much had waited
            self._fail(too_large(), events)
            return
        events.append(ReplyFinish(0, reason, self._stop_sequence))
        self._done(events)

    def _fail(self, error: UpstreamError, events: Events) -> None:
        self._blocks.prefix = None
        super()._fail(error, events)
