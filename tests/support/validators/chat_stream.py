"""The rules for a streamed Chat Completions reply (C1–C20)."""

from collections.abc import Mapping
from typing import Any, Final

from attrs import Factory, define
from support.validators.chat_complete import (
    CUT,
    REASONS,
    Made,
    check_arguments,
    check_error,
    check_id,
    check_reason,
    check_request,
    check_usage,
    count,
    envelope,
    is_count,
    unique,
)
from support.validators.framing import (
    Headers,
    Problems,
    SseFrame,
    Violation,
    frames,
    lone_surrogates,
    reading,
    strict_json,
)

Json = Any  # a decoded JSON value

_STRINGS: Final = ("role", "content", "refusal", "reasoning_content", "reasoning")


@define
class _StreamedCall:
    """A call, as far as it has been received."""

    id: Json
    name: str
    custom: bool
    legacy: bool = False
    pieces: list[str] = Factory(list)


@define
class _StreamedChoice:
    """A choice, as far as it has been received."""

    index: int
    begun: bool = False
    calls: list[_StreamedCall] = Factory(list)
    reason: str | None = None
    reasons: int = 0


def validate_chat_stream(
    data: bytes, request: Mapping[str, Json] | None = None, *, headers: Headers | None = None
) -> list[Violation]:
    """Return the violations of a stream. `request` is the body that it answers; `headers` are those of the response."""
    return _ChatStream(request).check(data, headers)


