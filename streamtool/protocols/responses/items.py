"""Reads the items of a request's input into messages.

The input is one flat list: messages, reasoning, calls and results are items of their own. Neighbouring items of the
assistant become one message with its calls, neighbouring results one message of the user. Items without `type` that
have a role are messages. What only the origin's own tools leave behind (`web_search_call`), and what only the origin
can read (a `compaction` that is not ours), is left out and recorded; it does not part the items around it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from streamtool.conversation import Message, Part, ToolCall, ToolResult
from streamtool.protocols import wire
from streamtool.protocols.fields import Fields, list_of, object_at, refused, shown, string, words
from streamtool.protocols.responses.compaction import summary
from streamtool.protocols.responses.parts import content
from streamtool.protocols.responses.typed_calls import TYPED_CALLS, TYPED_RESULTS, typed_call, typed_result

Json = Any  # a decoded JSON value


@frozen
class Items:
    """What the items say."""

    messages: tuple[Message, ...]
    tools: tuple[tuple[str, list[Json]], ...]
    """The lists of tools among them, each with its place."""
    dropped: tuple[str, ...]
    """What was left out, for the log."""


class _Turns:
    """Makes messages of items; those of one turn are gathered until an item of another one comes."""

    __slots__ = (
        "_calls", "_content", "_names", "_programs", "_raw", "_reasoning", "_results", "_said", "_waiting", "dropped",
        "messages", "tools",
    )  # fmt: skip

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.tools: list[tuple[str, list[Json]]] = []
        self.dropped: list[str] = []
        self._names: dict[str, str] = {}  # of the calls seen so far, by id
        self._waiting: dict[str, dict[str, None]] = {}  # ids of the calls without a result, by name
        self._programs: dict[str, str] = {}  # that the origin has begun to run, by id
        self._raw: list[Fields] = []  # of the turn that is gathered: the assistant's, or results
        self._said = False
        self._content: list[Part] = []
        self._calls: list[ToolCall] = []
        self._reasoning: list[str] = []
        self._results: list[ToolResult] = []

    def add(self, fields: Fields, place: str) -> None:
        kind = fields.get("type") or ("message" if "role" in fields else None)
        match kind:
            case "message":
                self._message(fields, place)
            case "function_call" | "custom_tool_call":
                self._assistant(fields)
                self._called(_call(fields, place, custom=kind == "custom_tool_call"))
            case "function_call_output" | "custom_tool_call_output":
                output = content(fields, "output", place, optional=True)
                self._result(ToolResult(self._answered(fields, place), output), fields)
            case "reasoning":
                self._assistant(fields)
                self._reasoning += _thoughts(fields)
            case "tool_search_call" if fields.get("call_id") is None or fields.get("execution") == "server":
                self.dropped.append(f"input item of type {kind}")
            case str() if kind in TYPED_CALLS:
                self._assistant(fields)
                self._called(typed_call(kind, fields, place))
            case "tool_search_output":
                self.tools.append((f"{place}.tools", list_of(fields, "tools", place)))
                if words(fields, "call_id", place) in self._names:  # the client has searched
                    self._result(typed_result(kind, fields, place), fields)
            case "program":
                self._programs[string(fields, "call_id", place)] = words(fields, "code", place)
            case "program_output":
                self._program(fields, place)
            case str() if kind in TYPED_RESULTS:
                self._result(typed_result(kind, fields, place), fields)
            case "compaction" if said := summary(fields):
                self._message(said, place)
            case "additional_tools":
                self.tools.append((f"{place}.tools", list_of(fields, "tools", place)))
            case str():
                self.dropped.append(f"input item of type {kind}")
            case _:
                raise refused(f"{place}.type", "An input item says what it is in `type`, or has a `role`.")

    def flush(self) -> None:
        """The turn that was gathered is over."""
        if self._results:
            self.messages.append(Message("user", results=tuple(self._results), raw=tuple(self._raw)))
        elif self._said or self._calls or self._reasoning:
            self.messages.append(
                Message(
                    "assistant",
                    tuple(self._content),
                    calls=tuple(self._calls),
                    reasoning="\n\n".join(self._reasoning),
                    raw=tuple(self._raw),
                )
            )
        for gathered in (self._results, self._content, self._calls, self._reasoning, self._raw):
            gathered.clear()
        self._said = False

    def _program(self, fields: Fields, place: str) -> None:
        """A program that the origin has run is a call with its result; before that it is neither."""
        identity = string(fields, "call_id", place)
        self._assistant(fields)
        arguments = wire.encode({"code": self._programs.get(identity, "")}).decode()
        self._called(ToolCall(identity, "program", arguments))
        self._result(ToolResult(identity, content(fields, "result", place, optional=True)), fields)

    def _called(self, call: ToolCall) -> None:
        self._calls.append(call)
        self._names[call.id] = call.name
        self._waiting.setdefault(call.name, {})[call.id] = None

    def _answered(self, fields: Fields, place: str) -> str:
        """The id of the call that an output answers. One that does not say it answers the only call it can mean."""
        if fields.get("call_id") is not None:
            return string(fields, "call_id", place)
        name, namespace = words(fields, "name", place), words(fields, "namespace", place)
        full = f"{namespace}.{name}" if namespace else name
        groups = [self._waiting.get(full, {})] if full else self._waiting.values()
        waiting = next(iter(groups), {})
        if len(groups) != 1 or len(waiting) != 1:
            raise refused(f"{place}.call_id", "Not exactly one call waits for this output: say which in `call_id`.")
        return next(iter(waiting))

    def _result(self, result: ToolResult, fields: Fields) -> None:
        if not self._results:
            self.flush()
        self._raw.append(fields)
        name = self._names.get(result.id)
        waiting = self._waiting.get(name or "", {})
        waiting.pop(result.id, None)
        if name is not None and not waiting:
            self._waiting.pop(name, None)
        cut = fields.get("status") in ("incomplete", "in_progress")
        self._results.append(evolve(result, name=name, partial=cut))

    def _assistant(self, fields: Fields) -> None:
        if self._results:
            self.flush()
        self._raw.append(fields)

    def _message(self, fields: Fields, place: str) -> None:
        match fields.get("role"):
            case "assistant":
                self._assistant(fields)
                self._said = True
                self._content += content(fields, "content", place, optional=True)
            case "user":
                self.flush()
                self.messages.append(Message("user", content(fields, "content", place), raw=(fields,)))
            case "system" | "developer":
                self.flush()
                self.messages.append(Message("system", content(fields, "content", place), raw=(fields,)))
            case role:
                known = "developer, system, user or assistant"
                raise refused(f"{place}.role", f"A message's role is {known}, not {shown(role)}.")


def read_items(items: Sequence[tuple[str, Json]]) -> Items:
    """The messages of the items, each of which comes with its place; raises RequestError."""
    turns = _Turns()
    for place, item in items:
        turns.add(object_at(item, place), place)
    turns.flush()
    _no_open_calls(turns.messages)
    return Items(tuple(turns.messages), tuple(turns.tools), tuple(dict.fromkeys(turns.dropped)))


def _no_open_calls(messages: Sequence[Message]) -> None:
    """Refuse a conversation that ends while a call waits for its result: there is nothing that could be answered."""
    answered: set[str] = set()
    for message in reversed(messages):
        if message.calls:
            for call in message.calls:
                if call.id not in answered:
                    raise refused(
                        "input",
                        f"No tool output found for function call {shown(call.id)} of {shown(call.name)}: "
                        "answer it with its output item (`function_call_output`, or the one of its tool's type) before "
                        "asking for the next reply.",
                    )
            return
        if not message.results:
            return
        answered.update(result.id for result in message.results)


# --- single items -----------------------------------------------------------------------------------------------------


def _call(fields: Fields, place: str, *, custom: bool) -> ToolCall:
    identity = string(fields, "call_id", place)
    name = string(fields, "name", place)
    namespace = words(fields, "namespace", place)
    if namespace:
        name = f"{namespace}.{name}"
    if custom:
        return ToolCall(identity, name, words(fields, "input", place), custom=True)
    arguments = fields.get("arguments")
    if isinstance(arguments, Mapping):  # some agents send the object itself
        arguments = wire.encode(arguments).decode()
    elif arguments is not None and not isinstance(arguments, str):
        raise refused(f"{place}.arguments", "Arguments are a string that holds a JSON object.")
    return ToolCall(identity, name, arguments if arguments and arguments.strip() else "{}")


def _thoughts(fields: Fields) -> list[str]:
    """The pieces of text of a reasoning item: its content, else its summary."""
    for key in ("content", "summary"):
        value = fields.get(key)
        parts = value if isinstance(value, list) else ()
        found = [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
        if any(found):
            return [text for text in found if text]
    return []
