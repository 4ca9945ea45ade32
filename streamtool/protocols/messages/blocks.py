"""Reader for the content blocks of an upstream's Messages reply: text, thinking and calls.

Facts about upstreams:
- Only one call is open at a time: events of other blocks that arrive before the call ends are queued by block. The
  queue stays empty if the upstream closes each block before the next, as it should.
- A call without arguments may be complete or truncated. Only the next event shows whether it is complete, so the end of
  such a call is delayed until the next event.
- The event that begins a block may contain text, or the whole input of a call.
- A piece of text may end in the middle of a character, which `wire.Joiner` handles.
"""

from typing import Final

from attrs import Factory, define

from streamtool.core import sse
from streamtool.core.json_value import Json, JsonObject
from streamtool.core.reply import ReplyArgumentsDelta, ReplyCallEnd, ReplyCallStart, ReplyReasoningDelta, ReplyTextDelta
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.stream import Events, flush_joiners, nonempty_string

_TEXT: Final = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":"'
)


@define(eq=False)
class _ToolUse:
    """Unfinished call."""

    block: Json
    """Index of the call's block."""
    number: int
    input: str
    """Complete input from the event that began the block, or "". It is used if no deltas follow."""
    pieces: list[str] = Factory(list)
    joiner: wire.Joiner = Factory(wire.Joiner)
    stopped: bool = False
    """Whether the call's block has ended without any arguments."""


