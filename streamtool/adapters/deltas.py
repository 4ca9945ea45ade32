"""Parser events as Chat Completions deltas: the values of `choices[0].delta` in chunks.

    deltas = openai_deltas(Parser(tools))
    for piece in model_text:
        for delta in deltas.feed(piece):
            send({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    for delta in deltas.close():
        …
    finish_reason = deltas.finish_reason

A delta contains exactly one of three fields: `content`, `reasoning_content`, or `tool_calls` with a single entry. A
call's first entry contains its id, type and name; later entries contain pieces of the arguments. Text that the parser
discards is omitted.
"""

import uuid
from collections.abc import Callable, Iterable
from typing import Any, Literal

from attrs import define, field

from statemachine import ArgumentsDelta, CallEnd, CallStart, Discarded, Event, Parser, ReasoningDelta, TextDelta

Delta = dict[str, Any]
FinishReason = Literal["stop", "length", "tool_calls"]


def new_call_id() -> str:
    """Return an id in the format that the OpenAI API uses."""
    return f"call_{uuid.uuid4().hex[:24]}"


def openai_deltas(
    parser: Parser, *, new_id: Callable[[], str] = new_call_id, reasoning: str | None = "reasoning_content"
) -> "OpenAIDeltas":
    """Return a converter from this parser's events to deltas.

    `reasoning` is the name of the delta field for reasoning; None omits reasoning. `new_id` creates the id of a call if
    the model wrote no id for it, or repeated the id of an earlier call.
    """
    return OpenAIDeltas(parser, new_id=new_id, reasoning=reasoning)


@define(eq=False)
class OpenAIDeltas:
    """Converts the parser events of one reply to deltas."""

    _parser: Parser
    _new_id: Callable[[], str] = field(kw_only=True)
    _reasoning: str | None = field(kw_only=True)
    _reason: str | None = field(default=None, init=False)
    calls: int = field(default=0, init=False)
    """Number of calls that have begun."""
    ids: list[str] = field(factory=list, init=False)
    """Ids of the calls, in order."""
    incomplete: list[str] = field(factory=list, init=False)
    """Ids of the calls that were cut off or could not be parsed to the end."""

    def feed(self, text: str) -> list[Delta]:
        """Return the deltas for this piece of the reply, or [] if the whole piece has to be buffered."""
        return self.deltas(self._parser.feed(text))

    def close(self, reason: str | None = None) -> list[Delta]:
        """Return the last deltas. `reason` is the model's own finish reason; None and "stop" mean that the model
        stopped on its own.
        """
        self._reason = reason
        return self.deltas(self._parser.close(reason))

    def deltas(self, events: Iterable[Event]) -> list[Delta]:
        """Convert parser events to deltas."""
        return [delta for event in events if (delta := self._delta(event)) is not None]

    @property
    def finish_reason(self) -> FinishReason:
        """Finish reason of the reply, known after `close`. It is `tool_calls` only if calls were made and all of them
        are complete.
        """
        if self.incomplete or self._reason not in (None, "stop", "tool_calls"):
            return "length"
        return "tool_calls" if self.calls else "stop"

    def _delta(self, event: Event) -> Delta | None:
        match event:
            case TextDelta(text=text):
                return {"content": text}
            case ReasoningDelta(text=text):
                return None if self._reasoning is None else {self._reasoning: text}
            case CallStart(index=index, name=name, id=call_id):
                self.calls += 1
                repeated = call_id in self.ids
                self.ids.append(call_id if call_id and not repeated else self._new_id())
                function = {"name": name, "arguments": ""}
                return _call({"index": index, "id": self.ids[-1], "type": "function", "function": function})
            case ArgumentsDelta(index=index, text=text):
                return _call({"index": index, "function": {"arguments": text}})
            case CallEnd(complete=complete):
                if not complete:
                    self.incomplete.append(self.ids[-1])
                return None
            case Discarded():
                return None


def _call(entry: dict[str, Any]) -> Delta:
    return {"tool_calls": [entry]}


def merge_deltas(deltas: Iterable[Delta]) -> Delta:
    """Merge deltas into one: text is joined, and each call becomes one entry."""
    message: Delta = {}
    calls: dict[int, Delta] = {}
    for delta in deltas:
        for key, value in delta.items():
            if key != "tool_calls":
                message[key] = message.get(key, "") + value
                continue
            for entry in value:
                if (known := calls.setdefault(entry["index"], entry)) is not entry:
                    known["function"]["arguments"] += entry["function"]["arguments"]
    return message | {"tool_calls": list(calls.values())} if calls else message


def message_of(deltas: Iterable[Delta]) -> Delta:
    """Merge deltas into the message of a complete reply, whose calls have no index."""
    message = merge_deltas(deltas)
    for call in message.get("tool_calls", ()):
        del call["index"]
    return message
