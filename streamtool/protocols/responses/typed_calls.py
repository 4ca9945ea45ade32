"""How a call of a typed tool is spelled as an item, and how such items are read from the history.

The model writes arguments by the schema of `typed_tools`; the client receives an item of the tool's own type. It is
added when the call begins, if the type of the item allows one that says nothing yet, and whole when the call is done.
In between, the commands of a shell are told as they are written (`shell_commands`); no other item has events for that.
Arguments that do not make an item leave it incomplete, as a call that was cut.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import Factory, define, frozen

from streamtool.conversation import Part, TextPart, ToolCall, ToolResult
from streamtool.protocols import wire
from streamtool.protocols.fields import Fields, list_of, string
from streamtool.protocols.responses.parts import content, part
from streamtool.protocols.responses.shell_commands import CommandEvent, ShellCommands

Json = Any  # a decoded JSON value


@frozen
class Spelling:
    """How calls of one tool look."""

    name: str
    """Under which the model knows the tool."""
    item: str
    """The type of the item."""
    prefix: str
    """How the id of the item begins."""
    begins: Fields | None
    """The item's own fields while nothing is known of the call; None: then there can be no item yet."""
    write: Callable[[Json], list[Fields]]
    """The item's own fields, made of the arguments; several if they make several items, none if they make no sense."""
    read: Callable[[Fields], Json]
    """The arguments, made of an item."""
    flows: bool = False
    """The client hears the item's commands as they are written."""


@define(eq=False)
class TypedCall:
    """A call that is being written."""

    index: int
    """Its number in the events."""
    place: int
    """The index of its (first) item in the output."""
    id: str
    spelling: Spelling
    arguments: bytearray = Factory(bytearray)
    """As far as they came; in one buffer, since a list of pieces takes ten times the memory."""
    commands: ShellCommands = Factory(lambda self: ShellCommands(self.place), takes_self=True)
    """What was told of the call's commands, if its `spelling` flows."""

    def feed(self, text: str) -> int:
        """Take a piece of the arguments; how many bytes it has."""
        piece = text.encode("utf-8", "surrogatepass")
        self.arguments += piece
        return len(piece)

    def told(self, text: str) -> list[CommandEvent]:
        """What the client hears of this piece of the arguments."""
        return self.commands.feed(text) if self.spelling.flows else []

    def close(self) -> tuple[list[Fields], list[CommandEvent]]:
        """The fields of the items that the arguments make, and what the client has yet to hear before.

        No items if the client has heard other commands (of a key given twice, say): nobody knows which are meant.
        """
        items = self._items()
        if not items or not self.spelling.flows:
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
        """The fields of its item with this number, without braces: those that name the call, and its `own`."""
        identity = f"{self.id[:36]}_{number}" if number else self.id
        return wire.encode({"call_id": identity, **own})[1:-1]


# --- values -----------------------------------------------------------------------------------------------------------


def _object(value: Json) -> Fields:
    return value if isinstance(value, Mapping) else {}


def _texts(value: Json) -> list[str]:
    """A list of strings, empty if something else is in it; one string is a list as well."""
    if isinstance(value, str):
        return [value] if value else []
    return value if isinstance(value, list) and all(isinstance(item, str) for item in value) else []


