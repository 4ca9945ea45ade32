"""The rules for a streamed Messages reply (M1–M16)."""

from collections.abc import Mapping
from typing import Any, Final

from attrs import Factory, define
from support.validators.chat_complete import is_count
from support.validators.framing import Headers, Problems, SseFrame, Violation, check_object, event, frames, reading
from support.validators.messages_complete import (
    CUT,
    REASONS,
    MessagesCall,
    check_block,
    check_error,
    check_ids,
    check_reason,
    check_request,
    check_usage,
    envelope,
    excused,
)

Json = Any  # a decoded JSON value

# Type of the block → type of the delta → key of its string.
_DELTAS: Final[Mapping[str, Mapping[str, str]]] = {
    "text": {"text_delta": "text"},
    "thinking": {"thinking_delta": "thinking", "signature_delta": "signature"},
    "redacted_thinking": {},
    "tool_use": {"input_json_delta": "partial_json"},
}


@define
class _Block:
    """A block, as far as it has been received."""

    kind: str | None
    """None if the type is unknown; deltas are not checked then."""
    call: MessagesCall
    pieces: list[str] = Factory(list)
    signatures: int = 0
    stopped: bool = False


def validate_messages_stream(
    data: bytes, request: Mapping[str, Json] | None = None, *, headers: Headers | None = None
) -> list[Violation]:
    """Return the violations of a stream. `request` is the body that it answers; `headers` are those of the response."""
    return _MessagesStream(request).check(data, headers)


