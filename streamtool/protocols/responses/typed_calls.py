"""Conversion between calls to typed tools and the items that represent them.

The model writes arguments according to the schema in `typed_tools`; the client receives an item of the tool's own type.
If the item's type allows an item without content, the item is added when the call begins. It is completed when the call
ends. Shell commands are streamed while the model writes them (`shell_commands`); the protocol has no such events for
other items. If the arguments do not form a valid item, the item is marked as incomplete, like that of a truncated call.
"""

from collections.abc import Callable, Mapping
from typing import Final

from attrs import Factory, define, frozen

from streamtool.core.conversation import Part, TextPart, ToolCall, ToolResult
from streamtool.core.json_value import Fields, Json
from streamtool.protocols.responses.parts import content, part
from streamtool.protocols.responses.shell_commands import CommandEvent, ShellCommands
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.fields import list_of, string


@frozen
class CallFormat:
    """Format of the calls to one tool."""

    name: str
    """Tool name, as the model knows it."""
    item: str
    """Type of the item."""
    prefix: str
    """Prefix of the item's id."""
    initial_fields: Fields | None
    """Fields of an item that is added before the arguments are known; None if the type does not allow such an item."""
    write: Callable[[Json], list[Fields]]
    """Function that converts arguments to the fields of one or more items; an empty list means that the arguments are
    invalid.
    """
    read: Callable[[Fields], Json]
    """Function that converts an item to arguments."""
    streams_commands: bool = False
    """Whether the item's commands are streamed to the client as they are written."""


@define(eq=False)
class TypedCall:
    """Call that is being written by the model."""

    index: int
    """Index of the call in the reply events."""
    place: int
    """Index of the call's first item in the output."""
    id: str
    spelling: CallFormat
    arguments: bytearray = Factory(bytearray)
    """Arguments received so far, in one buffer, because a list of pieces takes ten times as much memory."""
    commands: ShellCommands = Factory(lambda self: ShellCommands(self.place), takes_self=True)
    """State of the command events, which is used only if the call's `spelling` streams commands."""

    def feed(self, text: str) -> int:
        """Add a piece of the arguments, and return its size in bytes."""
        piece = text.encode("utf-8", "surrogatepass")
        self.arguments += piece
        return len(piece)

    def command_events(self, text: str) -> list[CommandEvent]:
        """Return the events for this piece of the arguments."""
        return self.commands.feed(text) if self.spelling.streams_commands else []

    def close(self) -> tuple[list[Fields], list[CommandEvent]]:
        """Return the fields of the call's items, and the events that must be sent before the items.

        If the commands already sent to the client differ from the final ones (for example, because a key was repeated),
        the list of items is empty, because it is unclear which commands the model intended.
        """
        items = self._items()
        if not items or not self.spelling.streams_commands:
            return items, []
        left = self.commands.close(items[0]["action"]["commands"])
        return ([], []) if left is None else (items, left)

    def _items(self) -> list[Fields]:
        text = wire.repaired(self.arguments.decode("utf-8", "surrogatepass"))
        try:
            value = wire.decode_tolerant(text.encode()) if text.strip() else {}
        except ValueError:
            value = text
        return self.spelling.write(value)

    def fields(self, own: Fields, number: int = 0) -> bytes:
        """Return the JSON fields of the item with this number, without braces. They consist of the call's id and the
        item's `own` fields.
        """
        identity = f"{self.id[:36]}_{number}" if number else self.id
        return wire.encode({"call_id": identity, **own})[1:-1]


# --- values -----------------------------------------------------------------------------------------------------------


def _object(value: Json) -> Fields:
    return value if isinstance(value, Mapping) else {}


def _texts(value: Json) -> list[str]:
    """Return the value if it is a list of strings. A string becomes a list of one string, and anything else an empty
    list.
    """
    if isinstance(value, str):
        return [value] if value else []
    return value if isinstance(value, list) and all(isinstance(item, str) for item in value) else []


