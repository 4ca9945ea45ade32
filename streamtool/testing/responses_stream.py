"""The rules of a streamed Responses reply (R1–R14).

A stream holds items one after another, an item holds parts or the text of its arguments, and each of these is told
three times: in pieces, when it is done, and in the final response. The three must agree.
"""

from collections.abc import Mapping
from typing import Any, Final

from attrs import Factory, define

from streamtool.testing.framing import Headers, Problems, SseFrame, Violation, check_object, event, frames, reading
from streamtool.testing.responses_complete import (
    PARTS,
    VALUES,
    check_calls,
    check_ended,
    check_item,
    check_logprobs,
    check_part,
    check_response,
    check_status,
    text_key,
)

Json = Any  # a decoded JSON value

_TEXTS: Final = {
    "response.output_text": "output_text",
    "response.refusal": "refusal",
    "response.reasoning_text": "reasoning_text",
    "response.reasoning_summary_text": "summary_text",
}
_ARGUMENTS: Final = {
    "response.function_call_arguments": "function_call",
    "response.custom_tool_call_input": "custom_tool_call",
}
_PARTS: Final = {"response.content_part": "content", "response.reasoning_summary_part": "summary"}
_INDEX: Final = {"content": "content_index", "summary": "summary_index"}
_SAME: Final = ("type", "id", "call_id", "name", "namespace", "role")


@define
class _Part:
    """A part that is open."""

    key: str
    """The list it stands in, `content` or `summary`."""
    kind: Json
    pieces: list[str] = Factory(list)
    text_done: bool = False


@define
class _Item:
    """An item as far as it came."""

    added: dict[str, Json]
    known: bool
    part: _Part | None = None
    lists: dict[str, list[Json]] = Factory(lambda: {"content": [], "summary": []})
    """The parts that are done."""
    pieces: list[str] = Factory(list)
    """Of arguments."""
    value_done: bool = False
    final: dict[str, Json] | None = None

    @property
    def kind(self) -> str:
        return str(self.added.get("type"))

    @property
    def incomplete(self) -> bool:
        return self.final is None or self.final.get("status") == "incomplete"


def validate_responses_stream(
    data: bytes, request: Mapping[str, Json] | None = None, *, headers: Headers | None = None
) -> list[Violation]:
    """What is wrong with a stream. `request` is the body that it answers; `headers` are those of the response."""
    return _ResponsesStream(request).check(data, headers)