class _MessagesStream:
    """The validator of one stream."""

    __slots__ = (
        "_blocks",
        "_counted",
        "_deltas",
        "_error",
        "_open",
        "_problems",
        "_reason",
        "_request",
        "_sequence",
        "_started",
        "_stopped",
    )

    def __init__(self, request: Mapping[str, Json] | None) -> None:
        self._request = request
        self._problems = Problems()
        self._blocks: list[_Block] = []
        self._open: _Block | None = None
        self._started = False
        self._deltas = 0  # number of `message_delta` events
        self._stopped = False
        self._error = False
        self._counted = 0  # tokens in the latest usage
        self._reason: Json = None
        self._sequence: Json = None

    def check(self, data: bytes, headers: Headers | None) -> list[Violation]:
        for frame in frames(data, headers, self._problems):
            self._frame(frame)
        with reading("the stream cannot be checked", self._problems):
            self._end()
        return self._problems.found

    def _frame(self, frame: SseFrame) -> None:
        problems = self._problems
        if self._error:
            problems.must("M13", f"{frame} after an error")
        elif self._stopped:
            problems.must("M2", f"{frame} after message_stop")
        if frame.data == "[DONE]":
            problems.must("M2", "[DONE] is not an event of this protocol")
            return
        item = event(frame, "M1", problems)
        if item is None:
            return
        with reading(f"{frame} has a value of an unexpected type", problems):
            self._event(frame, item)

    def _event(self, frame: SseFrame, item: dict[str, Json]) -> None:
        problems = self._problems
        kind = item.get("type")
        if not self._started and kind == "ping":
            problems.should("M3", f"a ping before message_start: {frame}")
        elif not self._started and kind not in ("message_start", "error"):
            problems.must("M3", f"{frame} before message_start")
        match kind:
            case "ping":
                pass
            case "message_start":
                self._start(frame, item)
            case "content_block_start":
                self._block(frame, item)
            case "content_block_delta":
                self._delta(frame, item)
            case "content_block_stop":
                self._stop(frame, item)
            case "message_delta":
                self._message_delta(frame, item)
            case "message_stop":
                self._stopped = True
            case "error":
                self._error = True
                check_error(item, "M13", problems)
            case _:
                problems.must("M1", f"unknown type {kind!r}: {frame}")

    def _start(self, frame: SseFrame, item: dict[str, Json]) -> None:
        problems = self._problems
        if self._started:
            problems.must("M3", f"a second message_start: {frame}")
            return
        self._started = True
        message = item.get("message")
        if not isinstance(message, dict):
            problems.must("M4", f"message_start has no message: {frame}")
            return
        envelope(message, "M4", problems)
        if message.get("content"):
            problems.must("M4", "the content of message_start is not empty")
        for key in ("stop_reason", "stop_sequence"):
            if key not in message or message[key] is not None:
                problems.must("M4", f"`{key}` of message_start is not null")
        usage = message.get("usage")
        if isinstance(usage, dict) and is_count(usage.get("output_tokens")):
            self._counted = usage["output_tokens"]

    # --- blocks

    def _block(self, frame: SseFrame, item: dict[str, Json]) -> None:
        problems = self._problems
        if self._open is not None:
            problems.must("M6", f"a block begins while one is open: {frame}")
        if self._deltas:
            problems.must("M9", f"a block after message_delta: {frame}")
        index: Json = item.get("index")
        given: Json = item.get("content_block")
        if index != len(self._blocks) or not is_count(index):
            problems.must("M5", f"index {index!r} instead of {len(self._blocks)}: {frame}")
        block = _Block(None, MessagesCall("", ""))
        if check_block(given, f"block {index!r}", "M5", problems):
            block = _Block(given["type"], MessagesCall.of(given))
        if block.kind == "text":
            if any(each.kind == "tool_use" for each in self._blocks):
                problems.should("M15", f"text after a call: {frame}")
            if given.get("text"):
                problems.should("M5", f"a text block does not begin empty: {frame}")
                block.pieces.append(given["text"])
        if block.kind == "tool_use" and given.get("input") != {}:
            problems.must("M7", f"a call begins with the input {given.get('input')!r}: {frame}")
        self._blocks.append(block)
        self._open = block

    def _current(self, frame: SseFrame, item: dict[str, Json]) -> _Block | None:
        """Return the open block if the event belongs to it."""
        if self._open is None:
            self._problems.must("M6", f"no block is open: {frame}")
        elif item.get("index") != len(self._blocks) - 1:
            self._problems.must("M6", f"index {item.get('index')!r} where {len(self._blocks) - 1} is open: {frame}")
        else:
            return self._open
        return None

    def _delta(self, frame: SseFrame, item: dict[str, Json]) -> None:
        problems = self._problems
        block = self._current(frame, item)
        delta = item.get("delta")
        if not isinstance(delta, dict):
            problems.must("M6", f"the delta is not an object: {frame}")
            return
        if block is None or block.kind is None:
            return
        kind = delta.get("type")
        key = _DELTAS[block.kind].get(str(kind))
        if key is None:
            problems.must("M6", f"{kind!r} in a block of type {block.kind}: {frame}")
        elif not isinstance(delta.get(key), str):
            problems.must("M6", f"`{key}` is not a string: {frame}")
        elif key == "signature":
            block.signatures += 1
            if block.signatures > 1:
                problems.must("M12", f"a second signature: {frame}")
        else:
            if block.signatures:
                problems.must("M12", f"{frame} after the signature")
            block.pieces.append(delta[key])

    def _stop(self, frame: SseFrame, item: dict[str, Json]) -> None:
        block = self._current(frame, item)
        if block is None:
            return
        block.stopped = True
        self._open = None
        if block.kind == "text" and not any(block.pieces):
            self._problems.must("M14", f"an empty text block: {frame}")

    # --- the end

    def _message_delta(self, frame: SseFrame, item: dict[str, Json]) -> None:
        problems = self._problems
        self._deltas += 1
        if self._open is not None:
            problems.must("M9", f"message_delta while a block is open: {frame}")
        if self._deltas > 1:
            problems.should("M9", f"a second message_delta: {frame}")
        delta, usage = item.get("delta"), item.get("usage")
        if not isinstance(delta, dict):
            problems.must("M9", f"the delta is not an object: {frame}")
            return
        self._reason, self._sequence = delta.get("stop_reason"), delta.get("stop_sequence")
        if self._reason not in REASONS:
            problems.must("M9", f"the stop reason is {self._reason!r}")
        if "stop_sequence" not in delta:
            problems.must("M9", f"no `stop_sequence` key: {frame}")
        check_usage(usage, ("output_tokens",), "M9", problems)
        if isinstance(usage, dict) and is_count(usage.get("output_tokens")):
            if usage["output_tokens"] < self._counted:
                problems.should("M9", f"usage is not cumulative: {usage['output_tokens']} after {self._counted}")
            self._counted = usage["output_tokens"]

    def _end(self) -> None:
        """Check the complete stream; one that broke off is judged like a truncated one."""
        problems = self._problems
        cut = self._error or self._reason in CUT
        if not self._error:
            if not self._started:
                problems.must("M3", "no message_start")
            if not self._deltas:
                problems.must("M9", "no message_delta")
            if not self._stopped:
                problems.must("M2", "no message_stop")
        for position, block in enumerate(self._blocks):
            last = position == len(self._blocks) - 1
            if not block.stopped and not (self._error and last):
                problems.must("M6", f"block {position} is not closed")
            if block.kind == "thinking" and not block.signatures and not (cut and last):
                problems.should("M12", f"block {position} has no signature")
            if block.kind == "tool_use":
                self._input(block, cut=cut)
        calls = [block.call for block in self._blocks if block.kind == "tool_use"]
        if self._deltas and not self._error:
            check_reason(self._reason, self._sequence, calls, problems)
        check_ids(calls, self._request, problems)
        check_request(calls, self._request, problems, cut=self._error or excused(self._reason))

    def _input(self, block: _Block, *, cut: bool) -> None:
        text = "".join(block.pieces)
        if text:
            check_object(text, f"the arguments of {block.call.name!r}", "M8", self._problems, cut=cut)
        elif not cut:
            self._problems.should("M8", f"the arguments of {block.call.name!r} are empty instead of {{}}")
