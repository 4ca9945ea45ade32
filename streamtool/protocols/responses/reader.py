"""Reader for an upstream's Responses reply.

Theory of operation. The reply is a sequence of items. An item begins with an event, deltas follow, and the item's last
event repeats the entire item. Deltas are emitted immediately. If an item had no deltas, its content is taken from its
last event, so the same code can read replies from servers that send no deltas, or one document instead of a stream.
While a call is open, its arguments are also buffered, to check whether they form an object, and deltas of other items
wait for its end; both are limited.

Facts about upstreams:
- The last event of a stream states why the reply ended: `response.completed`, `response.incomplete` with a reason, or
  `response.failed` with an error.
- Reasoning is sent as a summary or in full; a refusal is ordinary text.

No input from an upstream makes this module raise an exception. Source: `types/responses/response_stream_event.py` of
openai-python 3.54.
"""

from math import isfinite
from typing import Final

from streamtool.core import sse
from streamtool.core.errors import StreamtoolError, UpstreamError
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
from streamtool.protocols.responses.typed_calls import FORMATS_BY_ITEM, typed_call
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.body_sniffer import token_count, too_large_error, truncated_error, wrong_type_error
from streamtool.protocols.shared.stream import Events, StreamReader, creation_time, flush_joiners, nonempty_string

_TEXTS: Final = frozenset({"response.output_text.delta", "response.refusal.delta"})
_THOUGHTS: Final = frozenset({"response.reasoning_text.delta", "response.reasoning_summary_text.delta"})
_ARGUMENTS: Final = frozenset({"response.function_call_arguments.delta", "response.custom_tool_call_input.delta"})
_ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_CALLS: Final = {"function_call": "arguments", "custom_tool_call": "input"}
"""Types of items that are calls, with the key that contains the text written by the model."""
_BROKEN: Final = {"failed": "failed", "cancelled": "was cancelled"}
_REASONS: Final = {"max_output_tokens": Reason.LENGTH, "content_filter": Reason.FILTER}


