"""The tools of this protocol that a type names, and the schemas of those that the client runs.

`bash_20250124` and its kin come without a schema, so a model that does not know them would have to guess. What is
written here says the same in few words. Source: the tool types of anthropic-python 2.12 and the API reference.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from streamtool.conversation import Tool
from streamtool.protocols.messages.toolsets import members
from streamtool.protocols.typed_tools import INTEGER, TEXT, Fields, TypedTool, offered, schema, told

Json = Any  # a JSON value

_POINT: Final = {"type": "array", "items": INTEGER, "description": "x and y, in pixels"}
_RANGE: Final = {"type": "array", "items": INTEGER, "description": "first and last line, counted from 1; -1: the end"}

_BASH: Final = schema(
    command=told(TEXT, "what to run"),
    restart={"type": "boolean", "description": "start the shell anew instead"},
)
_NOTES: Final = schema(
    ["command"],
    command={"enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
    path=told(TEXT, "all but rename: a path below /memories"),
    view_range=_RANGE,
    file_text=told(TEXT, "create: the whole text"),
    old_str=told(TEXT, "str_replace: what occurs exactly once"),
    new_str=told(TEXT, "str_replace: the new text"),
    insert_line=told(INTEGER, "insert: the line after which; 0: at the top"),
    insert_text=told(TEXT, "insert: the new text"),
    old_path=told(TEXT, "rename: from"),
    new_path=told(TEXT, "rename: to"),
)
_KEYS: Final = ("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click")
_MOUSE: Final = (*_KEYS, "double_click", "screenshot", "cursor_position")
_MORE: Final = ("triple_click", "left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait")


def tools_of(kind: str, fields: Fields) -> tuple[Tool, ...]:
    """The tools for one of this type; () if the client does not run it."""
    return offered(TYPED_TOOLS, kind, fields)


def _named(name: str, fields: Fields) -> str:
    given = fields.get("name")
    return given if isinstance(given, str) else name


def _bash(kind: str, fields: Fields) -> tuple[Tool, ...]:  # noqa: ARG001  the same in all versions
    return (Tool(_named("bash", fields), "Runs commands in a shell that stays open between calls.", _BASH),)


def _text_editor(kind: str, fields: Fields) -> tuple[Tool, ...]:
    undo = kind.rpartition("_")[2] < "20250429"
    name = _named("str_replace_editor" if undo else "str_replace_based_edit_tool", fields)
    most = fields.get("max_characters")
    cut = f" At most {most} characters of a file are shown." if isinstance(most, int) else ""
    return (Tool(name, f"Views, creates and edits text files.{cut}", _editor(undo=undo)),)


def _memory(kind: str, fields: Fields) -> tuple[Tool, ...]:  # noqa: ARG001  as above
    return (Tool(_named("memory", fields), "Keeps notes in files below /memories.", _NOTES),)


def _computer(kind: str, fields: Fields) -> tuple[Tool, ...]:
    actions = _actions(kind.rpartition("_")[2], zoom=fields.get("enable_zoom") is True)
    return (Tool(_named("computer", fields), _screen(fields), actions),)


def _toolset(name: str) -> Callable[[str, Fields], tuple[Tool, ...]]:
    return lambda kind, fields: tuple(members(name, fields))  # noqa: ARG005  as above


def _editor(*, undo: bool) -> Fields:
    commands = ["view", "create", "str_replace", "insert", *(["undo_edit"] if undo else [])]
    return schema(
        ["command", "path"],
        command={"enum": commands},
        path=told(TEXT, "absolute path of a file or folder"),
        view_range=_RANGE,
        file_text=told(TEXT, "create: the whole text"),
        old_str=told(TEXT, "str_replace: what occurs exactly once"),
        new_str=told(TEXT, f"str_replace{', insert' if undo else ''}: the new text"),
        insert_line=told(INTEGER, "insert: the line after which; 0: at the top"),
        **({} if undo else {"insert_text": told(TEXT, "insert: the new text")}),
    )


def _actions(date: str, *, zoom: bool) -> Fields:
    """What a computer can do; `zoom` only where the client has said so."""
    later = date >= "20250124"
    fields: dict[str, Json] = {
        "action": {"enum": [*_MOUSE, *(_MORE if later else ()), *(("zoom",) if zoom else ())]},
        "coordinate": _POINT,
        "text": told(TEXT, "type: the text; key, hold_key: the keys, such as ctrl+s"),
    }
    if later:
        fields["start_coordinate"] = _POINT
        fields["scroll_direction"] = {"enum": ["up", "down", "left", "right"]}
        fields["scroll_amount"] = INTEGER
        fields["duration"] = {"type": "number", "description": "hold_key, wait: seconds"}
    if zoom:
        fields["region"] = {"type": "array", "items": INTEGER, "description": "zoom: x1, y1, x2, y2"}
    return schema(["action"], **fields)


def _screen(fields: Mapping[str, Json]) -> str:
    width, height = fields.get("display_width_px"), fields.get("display_height_px")
    size = f" of {width} x {height} pixels" if isinstance(width, int) and isinstance(height, int) else ""
    return f"Uses the screen{size}, mouse and keyboard of a computer; take a screenshot to see what has happened."


_CLIENT: Final = ("client", "tool_use", "tool_result")

TYPED_TOOLS: Final = (
    TypedTool("bash_*", *_CLIENT, _bash),
    TypedTool("text_editor_*", *_CLIENT, _text_editor),
    TypedTool("memory_*", *_CLIENT, _memory),
    TypedTool("computer_toolset_*", *_CLIENT, _toolset("computer")),
    TypedTool("browser_toolset_*", *_CLIENT, _toolset("browser")),
    TypedTool("computer_*", *_CLIENT, _computer),
    TypedTool("web_search_*", "origin", "server_tool_use", "web_search_tool_result"),
    TypedTool("web_fetch_*", "origin", "server_tool_use", "web_fetch_tool_result"),
    TypedTool("code_execution_*", "origin", "server_tool_use", "code_execution_tool_result"),
    TypedTool("tool_search_tool_*", "origin", "server_tool_use", "tool_search_tool_result"),
    TypedTool("advisor_*", "origin", "server_tool_use", "advisor_tool_result"),
    TypedTool("mcp_toolset", "origin", "mcp_tool_use", "mcp_tool_result"),
)
"""The first row that names a type counts."""

_NAMED: Final = "named to the model, unless the upstream speaks Messages"

BLOCKS: Final = {
    "text": "text",
    "image": "an image",
    "document": "a file; a document of text is text",
    "search_result": "text",
    "thinking": "reasoning of the assistant's turn",
    "redacted_thinking": "left out, unless the upstream speaks Messages",
    "bash_code_execution_tool_result": _NAMED,
    "text_editor_code_execution_tool_result": _NAMED,
    "container_upload": _NAMED,
    "compaction": "its summary is text, its changes of tools count",
    "tool_addition": "the tool is offered",
    "tool_removal": "the tool is not offered any more",
    "mcp_tool_listing": _NAMED,
    "fallback": _NAMED,
}
"""What becomes of the blocks of messages that are neither calls nor results of typed tools."""