class _ResponsesStream:
    """Checks one stream."""

    __slots__ = (
        "_before",
        "_done",
        "_error",
        "_items",
        "_name",
        "_problems",
        "_request",
        "_sequence",
        "_terminal",
    )

    def __init__(self, request: Mapping[str, Json] | None) -> None:
        self._request = request
        self._problems = Problems()
        self._items: list[_Item] = []
        self._sequence = 0
        self._name: tuple[Json, ...] | None = None  # id, time and model of the response
        self._before: Json = None  # type of the event before, keepalives left out
        self._error = False
        self._terminal: str | None = None  # the status that the terminal event tells
        self._done = False

    def check(self, data: bytes, headers: Headers | None) -> list[Violation]:
        for frame in frames(data, headers, self._problems):
            self._frame(frame)
        with reading("the stream cannot be judged", self._problems):
            self._end()
        return self._problems.found

    # --- one event

    def _frame(self, frame: SseFrame) -> None:
        problems = self._problems
        if self._done:
            problems.must("R1", f"{frame} behind [DONE]")
        if frame.data == "[DONE]":
            self._done = True
            problems.should("R1", "[DONE] is no event of this protocol")
            return
        item = event(frame, "R1", problems)
        if item is None:
            return
        number = item.get("sequence_number")
        if number != self._sequence or isinstance(number, bool):
            problems.must("R2", f"sequence_number {number!r} instead of {self._sequence}: {frame}")
        self._sequence = (number if isinstance(number, int) else self._sequence) + 1
        with reading(f"{frame} has a value of a type that cannot be read", problems):
            self._event(frame, item)
        if item.get("type") != "keepalive":
            self._before = item.get("type")

    def _event(self, frame: SseFrame, item: dict[str, Json]) -> None:
        kind = item.get("type")
        self._order(frame, kind)
        stem, _, step = str(kind).rpartition(".")
        match kind, step:
            case (("response.created" | "response.in_progress"), _):
                self._begin(frame, item)
            case (("response.completed" | "response.incomplete" | "response.failed"), _):
                self._terminate(step, item)
            case "response.output_item.added", _:
                self._added(frame, item)
            case "response.output_item.done", _:
                self._ended(frame, item)
            case "error", _:
                self._failure(item)
            case "keepalive", _:
                pass
            case _, "delta" | "done" if stem in _TEXTS:
                self._text(frame, item, _TEXTS[stem], step)
            case _, "delta" | "done" if stem in _ARGUMENTS:
                self._value(frame, item, _ARGUMENTS[stem], step)
            case _, "added" | "done" if stem in _PARTS:
                self._part(frame, item, _PARTS[stem], step)
            case _:
                self._problems.must("R12", f"unknown type {kind!r}: {frame}")

    def _order(self, frame: SseFrame, kind: Json) -> None:
        """Where an event may stand among the others."""
        problems = self._problems
        if self._before is None and kind != "response.created":
            problems.must("R3", f"{frame} before response.created")
        elif self._before is not None and kind == "response.created":
            problems.must("R3", f"a second response.created: {frame}")
        fine = ("response.in_progress", "error", "response.failed", "keepalive")
        if self._before == "response.created" and kind not in fine:
            problems.should("R3", f"no response.in_progress before {frame}")
        if kind == "response.in_progress" and self._before != "response.created":
            problems.should("R3", f"response.in_progress later than directly after response.created: {frame}")
        if self._terminal is not None:
            problems.must("R9", f"{frame} behind the end of the response")
        elif self._error and kind != "response.failed":
            problems.must("R11", f"{frame} behind an error")

    # --- the response

    def _begin(self, frame: SseFrame, item: dict[str, Json]) -> None:
        response = item.get("response")
        check_response(response, "in_progress", "R4", self._problems)
        self._named(response)
        if isinstance(response, dict) and response.get("output"):
            self._problems.must("R4", f"the output is not empty: {frame}")

    def _named(self, response: Json) -> None:
        problems = self._problems
        if not isinstance(response, dict):
            return
        name = tuple(response.get(key) for key in ("id", "created_at", "model"))
        if self._name is None:
            self._name = name
        elif name[0] != self._name[0]:
            problems.must("R4", f"the id of the response changes to {name[0]!r}")
        elif name != self._name:
            problems.should("R4", "time or model of the response change")

    def _failure(self, item: dict[str, Json]) -> None:
        problems = self._problems
        self._error = True
        if "error" in item:
            problems.must("R11", "an error event has an `error` key; its fields stand beside its type")
        if not isinstance(item.get("message"), str) or not item["message"]:
            problems.must("R11", "an error event has no message")
        for key in ("code", "param"):
            if key not in item:
                problems.should("E3", f"`{key}` of an error event is absent instead of null")
            elif not isinstance(item[key], str | None):
                problems.must("R11", f"`{key}` of an error event is neither a string nor null")

    def _terminate(self, status: str, item: dict[str, Json]) -> None:
        problems = self._problems
        if self._terminal is None:
            self._terminal = status
        response = item.get("response")
        cancelled = status == "failed" and isinstance(response, dict) and response.get("status") == "cancelled"
        check_response(response, "cancelled" if cancelled else status, "R4", problems)
        self._named(response)
        if not isinstance(response, dict):
            return
        check_ended(response, "R9", problems)
        if status == "failed" and not (self._error or cancelled):
            problems.should("R11", "response.failed without an error event before")
        if status != "failed" and self._error:
            problems.must("R11", f"an error, and yet the response is {status}")
        finals, given = [each.final for each in self._items if each.final is not None], response.get("output") or []
        # what was running when the response failed may be told as far as it came
        spare = len(self._items) - len(finals) if status == "failed" else 0
        if given[: len(finals)] != finals or len(given) > len(finals) + spare:
            problems.must("R9", f"the output is not what was streamed: {len(given)} items, {len(finals)} streamed")

    # --- items

    def _added(self, frame: SseFrame, event: dict[str, Json]) -> None:
        problems = self._problems
        if self._items and self._items[-1].final is None:
            problems.must("R6", f"an item begins while one is open: {frame}")
        index: Json = event.get("output_index")
        item: Json = event.get("item")
        if index != len(self._items) or isinstance(index, bool):
            problems.must("R5", f"output_index {index!r} instead of {len(self._items)}: {frame}")
        where = f"item {index!r}"
        known = check_item(item, where, "R5", problems)
        self._items.append(_Item(item if isinstance(item, dict) else {}, known))
        if not known:
            return
        kind, status = item["type"], item.get("status")
        if status != "in_progress" and (status is not None or kind in ("message", "function_call")):
            problems.must("R5", f"{where} begins with status {status!r}")
        for key in (*PARTS[kind], VALUES.get(kind)):
            if key is not None and item.get(key):
                problems.must("R5", f"{where} does not begin empty: {frame}")

    def _open(self, frame: SseFrame, event: dict[str, Json], *, named: bool = True) -> _Item | None:
        """The open item, if the event is about it; `named` events have its id."""
        problems = self._problems
        if not self._items or self._items[-1].final is not None:
            problems.must("R6", f"no item is open: {frame}")
            return None
        item = self._items[-1]
        if event.get("output_index") != len(self._items) - 1:
            problems.must("R6", f"output_index {event.get('output_index')!r} is not the open item: {frame}")
            return None
        if named and event.get("item_id") != item.added.get("id"):
            problems.must("R6", f"item_id {event.get('item_id')!r} is not the open item: {frame}")
        return item if item.known else None

    def _ended(self, frame: SseFrame, event: dict[str, Json]) -> None:
        problems = self._problems
        item, final = self._open(frame, event, named=False), event.get("item")
        if not isinstance(final, dict):
            problems.must("R6", f"the item is no object: {frame}")
            final = {}
        if item is None:
            if self._items and event.get("output_index") == len(self._items) - 1 and not self._items[-1].known:
                self._items[-1].final = final
            return
        item.final = final
        where = f"item {len(self._items) - 1}"
        for key in _SAME:
            if final.get(key) != item.added.get(key):
                problems.must("R6", f"`{key}` of {where} was {item.added.get(key)!r} and ends as {final.get(key)!r}")
        check_status(final, where, "R7", problems)
        if item.part is not None:
            problems.must("R7", f"{where} ends while a part is open")
        for key in PARTS[item.kind]:
            if (final.get(key) or []) != item.lists[key]:
                problems.must("R7", f"`{key}` of {where} is not what was streamed")
            if not isinstance(final.get(key), list) and item.added.get(key) is not None:
                problems.must("R7", f"`{key}` of {where} is no list")
        if item.kind in VALUES:
            if final.get(VALUES[item.kind]) != "".join(item.pieces):
                problems.must("R7", f"`{VALUES[item.kind]}` of {where} is not what was streamed")
            if item.value_done and item.incomplete:
                problems.must("R7", f"{where} is incomplete, but its arguments were said to be done")
            elif not item.value_done and not item.incomplete:
                problems.must("R7", f"{where} is complete, but its arguments were not said to be done")

    # --- parts and arguments

    def _part(self, frame: SseFrame, event: dict[str, Json], key: str, step: str) -> None:
        problems = self._problems
        item = self._open(frame, event)
        if item is None:
            return
        given: Json = event.get("part")
        kinds = PARTS[item.kind].get(key, ())
        where = f"item {len(self._items) - 1}"
        if event.get(_INDEX[key]) != len(item.lists[key]):
            problems.must("R7", f"{_INDEX[key]} {event.get(_INDEX[key])!r} instead of {len(item.lists[key])}: {frame}")
        check_part(given, kinds, where, "R7", problems)
        if not isinstance(given, dict):
            return
        text = given.get(text_key(given.get("type")))
        if step == "added":
            if item.part is not None:
                problems.must("R7", f"a part begins while one is open: {frame}")
            item.part = _Part(key, given.get("type"))
            if text != "" or given.get("annotations") or given.get("logprobs"):
                problems.must("R7", f"a part does not begin empty: {frame}")
            return
        part, item.part = item.part, None
        if part is None or part.key != key or part.kind != given.get("type"):
            problems.must("R7", f"no such part is open: {frame}")
        else:
            if not part.text_done:
                problems.must("R7", f"a part ends before its text is done: {frame}")
            if text != "".join(part.pieces):
                problems.must("R7", f"the part is not what was streamed: {frame}")
        item.lists[key].append(given)

    def _text(self, frame: SseFrame, event: dict[str, Json], kind: str, step: str) -> None:
        problems = self._problems
        item = self._open(frame, event)
        if item is None:
            return
        part = item.part
        if part is None or part.kind != kind:
            problems.must("R7", f"no part of type {kind} is open: {frame}")
            return
        index = _INDEX[part.key]
        if event.get(index) != len(item.lists[part.key]):
            problems.must("R7", f"{index} {event.get(index)!r} is not the open part: {frame}")
        if kind == "output_text":
            check_logprobs(event, str(frame), problems)
        if part.text_done:
            problems.must("R7", f"{frame} behind the text's end")
        part.text_done |= step == "done"
        self._grow(frame, event, part.pieces, text_key(kind), step)

    def _value(self, frame: SseFrame, event: dict[str, Json], kind: str, step: str) -> None:
        problems = self._problems
        item = self._open(frame, event)
        if item is None:
            return
        if item.kind != kind:
            problems.must("R7", f"the open item is a {item.kind}: {frame}")
            return
        if item.value_done:
            problems.must("R7", f"{frame} behind the arguments' end")
        item.value_done |= step == "done"
        self._grow(frame, event, item.pieces, VALUES[kind], step)

    def _grow(self, frame: SseFrame, event: dict[str, Json], pieces: list[str], key: str, step: str) -> None:
        """A piece joins the others, or the whole is compared with them."""
        if step == "done":
            if event.get(key) != "".join(pieces):
                self._problems.must("R7", f"`{key}` is not what was streamed: {frame}")
        elif not isinstance(event.get("delta"), str):
            self._problems.must("R7", f"the delta is no string: {frame}")
        else:
            pieces.append(event["delta"])

    # --- the whole

    def _end(self) -> None:
        problems = self._problems
        broken = self._error or self._terminal == "failed"
        if self._before is None:
            problems.must("R3", "no response.created")
        if self._terminal is None and self._error:
            problems.should("R9", "no response.failed behind the error")
        elif self._terminal is None:
            problems.must("R9", "no terminal event")
        for position, item in enumerate(self._items):
            last = position == len(self._items) - 1
            if item.final is None and not (broken and last):
                problems.must("R6", f"item {position} is not done")
            if item.final is not None and item.incomplete and self._terminal == "completed":
                problems.must("R9", f"item {position} is incomplete in a completed response")
            if item.kind == "function_call":
                text = "".join(item.pieces)
                check_object(text, f"the arguments of item {position}", "R8", problems, cut=item.incomplete)
        added = [item.added for item in self._items if item.known]
        check_calls(added, self._request, problems, cut=broken or self._terminal == "incomplete")
