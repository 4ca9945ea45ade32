"""What a parser finds, as deltas of Chat Completions: what stands under `choices[0].delta` of a chunk.

    deltas = openai_deltas(Parser(tools))
    for piece in model_text:
        for delta in deltas.feed(piece):
            send({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    for delta in deltas.close():
        …
    finish_reason = deltas.finish_reason

A delta holds one thing: `content`, `reasoning_content`, or one entry of `tool_calls` (the first of a call has its id,
its type and its name; those that follow have pieces of the arguments). What the parser discards is left out.
"""

import uuid
from collections.abc import Callable, Iterable
from typing import Any, Literal

from statemachine import ArgumentsDelta, CallEnd, CallStart, Discarded, Event, Parser, ReasoningDelta, TextDelta

Delta = dict[str, Any]
FinishReason = Literal["stop", "length", "tool_calls"]


def new_call_id() -> str:
    """An id as OpenAI's API gives them."""
    return f"call_{uuid.uuid4().hex[:24]}"


def openai_deltas(
    parser: Parser, *, new_id: Callable[[], str] = new_call_id, reasoning: str | None = "reasoning_content"
) -> "OpenAIDeltas":
    """What this parser finds, as deltas. Without `reasoning`, the field of a delta in which it stands, it is left out.

    `new_id` makes the id of a call to which the model gave none, or that of another call.
    """
    return OpenAIDeltas(parser, new_id=new_id, reasoning=reasoning)


class OpenAIDeltas:
    """The deltas of one reply."""

    __slots__ = ("_new_id", "_parser", "_reason", "_reasoning", "calls", "ids", "incomplete")

    def __init__(self, parser: Parser, *, new_id: Callable[[], str], reasoning: str | None) -> None:
        self._parser = parser
        self._new_id = new_id
        self._reasoning = reasoning
        self._reason: str | None = None
        self.calls = 0
        """How many calls have begun."""
        self.ids: list[str] = []
        """Their ids."""
        self.incomplete: list[str] = []
        """The ids of those that were cut, or could not be read to their end."""

    def feed(self, text: str) -> list[Delta]:
        """The deltas that this piece of the reply brings; [] if all of it has to wait."""
        return self.deltas(self._parser.feed(text))

    def close(self, reason: str | None = None) -> list[Delta]:
        """The last deltas. `reason` is the model's own finish reason; None or "stop": it stopped by itself."""
        self._reason = reason
        return self.deltas(self._parser.close(reason))

    def deltas(self, events: Iterable[Event]) -> list[Delta]:
        """Events of the parser as deltas."""
        return [delta for event in events if (delta := self._delta(event)) is not None]

    @property
    def finish_reason(self) -> FinishReason:
        """Of the reply, once it is closed: `tool_calls` only if a call was made and each is complete."""
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


def joined(deltas: Iterable[Delta]) -> Delta:
    """Deltas as one: texts joined, and one entry for each call."""
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
    """Deltas as the message of a whole reply, whose calls have no index."""
    message = joined(deltas)
    for call in message.get("tool_calls", ()):
        del call["index"]
    return message
