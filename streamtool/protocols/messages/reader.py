"""Tolerant reader for an upstream's Messages reply.

Theory of operation. A whole reply is read like a stream in which each block has a start event and a stop event. The
most common event, which contains only text of the open block, is recognized by its first and last bytes, and only its
text is decoded. A text event that is formatted differently is decoded completely, but its original bytes are still
passed on for forwarding if it contains nothing else. Block contents are read by `blocks`.
"""

from typing import Final

import msgspec

from streamtool.core import sse
from streamtool.core.errors import UpstreamError
from streamtool.core.json_value import Json, JsonObject
from streamtool.core.reply import Reason, ReplyFinish, ReplyStart, ReplyTextDelta, Usage
from streamtool.protocols.messages.blocks import BlockReader
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.body_sniffer import token_count, too_large_error, truncated_error
from streamtool.protocols.shared.stream import Events, StreamReader, nonempty_string

_REASONS: Final = {
    "max_tokens": Reason.LENGTH,
    "model_context_window_exceeded": Reason.LENGTH,
    "refusal": Reason.FILTER,
    "pause_turn": Reason.PAUSE,
    "stop_sequence": Reason.STOP_SEQUENCE,
}
"""All other reasons (`end_turn`, `tool_use`, …) count as a plain stop."""
_COUNTS: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")

_AFTER: Final = b'"}}\n\n'
_string: Final = msgspec.json.Decoder(str).decode


class ReplyReader(StreamReader):
    """Reader for one reply. `n` is always 1 in this protocol."""

    __slots__ = ("_blocks", "_quick", "_reason", "_started", "_stop_sequence")

    def __init__(self, *, n: int = 1) -> None:  # noqa: ARG002
        super().__init__()
        self._started = False
        self._blocks = BlockReader()
        self._quick: bytes | None = None  # prefix of text events, as long as the next event may be forwarded
        self._reason: Reason | None = None
        self._stop_sequence: str | None = None

    def feed(self, data: bytes) -> Events:
        """Return the reply events that `data` completes."""
        quick = self._quick
        if quick is not None and data.startswith(quick) and data.endswith(_AFTER):
            try:  # the bytes between the quotes are one string, unless the event only looks similar
                text = _string(data[len(quick) - 1 : 1 - len(_AFTER)])
            except wire.UNREADABLE:
                text = ""
            if text:
                return [ReplyTextDelta(0, text, data)]
        events = super().feed(data)
        stream, blocks = self._answer.stream, self._blocks
        self._quick = blocks.prefix if stream is not None and stream.idle and not blocks.is_split else None
        return events

    def close(self) -> Events:
        """Return the events at the end of the reply; a truncated reply ends with a `ReplyFailure`."""
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

    def _forwardable(self, fields: JsonObject) -> str | None:
        """Return the text of an event that contains nothing else, or None for any other event or if an incomplete
        character is buffered.
        """
        delta = fields.get("delta")
        if len(fields) != 3 or type(delta) is not dict or len(delta) != 2:
            return None
        text = delta.get("text")
        canonical = fields.get("type") == "content_block_delta" and delta.get("type") == "text_delta"
        if canonical and type(text) is str and text and type(fields.get("index")) is int and not self._blocks.is_split:
            return text
        return None

    def _read(self, fields: JsonObject, event: sse.ServerSentEvent | None, events: Events) -> None:
        name = None if event is None else event.name
        if event is not None and event.raw is not None and name == "content_block_delta" and self._blocks.prefix:
            text = self._forwardable(fields)
            if text is not None:
                events.append(ReplyTextDelta(0, text, event.raw))
                return
        kind = fields.setdefault("type", name)
        match kind:
            case "content_block_delta" | "content_block_start" | "content_block_stop":
                # Some servers send blocks without `message_start`; in that case, the first block begins the reply.
                self._start({}, events)
                self._block(fields, events)
            case "message_start":
                message = fields.get("message")
                self._start(message if isinstance(message, dict) else {}, events)
            case "message_delta":
                delta = fields.get("delta")
                # `message_delta` carries the final usage as well as the stop reason.
                self._count(fields)
                if isinstance(delta, dict):
                    self._stop_reason(delta)
            case "message_stop":
                self._end(events, marked=True)
            case "error":
                self._fail(wire.upstream_error(fields), events)
            case _ if fields.get("error"):
                self._fail(wire.upstream_error(fields), events)

    def _start(self, message: JsonObject, events: Events) -> None:
        if self._started:
            return
        self._started = True
        identity, model = (message.get(key) for key in ("id", "model"))
        self._count(message)
        # `message_start` already contains the number of input tokens, which the writer includes in the client's
        # `message_start`.
        usage = self.usage
        events.append(
            ReplyStart(nonempty_string(identity), None, nonempty_string(model), 0 if usage is None else usage.input)
        )

    def _count(self, fields: JsonObject) -> None:
        """Update the usage. A count in `_COUNTS` retains its previous value if the new one is missing or 0."""
        usage = fields.get("usage")
        if not isinstance(usage, dict):
            return
        before = self._counts or {}
        self._counts = {key: token_count(usage, key) or before.get(key, 0) for key in _COUNTS}
        self._counts["thinking_tokens"] = token_count(usage.get("output_tokens_details"), "thinking_tokens")

    def _usage(self, counts: JsonObject) -> Usage:
        cached = counts["cache_read_input_tokens"]
        return Usage(
            input=counts["input_tokens"] + cached + counts["cache_creation_input_tokens"],
            output=counts["output_tokens"],
            cached=cached,
            reasoning=counts["thinking_tokens"],
        )

    def _stop_reason(self, fields: JsonObject) -> None:
        reason, sequence = fields.get("stop_reason"), fields.get("stop_sequence")
        if isinstance(reason, str) and reason:
            self._reason = _REASONS.get(reason, Reason.STOP)
        if isinstance(sequence, str) and sequence:
            self._stop_sequence = wire.repaired(sequence)

    def _block(self, fields: JsonObject, events: Events) -> None:
        if not self.ended:
            self._blocks.read(fields, events)
            if self._blocks.full:
                self._fail(too_large_error(), events)

    # --- the end

    def _end(self, events: Events, *, marked: bool) -> None:
        # Either marker is enough: a stop reason without `message_stop`, or `message_stop` without a reason.
        if not marked and (self._reason is None or not self._started):
            self._fail(truncated_error() if self._started else self._answer.truncated_error(), events)
            return
        self._start({}, events)
        reason = self._reason or Reason.STOP
        # Open and queued blocks must end before the finish. `cut` determines whether a call without arguments is
        # complete.
        self._blocks.close(events, cut=reason in (Reason.LENGTH, Reason.FILTER))
        if self._blocks.full:  # the queue was too large
            self._fail(too_large_error(), events)
            return
        events.append(ReplyFinish(0, reason, self._stop_sequence))
        self._done(events)

    def _fail(self, error: UpstreamError, events: Events) -> None:
        self._blocks.prefix = None
        super()._fail(error, events)