class _ChatStream:
    """The validator of one stream."""

    __slots__ = ("_choices", "_done", "_error", "_name", "_problems", "_request", "_usage")

    def __init__(self, request: Mapping[str, Json] | None) -> None:
        self._request = request
        self._problems = Problems()
        self._choices: dict[int, _StreamedChoice] = {}
        self._name: tuple[Json, ...] | None = None  # id, creation time and model of the first chunk
        self._done = 0
        self._error = False
        self._usage = 0

    def check(self, data: bytes, headers: Headers | None) -> list[Violation]:
        problems = self._problems
        for frame in frames(data, headers, problems):
            self._frame(frame)
        if self._done != 1 and not (self._error and self._done == 0):
            problems.must("C3", f"{self._done} end markers instead of one")
        if not self._error:
            self._end()
        for choice in self._choices.values():
            with reading(f"choice {choice.index} cannot be read", problems):
                self._calls(choice)
        ids = [call.id for choice in self._choices.values() for call in choice.calls if isinstance(call.id, str)]
        unique(ids, "C13", problems)
        return problems.found

    # --- one event

    def _frame(self, frame: SseFrame) -> None:
        problems = self._problems
        if frame.name is not None:
            if frame.name.startswith("thread."):
                problems.must("C2", f"{frame} is named {frame.name!r}")
            else:
                problems.should("C2", f"{frame} is named {frame.name!r}")
        if frame.data == "[DONE]":
            self._done += 1
            return
        if self._done:
            problems.must("C3", f"{frame} after the end marker")
        if self._error:
            problems.must("C18", f"{frame} after an error")
        try:
            chunk = strict_json(frame.data)
        except ValueError as error:
            problems.must("C1", f"{frame} is not valid JSON: {error}")
            return
        if not isinstance(chunk, dict):
            problems.must("C1", f"{frame} is not an object")
            return
        if lone_surrogates(chunk):
            problems.must("F10", f"{frame} contains an unpaired surrogate")
        with reading(f"{frame} has a value of an unexpected type", problems):
            self._chunk(frame, chunk)

    def _chunk(self, frame: SseFrame, chunk: dict[str, Json]) -> None:
        problems = self._problems
        if "error" in chunk:
            if chunk["error"] is None or "choices" in chunk:
                problems.must("C18", f"an `error` key in a chunk: {frame}")
            else:
                self._error = True
                check_error(chunk, "C18", problems)
                return
        envelope(chunk, "chat.completion.chunk", "C4", str(frame), problems)
        name = tuple(chunk.get(key) for key in ("id", "created", "model"))
        if self._name is None:
            self._name = name
        elif name != self._name:
            problems.must("C5", f"id, time or model change: {frame}")
        choices = chunk.get("choices")
        if not isinstance(choices, list):
            return
        usage = chunk.get("usage")
        if self._usage:
            problems.must("C14", f"{frame} after the usage")
        if usage is not None or not choices:
            self._usage_chunk(frame, usage, choices)
        for choice in choices:
            self._choice(frame, choice)

    def _usage_chunk(self, frame: SseFrame, usage: Json, choices: list[Json]) -> None:
        problems = self._problems
        if choices:
            problems.must("C14", f"usage and choices in one chunk: {frame}")
            return
        if usage is None:
            problems.must("C14", f"a chunk with neither choices nor usage: {frame}")
            return
        self._usage += 1
        check_usage(usage, "C14", problems)

    # --- one choice of a chunk

    def _choice(self, frame: SseFrame, entry: dict[str, Json]) -> None:
        problems = self._problems
        index = entry.get("index")
        if not is_count(index):
            problems.must("C6", f"the index of a choice is {index!r}: {frame}")
            return
        wanted = count(self._request)
        if wanted is not None and index >= wanted:
            problems.must("C6", f"choice {index} was not requested: {frame}")
        choice = self._choices.get(index)
        if choice is None:
            if index != len(self._choices):
                problems.must("C6", f"choice {index} appears before choice {len(self._choices)}")
            choice = self._choices[index] = _StreamedChoice(index)
        if "finish_reason" not in entry:
            problems.must("C6", f"no finish_reason key: {frame}")
        delta = entry.get("delta")
        if not isinstance(delta, dict):
            problems.must("C6", f"the delta is not an object: {frame}")
            delta = {}
        if choice.reasons:
            problems.must("C8", f"{frame} after the finish reason of choice {index}")
        self._role(frame, choice, delta)
        self._text(frame, choice, delta)
        opened = self._fragments(frame, choice, delta)
        reason = entry.get("finish_reason")
        if reason is not None:
            choice.reasons += 1
            choice.reason = reason
            if reason not in REASONS:
                problems.must("C8", f"the finish reason is {reason!r}")
            if opened:
                problems.must("C8", f"the finish reason is in the chunk that opens a call: {frame}")
            if delta:
                problems.should("C8", f"the finish reason is not in a separate chunk: {frame}")

    def _role(self, frame: SseFrame, choice: _StreamedChoice, delta: dict[str, Json]) -> None:
        problems = self._problems
        if not choice.begun:
            choice.begun = True
            if delta.get("role") != "assistant":
                problems.must("C7", f"the first delta of choice {choice.index} has the role {delta.get('role')!r}")
        elif delta.get("role"):
            problems.must("C7", f"the role of choice {choice.index} is repeated: {frame}")
        elif "role" in delta:
            problems.should("C7", f"a role key in a later delta: {frame}")

    def _text(self, frame: SseFrame, choice: _StreamedChoice, delta: dict[str, Json]) -> None:
        problems = self._problems
        for key in _STRINGS:
            value = delta.get(key)
            if value is not None and not isinstance(value, str):
                problems.must("C16", f"`{key}` is not a string: {frame}")
        content = delta.get("content")
        if isinstance(content, str) and content and choice.calls:
            problems.should("C15", f"text after a call: {frame}")
        if "content" in delta and not content and not delta.get("role"):
            problems.should("C16", f"an empty piece of text: {frame}")

    def _fragments(self, frame: SseFrame, choice: _StreamedChoice, delta: dict[str, Json]) -> bool:
        """Check the fragments of calls in a delta, and return whether one of them opens a call."""
        problems = self._problems
        opened = False
        if "tool_calls" in delta:
            given = delta["tool_calls"]
            if not isinstance(given, list) or not given:
                problems.must("C9", f"`tool_calls` is not a list, or is empty: {frame}")
                given = []
            if len(given) > 1:
                problems.should("C9", f"{len(given)} entries of `tool_calls` in one chunk: {frame}")
            for item in given:
                opened = self._fragment(frame, choice, item) or opened
        legacy = delta.get("function_call")
        if legacy is not None:
            if not choice.calls:
                opened = True
                choice.calls.append(_StreamedCall(None, legacy.get("name"), custom=False, legacy=True))
                if not isinstance(legacy.get("name"), str):
                    problems.must("C9", f"a function call begins without its name: {frame}")
            elif "name" in legacy:
                problems.must("C11", f"the name of the function call is repeated: {frame}")
            self._add(frame, choice.calls[-1], legacy.get("arguments", None if not opened else ""), opened=opened)
        return opened

    def _fragment(self, frame: SseFrame, choice: _StreamedChoice, item: dict[str, Json]) -> bool:
        problems = self._problems
        index = item.get("index")
        if not is_count(index):
            problems.must("C9", f"the index of a call is {index!r}: {frame}")
            return False
        custom = "custom" in item
        inner, key = (item["custom"], "input") if custom else (item.get("function"), "arguments")
        if not isinstance(inner, dict):
            problems.must("C9", f"a call has no `function` object: {frame}")
            return False
        last = len(choice.calls) - 1
        if index == last + 1:
            kind, name = item.get("type"), inner.get("name")
            if kind != ("custom" if custom else "function") or not isinstance(name, str) or not name:
                problems.must("C9", f"a call begins without its type or name: {frame}")
            if not isinstance(item.get("id"), str) or not item["id"]:
                problems.must("C9", f"a call begins without its id: {frame}")
            else:
                check_id(item["id"], "C13", problems)
            call = _StreamedCall(item.get("id"), str(name), custom)
            choice.calls.append(call)
            self._add(frame, call, inner.get(key), opened=True)
            return True
        if index != last:
            problems.must("C10", f"call {index} where call {last} is open: {frame}")
            return False
        call = choice.calls[last]
        for found, what in ((item, "id"), (item, "type"), (inner, "name")):
            if what in found:
                if what != "type" and found[what]:
                    problems.must("C11", f"`{what}` of call {index} is repeated: {frame}")
                else:
                    problems.should("C11", f"a `{what}` key in a later piece of call {index}: {frame}")
                if what == "type" and found[what] is None:
                    problems.must("C11", f"the type of call {index} is reset to null: {frame}")
        self._add(frame, call, inner.get(key), opened=False)
        return False

    def _add(self, frame: SseFrame, call: _StreamedCall, text: Json, *, opened: bool) -> None:
        if not isinstance(text, str):
            self._problems.must("C9", f"arguments are not a string: {frame}")
            return
        if not text and not opened:
            self._problems.should("C9", f"an empty piece of arguments: {frame}")
        call.pieces.append(text)

    # --- the complete stream

    def _end(self) -> None:
        """Check what must be present in a stream that did not break off."""
        problems = self._problems
        wanted = count(self._request)
        if wanted is not None and len(self._choices) < wanted:
            problems.must("C6", f"{len(self._choices)} of {wanted} choices appeared")
        for choice in self._choices.values():
            if choice.reasons != 1:
                problems.must("C8", f"choice {choice.index} has {choice.reasons} finish reasons")
        if self._request is None:
            if self._usage > 1:
                problems.must("C14", f"{self._usage} usage chunks")
            return
        asked = bool((self._request.get("stream_options") or {}).get("include_usage"))
        if self._usage != asked:
            problems.must("C14", f"{self._usage} usage chunks, {int(asked)} requested")

    def _calls(self, choice: _StreamedChoice) -> None:
        problems = self._problems
        calls = [
            Made(call.id, call.name, "".join(call.pieces), custom=call.custom, legacy=call.legacy)
            for call in choice.calls
        ]
        # a stream that broke off is judged like a truncated one
        reason = CUT[0] if self._error and choice.reason is None else choice.reason
        for call in calls:
            check_arguments(call, reason, "C12", problems)
        if not self._error:
            check_reason(reason, calls, "C17", f"choice {choice.index}", problems)
        check_request(calls, self._request, reason, problems)