def _count(value: Json) -> int | None:
    """Return an integer, which may be written as a string of digits or as a float, or None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value[:18])
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _without_empty(fields: Fields) -> Fields:
    """Return the fields whose values are not empty."""
    return {key: value for key, value in fields.items() if value not in (None, {}, [])}


# --- shell ------------------------------------------------------------------------------------------------------------


def _shell(value: Json) -> list[Fields]:
    given = _object(value)
    commands = _texts(given.get("commands") or given.get("command") or (value if isinstance(value, str) else None))
    return [_shell_item(commands, given)] if commands else []


def _shell_item(commands: list[str], given: Fields) -> Fields:
    action = {key: _count(given.get(key)) for key in ("timeout_ms", "max_output_length")}
    return {"action": {"commands": commands, **action}, "environment": {"type": "local"}}


def _shell_arguments(item: Fields) -> Json:
    return _without_empty(_object(item.get("action")))


def _shell_result(fields: Fields, place: str) -> tuple[Part, ...]:  # noqa: ARG001  all result functions have the same parameters
    lines: list[str] = []
    value = fields.get("output")
    if isinstance(value, str):
        return (TextPart(value),) if value else ()
    for run in value if isinstance(value, list) else ():
        if isinstance(run, Mapping):
            lines += _command_output(run)
        elif isinstance(run, str):
            lines.append(run)
    return (TextPart("\n".join(lines)),) if lines else ()


def _command_output(fields: Fields) -> list[str]:
    """Return a command's output and its outcome, line by line."""
    out, err = (fields.get(key) for key in ("stdout", "stderr"))
    lines = [out.rstrip("\n")] if isinstance(out, str) and out else []
    lines += ["stderr:", err.rstrip("\n")] if isinstance(err, str) and err else []
    match fields.get("outcome"):
        case {"type": "timeout"}:
            lines.append("timed out")
        case {"exit_code": code}:
            lines.append(f"exit code {code}")
    return lines


# --- local shell ------------------------------------------------------------------------------------------------------


def _local_shell(value: Json) -> list[Fields]:
    given = _object(value)
    command = given.get("command") if given else value
    if isinstance(command, str) and command:  # a command line, which requires a shell
        command = ["bash", "-lc", command]
    return [_local_shell_item(words, given)] if (words := _texts(command)) else []


def _local_shell_item(command: list[str], given: Fields) -> Fields:
    env = {key: value for key, value in _object(given.get("env")).items() if isinstance(value, str)}
    directory = given.get("working_directory")
    where = directory if isinstance(directory, str) and directory else None
    timeout = _count(given.get("timeout_ms"))
    action = {"type": "exec", "command": command, "env": env, "timeout_ms": timeout, "working_directory": where}
    return {"action": action}


def _local_shell_arguments(item: Fields) -> Json:
    return {key: value for key, value in _without_empty(_object(item.get("action"))).items() if key != "type"}


def _plain_result(fields: Fields, place: str) -> tuple[Part, ...]:
    return content(fields, "output", place, optional=True)


# --- patches ----------------------------------------------------------------------------------------------------------

_HEADS: Final = {
    "*** Add File: ": "create_file",
    "*** Update File: ": "update_file",
    "*** Delete File: ": "delete_file",
}
_ENVELOPE: Final = ("*** Begin Patch", "*** End Patch")


def _patch(value: Json) -> list[Fields]:
    """Return one operation per file. The arguments may be an entire patch in the format that models have been trained
    on.
    """
    given = _object(_object(value).get("operation") or value)
    texts = [text for text in (value, *given.values()) if isinstance(text, str)]
    for text in texts:
        if text.lstrip().startswith(_ENVELOPE[0]) and (operations := _operations(text)):
            return [{"operation": operation} for operation in operations]
    kind, path, diff = (given.get(key) for key in ("type", "path", "diff"))
    if not isinstance(path, str) or not path or kind not in _HEADS.values():
        return []
    operation = {"type": kind, "path": path}
    return [{"operation": operation if kind == "delete_file" else {**operation, "diff": _text(diff)}}]


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""


def _operations(patch: str) -> list[dict[str, str]]:
    """Return the operations in an entire patch. Each diff consists of the patch's lines for the file, verbatim."""
    found: list[dict[str, str]] = []
    lines: list[str] = []
    for line in patch.strip().split("\n"):
        head = next((head for head in _HEADS if line.startswith(head)), None)
        if head is not None:
            lines = []
            found.append({"type": _HEADS[head], "path": line[len(head) :].strip()})
        elif line.strip() not in _ENVELOPE:
            lines.append(line)
        if found and found[-1]["type"] != "delete_file":
            found[-1]["diff"] = "\n".join(lines)
    return found


def _patch_arguments(item: Fields) -> Json:
    return _object(item.get("operation"))


def _patch_result(fields: Fields, place: str) -> tuple[Part, ...]:
    return _plain_result(fields, place) or (TextPart(_text(fields.get("status"))),)


# --- the computer -----------------------------------------------------------------------------------------------------


def _points(value: Json) -> list[Fields]:
    """Return a list of points, or an empty list if a point lacks a coordinate."""
    given = value if isinstance(value, list) else []
    points: list[Fields] = [{key: _count(_object(point).get(key)) for key in ("x", "y")} for point in given]
    return [] if any(None in point.values() for point in points) else points


_POINTED: Final[Fields] = {"x": _count, "y": _count}
_ACTIONS: Final[Mapping[str, Fields]] = {
    "click": _POINTED,
    "double_click": _POINTED,
    "move": _POINTED,
    "drag": {"path": _points},
    "keypress": {"keys": _texts},
    "screenshot": {},
    "scroll": _POINTED,
    "type": {"text": _text},
    "wait": {},
}
"""Fields that each type of action requires, with the functions that read them."""
_BUTTONS: Final = ("left", "right", "wheel", "back", "forward")
_NO_CHECKS: Final[Fields] = {"pending_safety_checks": []}