class BlockReader:
    """Reader for the block events of one reply.

    `prefix` is the beginning of an event that contains only text of the open block, or None if no text block is open.
    `full` means that the buffer limit was exceeded.
    """

    __slots__ = ("_buffered", "_call", "_calls", "_draining", "_queued", "_text", "_thoughts", "full", "prefix")

    def __init__(self) -> None:
        self.prefix: bytes | None = None
        self.full = False
        self._text = wire.Joiner()
        self._thoughts = wire.Joiner()
        self._call: _ToolUse | None = None
        self._calls = 0
        self._queued: dict[Json, list[JsonObject]] = {}  # events of blocks other than the open call's, by block index
        self._draining = False  # whether queued events are being read
        self._buffered = 0  # buffered characters: the open call's arguments, and everything queued until it ends

    @property
    def is_split(self) -> bool:
        """Whether an incomplete character of text is buffered."""
        return self._text.holds

    def close(self, events: Events, *, cut: bool) -> None:
        """End the reply; `cut` means that the upstream truncated it."""
        while self._call is not None or (self._queued and not self.full):
            if self._call is not None:
                self._end_call(self._call, events, cut=cut and not self._queued)
            self._drain_queue(events)
        self._flush(events)
        self.prefix = None

    def read(self, fields: JsonObject, events: Events) -> None:
        """Read one event of a block, or queue it if another block's call is open."""
        if self.full:
            return
        index = fields.get("index")
        if not isinstance(index, int | str):
            index = None
        call = self._call
        # Reply events of a call are contiguous, so events of other blocks are queued until the call's arguments are
        # complete.
        if call is not None and call.block != index and not self._may_leave(call, events):
            self._queued.setdefault(index, []).append(fields)
            self._keep(sum(len(value) for value in _strings(fields)) + 64)
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

    def _open(self, block: JsonObject, index: Json, events: Events) -> None:
        self._flush(events)
        if self._call is not None:  # a new block with the same index, without a stop event in between
            self._end_call(self._call, events, cut=False)
        kind = block.get("type")
        self.prefix = _TEXT % index if kind == "text" and isinstance(index, int) and index >= 0 else None
        if kind == "text":
            self._say(block.get("text"), events)
        elif kind == "thinking":
            self._think(block.get("thinking"), block.get("signature"), events)
        elif kind == "tool_use" and nonempty_string(block.get("name")):
            value = block.get("input")
            given = wire.repaired(value) if isinstance(value, str) else wire.encode(value).decode() if value else ""
            self._call = _ToolUse(index, self._calls, given)
            self._calls += 1
            toolset = nonempty_string(block.get("toolset_name"))
            name = wire.repaired(block["name"])
            name = f"{toolset}.{name}" if toolset else name
            events.append(ReplyCallStart(0, self._call.number, nonempty_string(block.get("id")), name))

    def _delta(self, delta: JsonObject, index: Json, events: Events) -> None:
        kind = delta.get("type")
        if self._call is not None and kind in ("text_delta", "thinking_delta", "signature_delta"):
            self._end_call(self._call, events, cut=False)  # the block continues as a different kind
        match kind:
            case "text_delta":
                self._say(delta.get("text"), events)
            case "thinking_delta":
                self._think(delta.get("thinking"), None, events)
            case "signature_delta":
                self._think(None, delta.get("signature"), events)
            case "input_json_delta" if self._call is not None and self._call.block == index:
                self._argue(self._call, delta.get("partial_json"), events)

    def _stop_block(self, index: Json, events: Events) -> None:
        call = self._call
        if call is None or call.block != index:
            self._flush(events)
            self.prefix = None
        elif call.input or any(map(str.strip, call.pieces)):
            self._end_call(call, events, cut=False)
            self._drain_queue(events)
        else:
            # No arguments so far: only the next event or the stop reason shows whether the call has no arguments or was
            # truncated.
            call.stopped = True
            if self._queued:
                self._may_leave(call, events)
                self._drain_queue(events)

    def _say(self, text: Json, events: Events) -> None:
        text = self._text.feed(text) if isinstance(text, str) else ""
        if text:
            events.append(ReplyTextDelta(0, text))

    def _think(self, text: Json, signature: Json, events: Events) -> None:
        text = self._thoughts.feed(text) if isinstance(text, str) else ""
        if text:
            events.append(ReplyReasoningDelta(0, text))
        if isinstance(signature, str) and signature:
            # A signature closes the client's thinking block, so an incomplete character must be emitted before it.
            self._flush(events)
            events.append(ReplyReasoningDelta(0, "", wire.repaired(signature)))

    def _flush(self, events: Events) -> None:
        flush_joiners(0, self._thoughts, self._text, events)

    # --- calls

    def _argue(self, call: _ToolUse, text: Json, events: Events) -> None:
        text = call.joiner.feed(text) if isinstance(text, str) else ""
        if text:
            call.pieces.append(text)
            events.append(ReplyArgumentsDelta(0, call.number, text))
            self._keep(len(text))

    def _may_leave(self, call: _ToolUse, events: Events) -> bool:
        """Return whether events that do not belong to the open call may be emitted. If the call is complete, end it
        first.
        """
        if not call.stopped and (self._queued or not wire.is_object("".join(call.pieces))):
            return False
        self._end_call(call, events, cut=False)
        return True

    def _drain_queue(self, events: Events) -> None:
        """Read the queued events, block by block, until the next call is open."""
        if self._draining:
            return
        self._draining = True
        while self._queued and not self.full and (self._call is None or self._call.stopped):
            for fields in self._queued.pop(next(iter(self._queued))):
                self.read(fields, events)
        self._draining = False

    def _end_call(self, call: _ToolUse, events: Events, *, cut: bool) -> None:
        self._call = None
        rest = call.joiner.close()
        if not any(map(str.strip, call.pieces)):
            rest = call.input or rest
        if rest:
            call.pieces.append(rest)
            events.append(ReplyArgumentsDelta(0, call.number, rest))
        blank = not any(map(str.strip, call.pieces))
        events.append(ReplyCallEnd(0, call.number, not cut if blank else wire.is_object("".join(call.pieces))))

    def _keep(self, length: int) -> None:
        self._buffered += length
        self.full = self._buffered > sse.MAX_BUFFERED


def _strings(fields: JsonObject) -> list[str]:
    """Return the strings in a queued event."""
    inner = fields.get("delta") or fields.get("content_block")
    return [value for value in inner.values() if isinstance(value, str)] if isinstance(inner, dict) else []
