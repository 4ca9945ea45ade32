"""Reads the content blocks of an upstream's Messages reply: text, thinking and calls.

What is worth knowing about upstreams:
- One call is open at a time: what belongs to other blocks while it is unfinished is queued, block by block. An upstream
  that closes one block before the next, as all should, never meets the queue.
- Whether a call without arguments takes none or was cut, only the next event tells; so its end waits for that.
- Text may stand in the event that begins a block, a call's whole input too.
- Half a character may stand at the end of a piece (`wire.Joiner`).
"""

from typing import Final

from attrs import Factory, define

from streamtool import sse
from streamtool.protocols import wire
from streamtool.protocols.stream import Events, Fields, Json, flush, word
from streamtool.reply import (
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyReasoningDelta,
    ReplyTextDelta,
)

_TEXT: Final = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":"'
)


@define(eq=False)
class _OpenCall:
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


class BlockReader:
    """Reads the events of the blocks of one reply.

    `prefix` is how an event begins that holds text of the open block and nothing else; None while no text is open.
    `full` says that more would have to be kept than anybody keeps.
    """

    __slots__ = ("_call", "_calls", "_going_on", "_kept", "_late", "_text", "_thoughts", "full", "prefix")

    def __init__(self) -> None:
        self.prefix: bytes | None = None
        self.full = False
        self._text = wire.Joiner()
        self._thoughts = wire.Joiner()
        self._call: _OpenCall | None = None
        self._calls = 0
        self._late: dict[Json, list[Fields]] = {}  # events of other blocks than the open call's, by block
        self._going_on = False  # what waited is being read
        self._kept = 0  # characters of what is kept: the open call's arguments, and what waits for its end

    @property
    def splits(self) -> bool:
        """Half a character of text is held."""
        return self._text.holds

    def close(self, events: Events, *, cut: bool) -> None:
        """The reply is over; `cut` says that the upstream stopped it."""
        while self._call is not None or (self._late and not self.full):
            if self._call is not None:
                self._end_call(self._call, events, cut=cut and not self._late)
            self._go_on(events)
        self._flush(events)
        self.prefix = None

    def read(self, fields: Fields, events: Events) -> None:
        """One event of a block, or later if another block's call is open."""
        if self.full:
            return
        index = fields.get("index")
        if not isinstance(index, int | str):
            index = None
        call = self._call
        if call is not None and call.block != index and not self._may_leave(call, events):
            self._late.setdefault(index, []).append(fields)
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

    def _open(self, block: Fields, index: Json, events: Events) -> None:
        self._flush(events)
        if self._call is not None:  # the same index again
            self._end_call(self._call, events, cut=False)
        kind = block.get("type")
        self.prefix = _TEXT % index if kind == "text" and isinstance(index, int) and index >= 0 else None
        if kind == "text":
            self._say(block.get("text"), events)
        elif kind == "thinking":
            self._think(block.get("thinking"), block.get("signature"), events)
        elif kind == "tool_use" and word(block.get("name")):
            value = block.get("input")
            given = wire.repaired(value) if isinstance(value, str) else wire.encode(value).decode() if value else ""
            self._call = _OpenCall(index, self._calls, given)
            self._calls += 1
            toolset = word(block.get("toolset_name"))
            name = wire.repaired(block["name"])
            name = f"{toolset}.{name}" if toolset else name
            events.append(ReplyCallStart(0, self._call.number, word(block.get("id")), name))

    def _delta(self, delta: Fields, index: Json, events: Events) -> None:
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

    def _stop_block(self, index: Json, events: Events) -> None:
        call = self._call
        if call is None or call.block != index:
            self._flush(events)
            self.prefix = None
        elif call.input or any(map(str.strip, call.pieces)):
            self._end_call(call, events, cut=False)
            self._go_on(events)
        else:
            call.stopped = True
            if self._late:
                self._may_leave(call, events)
                self._go_on(events)

    def _say(self, text: Json, events: Events) -> None:
        text = self._text.feed(text) if isinstance(text, str) else ""
        if text:
            events.append(ReplyTextDelta(0, text))

    def _think(self, text: Json, signature: Json, events: Events) -> None:
        text = self._thoughts.feed(text) if isinstance(text, str) else ""
        if text:
            events.append(ReplyReasoningDelta(0, text))
        if isinstance(signature, str) and signature:
            self._flush(events)
            events.append(ReplyReasoningDelta(0, "", wire.repaired(signature)))

    def _flush(self, events: Events) -> None:
        flush(0, self._thoughts, self._text, events)

    # --- calls

    def _argue(self, call: _OpenCall, text: Json, events: Events) -> None:
        text = call.joiner.feed(text) if isinstance(text, str) else ""
        if text:
            call.pieces.append(text)
            events.append(ReplyArgumentsDelta(0, call.number, text))
            self._keep(len(text))

    def _may_leave(self, call: _OpenCall, events: Events) -> bool:
        """Whether what is not of the open call may leave now; ends the call if its arguments are whole."""
        if not call.stopped and (self._late or not _is_object(call.pieces)):
            return False
        self._end_call(call, events, cut=False)
        return True

    def _go_on(self, events: Events) -> None:
        """A call is over: what waited for that leaves, block by block, until the next call is open."""
        if self._going_on:
            return
        self._going_on = True
        while self._late and not self.full and (self._call is None or self._call.stopped):
            for fields in self._late.pop(next(iter(self._late))):
                self.read(fields, events)
        self._going_on = False

    def _end_call(self, call: _OpenCall, events: Events, *, cut: bool) -> None:
        self._call = None
        rest = call.joiner.close()
        if not any(map(str.strip, call.pieces)):
            rest = call.input or rest
        if rest:
            call.pieces.append(rest)
            events.append(ReplyArgumentsDelta(0, call.number, rest))
        blank = not any(map(str.strip, call.pieces))
        events.append(ReplyCallEnd(0, call.number, not cut if blank else _is_object(call.pieces)))

    def _keep(self, length: int) -> None:
        self._kept += length
        self.full = self._kept > sse.HELD


def _strings(fields: Fields) -> list[str]:
    """The texts in an event that waits."""
    inner = fields.get("delta") or fields.get("content_block")
    return [value for value in inner.values() if isinstance(value, str)] if isinstance(inner, dict) else []


def _is_object(pieces: list[str]) -> bool:
    try:
        return isinstance(wire.decode("".join(pieces)), dict)
    except wire.UNREADABLE:
        return False
