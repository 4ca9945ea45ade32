"""The rules for a streamed Responses reply (R1–R14).

A stream contains items one after another, and an item contains parts or the text of its arguments. Each of these is
sent three times: in deltas, in its final event, and in the final response. The three must agree.
"""

from collections.abc import Mapping
from typing import Any, Final

from support.validators.framing import Headers, Problems, SseFrame, Violation, event, frames, reading
from support.validators.responses_complete import check_calls, check_ended, check_response
from support.validators.responses_items import StreamedItems

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


def validate_responses_stream(
    data: bytes, request: Mapping[str, Json] | None = None, *, headers: Headers | None = None
) -> list[Violation]:
    """Return the violations of a stream. `request` is the body that it answers; `headers` are those of the response."""
    return _ResponsesStream(request).check(data, headers)


class _ResponsesStream:
    """The validator of one stream."""

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
        self._items = StreamedItems(self._problems)
        self._sequence = 0
        self._name: tuple[Json, ...] | None = None  # id, creation time and model of the response
        self._before: Json = None  # type of the previous event, ignoring keepalives
        self._error = False
        self._terminal: str | None = None  # the status that the terminal event reports
        self._done = False

    def check(self, data: bytes, headers: Headers | None) -> list[Violation]:
        for frame in frames(data, headers, self._problems):
            self._frame(frame)
        with reading("the stream cannot be checked", self._problems):
            self._end()
        return self._problems.found

    # --- one event

    def _frame(self, frame: SseFrame) -> None:
        problems = self._problems
        if self._done:
            problems.must("R1", f"{frame} after [DONE]")
        if frame.data == "[DONE]":
            self._done = True
            problems.should("R1", "[DONE] is not an event of this protocol")
            return
        item = event(frame, "R1", problems)
        if item is None:
            return
        number = item.get("sequence_number")
        if number != self._sequence or isinstance(number, bool):
            problems.must("R2", f"sequence_number {number!r} instead of {self._sequence}: {frame}")
        self._sequence = (number if isinstance(number, int) else self._sequence) + 1
        with reading(f"{frame} has a value of an unexpected type", problems):
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
                self._items.added(frame, item)
            case "response.output_item.done", _:
                self._items.ended(frame, item)
            case "error", _:
                self._failure(item)
            case "keepalive", _:
                pass
            case _, "delta" | "done" if stem in _TEXTS:
                self._items.text(frame, item, _TEXTS[stem], step)
            case _, "delta" | "done" if stem in _ARGUMENTS:
                self._items.value(frame, item, _ARGUMENTS[stem], step)
            case _, "added" | "done" if stem in _PARTS:
                self._items.part(frame, item, _PARTS[stem], step)
            case _, "added" | "delta" | "done" if stem == "response.shell_call_command":
                self._items.command(frame, item, step)
            case _:
                self._problems.must("R12", f"unknown type {kind!r}: {frame}")

    def _order(self, frame: SseFrame, kind: Json) -> None:
        """Check the order of events."""
        problems = self._problems
        if self._before is None and kind != "response.created":
            problems.must("R3", f"{frame} before response.created")
        elif self._before is not None and kind == "response.created":
            problems.must("R3", f"a second response.created: {frame}")
        fine = ("response.in_progress", "error", "response.failed", "keepalive")
        if self._before == "response.created" and kind not in fine:
            problems.should("R3", f"no response.in_progress before {frame}")
        if kind == "response.in_progress" and self._before != "response.created":
            problems.should("R3", f"response.in_progress does not directly follow response.created: {frame}")
        if self._terminal is not None:
            problems.must("R9", f"{frame} after the end of the response")
        elif self._error and kind != "response.failed":
            problems.must("R11", f"{frame} after an error")

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
            problems.must("R11", "an error event has an `error` key; its fields belong next to its type")
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
            problems.must("R11", f"an error, but the response is {status}")
        finals = self._items.finals()
        given = response.get("output") or []
        # items that were open when the response failed may be included as far as they were streamed
        spare = len(self._items) - len(finals) if status == "failed" else 0
        if given[: len(finals)] != finals or len(given) > len(finals) + spare:
            problems.must("R9", f"the output is not what was streamed: {len(given)} items, {len(finals)} streamed")

    # --- the complete stream

    def _end(self) -> None:
        problems = self._problems
        broken = self._error or self._terminal == "failed"
        if self._before is None:
            problems.must("R3", "no response.created")
        if self._terminal is None and self._error:
            problems.should("R9", "no response.failed after the error")
        elif self._terminal is None:
            problems.must("R9", "no terminal event")
        self._items.end(self._terminal, broken=broken)
        check_calls(self._items.begun(), self._request, problems, cut=broken or self._terminal == "incomplete")
