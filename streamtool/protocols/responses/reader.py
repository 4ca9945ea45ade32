"""Reads an upstream's Responses reply into reply events.

Theory of operation. The reply is a list of items, one after the other; an item begins, its pieces come, and it is told
once more when it is done. A piece leaves at once. What the pieces of an item did not tell, its end does, so a server
that sends no pieces, or one document instead of a stream, is read by the same code. While a call is open, pieces of
other items are passed over: their ends tell them whole. Only the arguments of the open call are counted, and kept to
tell whether they are an object.

What is worth knowing about upstreams:
- The event that ends the stream says why: `response.completed`, `response.incomplete` with a reason, or
  `response.failed` with an error. Nothing follows it.
- Reasoning comes as its summary or as itself; a refusal is ordinary text.
Nothing here raises on what an upstream sends.
Source: `types/responses/response_stream_event.py` of openai-python 3.54.
"""

from typing import Final

from streamtool import sse
from streamtool.errors import StreamtoolError, UpstreamError
from streamtool.protocols import wire
from streamtool.protocols.body_sniffer import broken_off, tokens, too_large
from streamtool.protocols.responses.typed_calls import TYPED_CALLS, typed_call
from streamtool.protocols.stream import Events, Fields, Json, StreamReader, flush, word
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

_TEXTS: Final = frozenset({"response.output_text.delta", "response.refusal.delta"})
_THOUGHTS: Final = frozenset({"response.reasoning_text.delta", "response.reasoning_summary_text.delta"})
_ARGUMENTS: Final = frozenset({"response.function_call_arguments.delta", "response.custom_tool_call_input.delta"})
_ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_CALLS: Final = {"function_call": "arguments", "custom_tool_call": "input"}
"""Items that are calls, and the key of what the model has written for them."""
_BROKEN: Final = {"failed": "failed", "cancelled": "was cancelled"}
_REASONS: Final = {"max_output_tokens": Reason.LENGTH, "content_filter": Reason.FILTER}