def _action(value: Json) -> Fields | None:
    """Return one action, or None if its type is unknown or a required field is missing."""
    given = _object(value)
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in _ACTIONS:
        return None
    action = {"type": kind, **{key: read(given.get(key)) for key, read in _ACTIONS[kind].items()}}
    if any(found in (None, []) for found in action.values()):
        return None
    if kind == "click":
        action["button"] = given["button"] if given.get("button") in _BUTTONS else "left"
    if kind == "scroll":
        action |= {key: _count(given.get(key)) or 0 for key in ("scroll_x", "scroll_y")}
    held = _texts(given.get("keys"))
    return {**action, "keys": held} if held else action


def _computer(value: Json) -> list[Fields]:
    given = _object(value)
    actions = given.get("actions") or [given.get("action") or given]
    read = [_action(action) for action in actions] if isinstance(actions, list) else [None]
    return [] if None in read else [{"actions": read, **_NO_CHECKS}]


def _computer_preview(value: Json) -> list[Fields]:
    """Return one item per action, because an item can contain only one."""
    return [{"action": action, **_NO_CHECKS} for item in _computer(value) for action in item["actions"]]


def _computer_arguments(item: Fields) -> Json:
    return _without_empty({key: item.get(key) for key in ("action", "actions")})


def _screenshot(fields: Fields, place: str) -> tuple[Part, ...]:
    value = fields.get("output")
    return (part(value, f"{place}.output"),) if isinstance(value, Mapping) else _plain_result(fields, place)


# --- tool search ------------------------------------------------------------------------------------------------------


def _tool_search(value: Json) -> list[Fields]:
    return [{"arguments": value, "execution": "client"}] if isinstance(value, Mapping) else []


def _tool_search_arguments(item: Fields) -> Json:
    arguments = item.get("arguments")
    try:
        return wire.decode_tolerant(arguments.encode()) if isinstance(arguments, str) else _object(arguments)
    except ValueError:
        return {}


def _search_result(fields: Fields, place: str) -> tuple[Part, ...]:
    tools = list_of(fields, "tools", place)
    names = [str(tool.get("name") or tool.get("type")) for tool in tools if isinstance(tool, Mapping)]
    return (TextPart(f"These tools can be called now: {', '.join(names)}." if names else "No tool was found."),)


# --- tables -----------------------------------------------------------------------------------------------------------

_SPELLINGS: Final = (
    CallFormat("shell", "shell_call", "sh", _shell_item([], {}), _shell, _shell_arguments, streams_commands=True),
    CallFormat(
        "local_shell", "local_shell_call", "lsh", _local_shell_item([], {}), _local_shell, _local_shell_arguments
    ),
    CallFormat("apply_patch", "apply_patch_call", "apc", None, _patch, _patch_arguments),
    CallFormat("computer", "computer_call", "cu", {"actions": [], **_NO_CHECKS}, _computer, _computer_arguments),
    CallFormat("tool_search", "tool_search_call", "tsc", _tool_search({})[0], _tool_search, _tool_search_arguments),
)
FORMATS_BY_ITEM: Final[Mapping[str, CallFormat]] = {spelling.item: spelling for spelling in _SPELLINGS}
"""Call formats by item type."""
FORMATS_BY_TOOL: Final[Mapping[str, CallFormat]] = {
    **{spelling.name: spelling for spelling in _SPELLINGS},
    "computer_use_preview": CallFormat(
        "computer", "computer_call", "cu", _NO_CHECKS, _computer_preview, _computer_arguments
    ),
}
"""Call formats by tool type."""
TYPED_RESULTS: Final[Mapping[str, Callable[[Fields, str], tuple[Part, ...]]]] = {
    "shell_call_output": _shell_result,
    "local_shell_call_output": _plain_result,
    "apply_patch_call_output": _patch_result,
    "computer_call_output": _screenshot,
    "tool_search_output": _search_result,
}
"""Functions that read the content of results, by item type."""


def typed_call(kind: str, fields: Fields, place: str) -> ToolCall:
    """Return the call in an item of this type."""
    spelling = FORMATS_BY_ITEM[kind]
    arguments = wire.encode(spelling.read(fields)).decode()
    return ToolCall(string(fields, "call_id", place), spelling.name, arguments)


def typed_result(kind: str, fields: Fields, place: str) -> ToolResult:
    """Return the result in an item of this type. If the item is a local shell's result, its own id may be the call's
    id.
    """
    key = "id" if kind == "local_shell_call_output" and fields.get("call_id") is None else "call_id"
    error = fields.get("status") == "failed"
    return ToolResult(string(fields, key, place), TYPED_RESULTS[kind](fields, place), error=error)