def _count(value: Json) -> int | None:
    """A number without a fraction, also where it came as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value[:18])
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _said(fields: Fields) -> Fields:
    """The fields that say something."""
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
    return _said(_object(item.get("action")))


def _shell_result(fields: Fields, place: str) -> tuple[Part, ...]:  # noqa: ARG001  results are read alike
    lines: list[str] = []
    value = fields.get("output")
    if isinstance(value, str):
        return (TextPart(value),) if value else ()
    for run in value if isinstance(value, list) else ():
        if isinstance(run, Mapping):
            lines += _ran(run)
        elif isinstance(run, str):
            lines.append(run)
    return (TextPart("\n".join(lines)),) if lines else ()


def _ran(fields: Fields) -> list[str]:
    """What a command has said, and how it ended."""
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
    if isinstance(command, str) and command:  # a line for a shell
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
    return {key: value for key, value in _said(_object(item.get("action"))).items() if key != "type"}


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
    """One operation for each file. A whole patch, as models write it by heart, may stand for the arguments."""
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
    """The operations of a whole patch; its lines are the diffs as they stand."""
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
    """A list of points, empty if one of them lacks a coordinate."""
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
"""What an action needs beside its type, and how it is read."""
_BUTTONS: Final = ("left", "right", "wheel", "back", "forward")
_NO_CHECKS: Final[Fields] = {"pending_safety_checks": []}


def _action(value: Json) -> Fields | None:
    """One action; None if it lacks what it needs."""
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
    """The item has room for one action, so several are as many items."""
    return [{"action": action, **_NO_CHECKS} for item in _computer(value) for action in item["actions"]]


def _computer_arguments(item: Fields) -> Json:
    return _said({key: item.get(key) for key in ("action", "actions")})


def _screenshot(fields: Fields, place: str) -> tuple[Part, ...]:
    value = fields.get("output")
    return (part(value, f"{place}.output"),) if isinstance(value, Mapping) else _plain_result(fields, place)


# --- the search for tools ---------------------------------------------------------------------------------------------


def _tool_search(value: Json) -> list[Fields]:
    return [{"arguments": value, "execution": "client"}] if isinstance(value, Mapping) else []


def _tool_search_arguments(item: Fields) -> Json:
    arguments = item.get("arguments")
    try:
        return wire.decode_tolerant(arguments.encode()) if isinstance(arguments, str) else _object(arguments)
    except ValueError:
        return {}


def _found(fields: Fields, place: str) -> tuple[Part, ...]:
    tools = list_of(fields, "tools", place)
    names = [str(tool.get("name") or tool.get("type")) for tool in tools if isinstance(tool, Mapping)]
    return (TextPart(f"These tools can be called now: {', '.join(names)}." if names else "No tool was found."),)


# --- all of them ------------------------------------------------------------------------------------------------------

_SPELLINGS: Final = (
    Spelling("shell", "shell_call", "sh", _shell_item([], {}), _shell, _shell_arguments, flows=True),
    Spelling("local_shell", "local_shell_call", "lsh", _local_shell_item([], {}), _local_shell, _local_shell_arguments),
    Spelling("apply_patch", "apply_patch_call", "apc", None, _patch, _patch_arguments),
    Spelling("computer", "computer_call", "cu", {"actions": [], **_NO_CHECKS}, _computer, _computer_arguments),
    Spelling("tool_search", "tool_search_call", "tsc", _tool_search({})[0], _tool_search, _tool_search_arguments),
)
TYPED_CALLS: Final[Mapping[str, Spelling]] = {spelling.item: spelling for spelling in _SPELLINGS}
"""By the type of the item."""
SPELLINGS: Final[Mapping[str, Spelling]] = {
    **{spelling.name: spelling for spelling in _SPELLINGS},
    "computer_use_preview": Spelling(
        "computer", "computer_call", "cu", _NO_CHECKS, _computer_preview, _computer_arguments
    ),
}
"""By the type of the tool."""
TYPED_RESULTS: Final[Mapping[str, Callable[[Fields, str], tuple[Part, ...]]]] = {
    "shell_call_output": _shell_result,
    "local_shell_call_output": _plain_result,
    "apply_patch_call_output": _patch_result,
    "computer_call_output": _screenshot,
    "tool_search_output": _found,
}
"""What a result says, by the type of its item."""


def typed_call(kind: str, fields: Fields, place: str) -> ToolCall:
    """The call that an item of this type is."""
    spelling = TYPED_CALLS[kind]
    arguments = wire.encode(spelling.read(fields)).decode()
    return ToolCall(string(fields, "call_id", place), spelling.name, arguments)


def typed_result(kind: str, fields: Fields, place: str) -> ToolResult:
    """The result that an item of this type is; that of a local shell may have the id of the call as its own."""
    key = "id" if kind == "local_shell_call_output" and fields.get("call_id") is None else "call_id"
    error = fields.get("status") == "failed"
    return ToolResult(string(fields, key, place), TYPED_RESULTS[kind](fields, place), error=error)