class ReplyReader(StreamReader):
    """Reads one reply. `n` is always 1 in this protocol."""

    __slots__ = ("_argument", "_arguments", "_calls", "_open", "_reasoning", "_size", "_started", "_text", "_told")

    def __init__(self, *, n: int = 1) -> None:  # noqa: ARG002
        super().__init__()
        self._started = False
        self._told: set[int] = set()
        """The places of items of which pieces have come, or which are done."""
        self._calls = 0
        self._open: int | None = None
        """The place of the call that is open."""
        self._arguments: list[str] = []
        self._size = 0
        self._argument = wire.Joiner()
        self._text = wire.Joiner()
        self._reasoning = wire.Joiner()

    def _document(self, value: Json, events: Events) -> None:
        if not isinstance(value, dict) or not isinstance(value.get("output"), list) or value.get("error"):
            self._fail(wire.upstream_error(value), events)
            return
        self._start(value, events)
        for place, item in enumerate(value["output"]):
            self._item(place, item, events)
        self._over(value, events)

    def _read(self, fields: Fields, event: sse.Event | None, events: Events) -> None:
        kind = fields.get("type") or (None if event is None else event.name)
        place, piece = fields.get("output_index"), fields.get("delta")
        if fields.get("error") or kind == "error":
            self._fail(wire.upstream_error(fields), events)
            return
        if isinstance(response := fields.get("response"), dict):
            self._start(response, events)
            if kind in _ENDS:
                self._items(response, events)
                self._over(response, events)
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

    def _start(self, response: Fields, events: Events) -> None:
        if isinstance(usage := response.get("usage"), dict):
            self._counts = usage
        if not self._started:
            self._started = True
            created = response.get("created_at")
            moment = int(created) if isinstance(created, int | float) else None
            events.append(ReplyStart(word(response.get("id")), moment, word(response.get("model"))))

    def _usage(self, counts: Fields) -> Usage:
        return Usage(
            input=tokens(counts, "input_tokens"),
            output=tokens(counts, "output_tokens"),
            cached=tokens(counts.get("input_tokens_details"), "cached_tokens"),
            reasoning=tokens(counts.get("output_tokens_details"), "reasoning_tokens"),
        )

    # --- items

    def _piece(self, kind: str, place: int, piece: str, events: Events) -> None:
        """A piece of an item, unless a call is open elsewhere."""
        if self._open is not None:
            if kind in _ARGUMENTS and place == self._open:
                self._write(piece, events)
            return
        if kind in _TEXTS or kind in _THOUGHTS:
            self._told.add(place)
            self._say(piece, events, thought=kind in _THOUGHTS)

    def _say(self, piece: str, events: Events, *, thought: bool) -> None:
        whole = (self._reasoning if thought else self._text).feed(piece)
        if whole:
            events.append(ReplyReasoningDelta(0, whole) if thought else ReplyTextDelta(0, whole))

    def _begin(self, place: int, item: Json, events: Events) -> None:
        """An item begins. Only calls are opened here: their names are known."""
        if not isinstance(item, dict) or self._open is not None or place in self._told:
            return
        if item.get("type") in _CALLS and (name := _name(item)) is not None:
            self._told.add(place)
            self._open = place
            self._arguments = []
            events.append(ReplyCallStart(0, self._calls, word(item.get("call_id")), name))

    def _item(self, place: int, item: Json, events: Events) -> None:
        """An item is done: what its pieces did not tell."""
        if not isinstance(item, dict):
            return
        kind = item.get("type")
        if place == self._open:
            self._close(item, events)
        elif place in self._told:
            return
        elif self._open is None and kind in _CALLS:
            self._begin(place, item, events)
            if self._open is not None:
                self._close(item, events)
        elif self._open is None:
            self._whole(str(kind), item, events)
            self._told.add(place)

    def _whole(self, kind: str, item: Fields, events: Events) -> None:
        """An item of which no piece has come."""
        if kind in TYPED_CALLS:
            try:
                call = typed_call(kind, wire.repaired(item), kind)
            except StreamtoolError:  # what the upstream calls a call is none
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
                    self._say(said, events, thought=kind == "reasoning")

    def _items(self, response: Fields, events: Events) -> None:
        """The items of the response that ends the stream, as far as they were not told."""
        output = response.get("output")
        for place, item in enumerate(output if isinstance(output, list) else ()):
            self._item(place, item, events)

    # --- the open call

    def _write(self, piece: str, events: Events) -> None:
        self._size += len(piece)
        if self._size > sse.HELD:
            self._fail(too_large(), events)
        elif piece:
            self._put(self._argument.feed(piece), events)

    def _put(self, piece: str, events: Events) -> None:
        if piece:
            self._arguments.append(piece)
            events.append(ReplyArgumentsDelta(0, self._calls, piece))

    def _close(self, item: Fields, events: Events) -> None:
        """The open call is done; arguments of which no piece has come stand in its item."""
        kind = item.get("type")
        whole = item.get(_CALLS.get(str(kind), ""))
        if not self._arguments and isinstance(whole, str):
            self._write(whole, events)
        self._put(self._argument.close(), events)
        custom = kind == "custom_tool_call"
        complete = item.get("status") != "incomplete" and (custom or _is_object("".join(self._arguments)))
        self._end_call(events, complete=complete)

    def _end_call(self, events: Events, *, complete: bool) -> None:
        events.append(ReplyCallEnd(0, self._calls, complete))
        self._calls += 1
        self._open = None

    # --- the end

    def _over(self, response: Fields, events: Events) -> None:
        """The response object of the last event, or of the whole answer."""
        status = response.get("status")
        if status in _BROKEN:
            self._fail(wire.upstream_error(response.get("error") or f"The upstream's reply {_BROKEN[status]}."), events)
            return
        details = response.get("incomplete_details")
        why = details.get("reason") if isinstance(details, dict) else None
        reason = _REASONS.get(str(why), Reason.LENGTH) if status == "incomplete" else Reason.STOP
        if self._open is not None:
            self._put(self._argument.close(), events)
            self._end_call(events, complete=False)
        flush(0, self._reasoning, self._text, events)
        if not self.ended:
            events.append(ReplyFinish(0, reason))
            self._done(events)

    def _end(self, events: Events, *, marked: bool) -> None:  # noqa: ARG002  an end mark is no end of this protocol
        self._fail(broken_off() if self._started else self._answer.broken_off(), events)

    def _fail(self, error: UpstreamError, events: Events) -> None:
        self._open = None
        super()._fail(error, events)


def _name(item: Fields) -> str | None:
    """The tool's name as the model knows it, with the group that it belongs to."""
    name, group = word(item.get("name")), word(item.get("namespace"))
    return f"{group}.{name}" if name and group else name


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(wire.decode(arguments.encode()), dict)
    except wire.UNREADABLE:
        return False
