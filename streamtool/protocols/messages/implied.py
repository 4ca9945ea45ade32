"""The schemas of tools that a type names: the client runs them, and the origin's models know them by heart.

`bash_20250124` and its kin come without a schema, so a model that does not know them would have to guess. What is
written here says the same in few words. Source: the tool types of anthropic-python 2.11 and the API reference.
"""

from collections.abc import Mapping
from typing import Any, Final

Json = Any  # a JSON value
Schema = Mapping[str, Json]

_STRING: Final = {"type": "string"}
_INTEGER: Final = {"type": "integer"}
_POINT: Final = {"type": "array", "items": _INTEGER, "description": "x and y, in pixels"}
_RANGE: Final = {"type": "array", "items": _INTEGER, "description": "first and last line, counted from 1; -1: the end"}

_BASH: Final = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "description": "what to run"},
        "restart": {"type": "boolean", "description": "start the shell anew instead"},
    },
}
_KEYS: Final = ("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click")
_MOUSE: Final = (*_KEYS, "double_click", "screenshot", "cursor_position")
_MORE: Final = ("triple_click", "left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait")


def implied(kind: str, fields: Mapping[str, Json]) -> tuple[str, str, Schema] | None:
    """Name, description and schema of the client's own tool of this type; None if it is of another kind.

    `fields` are those of the tool as it was offered.
    """
    family, _, date = kind.rpartition("_")
    match family:
        case "bash":
            return "bash", "Runs commands in a shell that stays open between calls.", _BASH
        case "text_editor":
            new = date >= "20250429"
            name = "str_replace_based_edit_tool" if new else "str_replace_editor"
            return name, "Views, creates and edits text files.", _editor(undo=not new)
        case "memory":
            return "memory", "Keeps notes in files below /memories.", _memory()
        case "computer":
            return "computer", _screen(fields), _computer(date)
    return None


def _editor(*, undo: bool) -> Schema:
    commands = ["view", "create", "str_replace", "insert", *(["undo_edit"] if undo else [])]
    return _object(
        ["command", "path"],
        command={"enum": commands},
        path={"type": "string", "description": "absolute path of a file or folder"},
        view_range=_RANGE,
        file_text={"type": "string", "description": "create: the whole text"},
        old_str={"type": "string", "description": "str_replace: what occurs exactly once"},
        new_str={"type": "string", "description": f"str_replace{', insert' if undo else ''}: the new text"},
        insert_line={"type": "integer", "description": "insert: the line after which; 0: at the top"},
        **({} if undo else {"insert_text": {"type": "string", "description": "insert: the new text"}}),
    )


def _memory() -> Schema:
    return _object(
        ["command"],
        command={"enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
        path={"type": "string", "description": "all but rename: a path below /memories"},
        view_range=_RANGE,
        file_text={"type": "string", "description": "create: the whole text"},
        old_str={"type": "string", "description": "str_replace: what occurs exactly once"},
        new_str={"type": "string", "description": "str_replace: the new text"},
        insert_line={"type": "integer", "description": "insert: the line after which; 0: at the top"},
        insert_text={"type": "string", "description": "insert: the new text"},
        old_path={"type": "string", "description": "rename: from"},
        new_path={"type": "string", "description": "rename: to"},
    )


def _computer(date: str) -> Schema:
    later = date >= "20250124"
    zoom = date >= "20251124"
    fields: dict[str, Json] = {
        "action": {"enum": [*_MOUSE, *(_MORE if later else ()), *(("zoom",) if zoom else ())]},
        "coordinate": _POINT,
        "text": {"type": "string", "description": "type: the text; key, hold_key: the keys, such as ctrl+s"},
    }
    if later:
        fields["start_coordinate"] = _POINT
        fields["scroll_direction"] = {"enum": ["up", "down", "left", "right"]}
        fields["scroll_amount"] = _INTEGER
        fields["duration"] = {"type": "number", "description": "hold_key, wait: seconds"}
    if zoom:
        fields["region"] = {"type": "array", "items": _INTEGER, "description": "zoom: x1, y1, x2, y2"}
    return _object(["action"], **fields)


def _screen(fields: Mapping[str, Json]) -> str:
    width, height = fields.get("display_width_px"), fields.get("display_height_px")
    size = f" of {width} x {height} pixels" if isinstance(width, int) and isinstance(height, int) else ""
    return f"Uses the screen{size}, mouse and keyboard of a computer; take a screenshot to see what has happened."


def _object(required: list[str], **properties: Json) -> Schema:
    return {"type": "object", "properties": properties, "required": required}
