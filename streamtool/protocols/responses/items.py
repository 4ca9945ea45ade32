"""Reader for a request's input items.

The input is one flat list in which messages, reasoning, calls and results are separate items. Adjacent assistant items
become one message with its calls, and adjacent results become one user message. Items with a role but no `type` are
messages. Items of the origin's own tools (such as `web_search_call`) and items that only the origin can read (such as a
`compaction` written by another server) are dropped and logged; the items around a dropped item count as adjacent.
"""

from collections.abc import Mapping, Sequence

from attrs import define, evolve, field, frozen

from streamtool.core.conversation import Message, Part, ToolCall, ToolResult
from streamtool.core.json_value import Fields, Json
from streamtool.protocols.responses.compaction import summary_message
from streamtool.protocols.responses.parts import content
from streamtool.protocols.responses.typed_calls import FORMATS_BY_ITEM, TYPED_RESULTS, typed_call, typed_result
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.fields import list_of, object_at, refused, shown, string, words


@frozen
class Items:
    """Contents of the input items."""

    messages: tuple[Message, ...]
    tools: tuple[tuple[str, list[Json]], ...]
    """Lists of tools in the input, each with its location in the request."""
    dropped: tuple[str, ...]
    """Notes about dropped items, for the log."""


@define(eq=False)
class _Turns:
    """Builder of messages from items. The items of a turn are collected until the next turn begins."""

    messages: list[Message] = field(factory=list, init=False)
    tools: list[tuple[str, list[Json]]] = field(factory=list, init=False)
    dropped: list[str] = field(factory=list, init=False)
    _names: dict[str, str] = field(factory=dict, init=False)  # names of the calls seen so far, by id
    _waiting: dict[str, dict[str, None]] = field(factory=dict, init=False)  # ids of the unanswered calls, by name
    _programs: dict[str, str] = field(factory=dict, init=False)  # programs that the origin has started, by id
    _raw: list[Fields] = field(factory=list, init=False)  # items of the current turn (the assistant's or results)
    _said: bool = field(default=False, init=False)
    _content: list[Part] = field(factory=list, init=False)
    _calls: list[ToolCall] = field(factory=list, init=False)
    _reasoning: list[str] = field(factory=list, init=False)
    _results: list[ToolResult] = field(factory=list, init=False)

    def add(self, fields: Fields, place: str) -> None:
        kind = fields.get("type") or ("message" if "role" in fields else None)
        match kind:
            case "message":
                self._message(fields, place)
            case "function_call" | "custom_tool_call":
                self._assistant(fields)
                self._called(_call(fields, place, custom=kind == "custom_tool_call"))
            case "function_call_output" | "custom_tool_call_output":
                fields = self._with_call_id(fields, place)
                output = content(fields, "output", place, optional=True)
                self._result(ToolResult(string(fields, "call_id", place), output), fields)
            case "reasoning":
                self._assistant(fields)
                self._reasoning += _thoughts(fields)
            case "tool_search_call" if fields.get("call_id") is None or fields.get("execution") == "server":
                self.dropped.append(f"input item of type {kind}")
            case str() if kind in FORMATS_BY_ITEM:
                self._assistant(fields)
                self._called(typed_call(kind, fields, place))
            case "tool_search_output":
                self.tools.append((f"{place}.tools", list_of(fields, "tools", place)))
                if words(fields, "call_id", place) in self._names:  # the client ran the search
                    self._result(typed_result(kind, fields, place), fields)
            case "program":
                self._programs[string(fields, "call_id", place)] = words(fields, "code", place)
            case "program_output":
                self._program(fields, place)
            case str() if kind in TYPED_RESULTS:
                if words(fields, "id", place) not in self._names:  # a local shell's result may have the call's id
                    fields = self._with_call_id(fields, place)
                self._result(typed_result(kind, fields, place), fields)
            case "compaction" if said := summary_message(fields):
                self._message(said, place)
            case "additional_tools":
                self.tools.append((f"{place}.tools", list_of(fields, "tools", place)))
            case str():
                self.dropped.append(f"input item of type {kind}")
            case _:
                raise refused(f"{place}.type", "An input item must have a `type` or a `role`.")

    def flush(self) -> None:
        """End the current turn and append its message."""
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
        """Add a program that the origin has run, as a call with its result."""
        identity = string(fields, "call_id", place)
        self._assistant(fields)
        arguments = wire.encode({"code": self._programs.get(identity, "")}).decode()
        self._called(ToolCall(identity, "program", arguments))
        self._result(ToolResult(identity, content(fields, "result", place, optional=True)), fields)

    def _called(self, call: ToolCall) -> None:
        self._calls.append(call)
        self._names[call.id] = call.name
        self._waiting.setdefault(call.name, {})[call.id] = None

    def _with_call_id(self, fields: Fields, place: str) -> Fields:
        """Return an output's fields with the id of its call. An output without an id belongs to the only unanswered
        call, or, if there are several, to the only one with its name.
        """
        if fields.get("call_id") not in (None, ""):
            return fields
        waiting = [identity for group in self._waiting.values() for identity in group]
        if len(waiting) > 1:
            name, namespace = words(fields, "name", place), words(fields, "namespace", place)
            waiting = list(self._waiting.get(f"{namespace}.{name}" if namespace else name, ()))
        if len(waiting) != 1:
            raise refused(f"{place}.call_id", "This output does not match exactly one unanswered call: set `call_id`.")
        return {**fields, "call_id": waiting[0]}

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
                raise refused(f"{place}.role", f"A message's role must be {known}, not {shown(role)}.")


def read_items(items: Sequence[tuple[str, Json]]) -> Items:
    """Return the contents of the items, which are paired with their locations in the request. Raises RequestError."""
    turns = _Turns()
    for place, item in items:
        turns.add(object_at(item, place), place)
    turns.flush()
    _no_open_calls(turns.messages)
    return Items(tuple(turns.messages), tuple(turns.tools), tuple(dict.fromkeys(turns.dropped)))


def _no_open_calls(messages: Sequence[Message]) -> None:
    """Reject a conversation that ends with unanswered calls, because the model needs their results to reply."""
    answered: set[str] = set()
    for message in reversed(messages):
        if message.calls:
            for call in message.calls:
                if call.id not in answered:
                    raise refused(
                        "input",
                        f"No tool output found for function call {shown(call.id)} to {shown(call.name)}: "
                        "add its output item (`function_call_output`, or that of its tool's type) before "
                        "requesting the next reply.",
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
        raise refused(f"{place}.arguments", "Arguments must be a string containing a JSON object.")
    return ToolCall(identity, name, arguments if arguments and arguments.strip() else "{}")


def _thoughts(fields: Fields) -> list[str]:
    """Return the pieces of text in a reasoning item's content, or in its summary if it has no content."""
    for key in ("content", "summary"):
        value = fields.get(key)
        parts = value if isinstance(value, list) else ()
        found = [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
        if any(found):
            return [text for text in found if text]
    return []