class ReplyReader(StreamReader):
    """Reader for one reply. `n` is always 1 in this protocol."""

    __slots__ = (
        "_argument",
        "_arguments",
        "_calls",
        "_delayed",
        "_emitted",
        "_open",
        "_reasoning",
        "_size",
        "_started",
        "_text",
    )

    def __init__(self, *, n: int = 1) -> None:  # noqa: ARG002
        super().__init__()
        self._started = False
        self._emitted: set[int] = set()
        """Indexes of the items that have been emitted, at least in part."""
        self._calls = 0
        self._open: int | None = None
        """Index of the open call's item."""
        self._arguments: list[str] = []
        self._delayed: list[tuple[str, bool]] = []
        """Deltas of other items that arrived during the open call, and whether they are reasoning."""
        self._size = 0
        self._argument = wire.Joiner()
        self._text = wire.Joiner()
        self._reasoning = wire.Joiner()

    def _document(self, value: Json, events: Events) -> None:
        if not isinstance(value, dict) or not isinstance(value.get("output"), list) or value.get("error"):
            self._fail(wire.upstream_error(value), events)
            return
        self._start(value, events)
        if self.ended:
            return
        for place, item in enumerate(value["output"]):
            self._item(place, item, events)
        self._end_response(value, events)

    def _read(self, fields: JsonObject, event: sse.ServerSentEvent | None, events: Events) -> None:
        kind = fields.get("type") or (None if event is None else event.name)
        if not isinstance(kind, str | None):
            self._fail(wrong_type_error("type"), events)
            return
        place, piece = fields.get("output_index"), fields.get("delta")
        if fields.get("error") or kind == "error":
            self._fail(wire.upstream_error(fields), events)
            return
        if isinstance(response := fields.get("response"), dict):
            self._start(response, events)
            if self.ended:
                return
            # The terminal event repeats all items. Items whose own events were missing or ignored are emitted here,
            # before the finish.
            if kind in _ENDS:
                self._items(response, events)
                self._end_response(response, events)
            return
        if type(place) is not int:
            return
        self._start({}, events)
        if type(piece) is str:
            self._piece(str(kind), place, piece, events)
        elif kind == "response.output_item.added":
            self._begin(place, fields.get("item"), events)
        elif kind == "response.output_item.done":
            self._item(place, fields.get("item"), events)

    def _start(self, response: JsonObject, events: Events) -> None:
        if isinstance(usage := response.get("usage"), dict):
            self._counts = usage
        if not self._started:
            self._started = True
            created = response.get("created_at")
            if isinstance(created, float):
                if not isfinite(created):
                    self._fail(wrong_type_error("created_at"), events)
                    return
                created = int(created)
            moment = creation_time(created)
            events.append(
                ReplyStart(nonempty_string(response.get("id")), moment, nonempty_string(response.get("model")))
            )

    def _usage(self, counts: JsonObject) -> Usage:
        return Usage(
            input=token_count(counts, "input_tokens"),
            output=token_count(counts, "output_tokens"),
            cached=token_count(counts.get("input_tokens_details"), "cached_tokens"),
            reasoning=token_count(counts.get("output_tokens_details"), "reasoning_tokens"),
        )

    # --- items

    def _piece(self, kind: str, place: int, piece: str, events: Events) -> None:
        """Emit a delta of an item, unless another item is an open call."""
        # Reply events of a call are contiguous, so deltas of other items wait while the call is open.
        if not piece:
            return
        if self._open is not None:
            if kind in _ARGUMENTS and place == self._open:
                self._buffer_argument(piece, events)
            elif kind in _TEXTS or kind in _THOUGHTS:
                self._emitted.add(place)
                self._count(len(piece), events)
                self._delayed.append((piece, kind in _THOUGHTS))
            return
        if kind in _TEXTS or kind in _THOUGHTS:
            self._emitted.add(place)
            self._emit_text(piece, events, thought=kind in _THOUGHTS)

    def _emit_text(self, piece: str, events: Events, *, thought: bool) -> None:
        whole = (self._reasoning if thought else self._text).feed(piece)
        if whole:
            events.append(ReplyReasoningDelta(0, whole) if thought else ReplyTextDelta(0, whole))

    def _begin(self, place: int, item: Json, events: Events) -> None:
        """Begin an item. Only calls are opened here, because their names are already known."""
        if not isinstance(item, dict) or self._open is not None or place in self._emitted:
            return
        if str(item.get("type")) in _CALLS and (name := _name(item)) is not None:
            self._emitted.add(place)
            self._open = place
            self._arguments = []
            events.append(ReplyCallStart(0, self._calls, nonempty_string(item.get("call_id")), name))

    def _item(self, place: int, item: Json, events: Events) -> None:
        """End an item, and emit its content if it had no deltas."""
        if not isinstance(item, dict):
            return
        kind = str(item.get("type"))
        if place == self._open:
            self._close(item, events)
        elif place in self._emitted:
            return
        elif self._open is None and kind in _CALLS:
            self._begin(place, item, events)
            if self._open is not None:
                self._close(item, events)
        elif self._open is None:
            self._emit_item(kind, item, events)
            self._emitted.add(place)

    def _emit_item(self, kind: str, item: JsonObject, events: Events) -> None:
        """Emit the complete content of an item that had no deltas."""
        if kind in FORMATS_BY_ITEM:
            try:
                call = typed_call(kind, wire.repaired(item), kind)
            except StreamtoolError:  # the item is not a valid call
                return
            events.append(ReplyCallStart(0, self._calls, call.id, call.name))
            events.append(ReplyArgumentsDelta(0, self._calls, call.arguments))
            self._end_call(events, complete=True)
            return
        for key in ("summary", "content"):
            parts = item.get(key)
            for part in parts if isinstance(parts, list) else ():
                said = part.get("text") or part.get("refusal") if isinstance(part, dict) else None
                if isinstance(said, str):
                    self._emit_text(said, events, thought=kind == "reasoning")

    def _items(self, response: JsonObject, events: Events) -> None:
        """Emit the items in the terminal event's response that have not been emitted yet."""
        output = response.get("output")
        for place, item in enumerate(output if isinstance(output, list) else ()):
            self._item(place, item, events)

    # --- the open call

    def _buffer_argument(self, piece: str, events: Events) -> None:
        self._count(len(piece), events)
        if piece and not self.ended:
            self._put(self._argument.feed(piece), events)

    def _count(self, size: int, events: Events) -> None:
        """Count buffered characters, and fail if there are too many."""
        self._size += size
        if self._size > sse.MAX_BUFFERED:
            self._fail(too_large_error(), events)

    def _put(self, piece: str, events: Events) -> None:
        if piece:
            self._arguments.append(piece)
            events.append(ReplyArgumentsDelta(0, self._calls, piece))

    def _close(self, item: JsonObject, events: Events) -> None:
        """End the open call. If no deltas arrived, its arguments are taken from the item."""
        kind = item.get("type")
        whole = item.get(_CALLS.get(str(kind), ""))
        if not self._arguments and isinstance(whole, str):
            self._buffer_argument(whole, events)
        # The item repeats the arguments, so they are taken from the item only if no deltas arrived.
        self._put(self._argument.close(), events)
        custom = kind == "custom_tool_call"
        complete = item.get("status") != "incomplete" and (custom or wire.is_object("".join(self._arguments)))
        self._end_call(events, complete=complete)

    def _end_call(self, events: Events, *, complete: bool) -> None:
        events.append(ReplyCallEnd(0, self._calls, complete))
        self._calls += 1
        self._open = None
        for piece, thought in self._delayed:
            self._emit_text(piece, events, thought=thought)
        self._delayed.clear()

    # --- the end

    def _end_response(self, response: JsonObject, events: Events) -> None:
        """Handle the response object in the terminal event, or in a response body that is one document."""
        status = response.get("status")
        if not isinstance(status, str | None):
            self._fail(wrong_type_error("status"), events)
            return
        error = response.get("error")
        if error or status in _BROKEN:
            self._fail(wire.upstream_error(error or f"The upstream's reply {_BROKEN[str(status)]}."), events)
            return
        details = response.get("incomplete_details")
        why = details.get("reason") if isinstance(details, dict) else None
        reason = _REASONS.get(str(why), Reason.LENGTH) if status == "incomplete" else Reason.STOP
        # The open call's item never ended, so the call is incomplete even if its arguments form an object.
        if self._open is not None:
            self._put(self._argument.close(), events)
            self._end_call(events, complete=False)
        flush_joiners(0, self._reasoning, self._text, events)
        if not self.ended:
            events.append(ReplyFinish(0, reason))
            self._done(events)

    def _end(self, events: Events, *, marked: bool) -> None:  # noqa: ARG002  `[DONE]` does not end a reply in this protocol
        self._fail(truncated_error() if self._started else self._answer.truncated_error(), events)

    def _fail(self, error: UpstreamError, events: Events) -> None:
        if self._delayed:
            self._end_call(events, complete=False)
        self._open = None
        super()._fail(error, events)


def _name(item: JsonObject) -> str | None:
    """Return the tool's name as the model knows it, including its group."""
    name, group = nonempty_string(item.get("name")), nonempty_string(item.get("namespace"))
    return f"{group}.{name}" if name and group else name
