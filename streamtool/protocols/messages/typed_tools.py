"""Typed tools of this protocol, with schemas for those that the client runs.

Clients send types such as `bash_20250124` without a schema, so a model that does not know these types would have to
guess their arguments. The schemas in this module describe them briefly. Sources: the tool types of anthropic-python
2.12 and the API reference.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from streamtool.core.conversation import Tool
from streamtool.core.json_value import Fields, Json
from streamtool.protocols.messages.toolsets import toolset_tools
from streamtool.protocols.shared.typed_tools import INTEGER, TEXT, TypedTool, described, object_schema, tools_for_type

_POINT: Final = {"type": "array", "items": INTEGER, "description": "x and y, in pixels"}
_RANGE: Final = {"type": "array", "items": INTEGER, "description": "first and last line, counted from 1; -1: the end"}

_BASH: Final = object_schema(
    command=described(TEXT, "what to run"),
    restart={"type": "boolean", "description": "start the shell anew instead"},
)
_NOTES: Final = object_schema(
    ["command"],
    command={"enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
    path=described(TEXT, "all but rename: a path below /memories"),
    view_range=_RANGE,
    file_text=described(TEXT, "create: the whole text"),
    old_str=described(TEXT, "str_replace: what occurs exactly once"),
    new_str=described(TEXT, "str_replace: the new text"),
    insert_line=described(INTEGER, "insert: the line after which; 0: at the top"),
    insert_text=described(TEXT, "insert: the new text"),
    old_path=described(TEXT, "rename: from"),
    new_path=described(TEXT, "rename: to"),
)
_KEYS: Final = ("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click")
_MOUSE: Final = (*_KEYS, "double_click", "screenshot", "cursor_position")
_MORE: Final = ("triple_click", "left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait")


def tools_of(kind: str, fields: Fields) -> tuple[Tool, ...]:
    """Return the tools for this type, or () if the client does not run them."""
    return tools_for_type(TYPED_TOOLS, kind, fields)


def _named(name: str, fields: Fields) -> str:
    given = fields.get("name")
    return given if isinstance(given, str) else name


def _bash(kind: str, fields: Fields) -> tuple[Tool, ...]:  # noqa: ARG001  all versions are alike
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
    return lambda kind, fields: tuple(toolset_tools(name, fields))  # noqa: ARG005  as above


def _editor(*, undo: bool) -> Fields:
    commands = ["view", "create", "str_replace", "insert", *(["undo_edit"] if undo else [])]
    return object_schema(
        ["command", "path"],
        command={"enum": commands},
        path=described(TEXT, "absolute path of a file or folder"),
        view_range=_RANGE,
        file_text=described(TEXT, "create: the whole text"),
        old_str=described(TEXT, "str_replace: what occurs exactly once"),
        new_str=described(TEXT, f"str_replace{', insert' if undo else ''}: the new text"),
        insert_line=described(INTEGER, "insert: the line after which; 0: at the top"),
        **({} if undo else {"insert_text": described(TEXT, "insert: the new text")}),
    )


def _actions(date: str, *, zoom: bool) -> Fields:
    """Return the schema of a computer's actions. The `zoom` action is included only if the client enables it."""
    later = date >= "20250124"
    fields: dict[str, Json] = {
        "action": {"enum": [*_MOUSE, *(_MORE if later else ()), *(("zoom",) if zoom else ())]},
        "coordinate": _POINT,
        "text": described(TEXT, "type: the text; key, hold_key: the keys, such as ctrl+s"),
    }
    if later:
        fields["start_coordinate"] = _POINT
        fields["scroll_direction"] = {"enum": ["up", "down", "left", "right"]}
        fields["scroll_amount"] = INTEGER
        fields["duration"] = {"type": "number", "description": "hold_key, wait: seconds"}
    if zoom:
        fields["region"] = {"type": "array", "items": INTEGER, "description": "zoom: x1, y1, x2, y2"}
    return object_schema(["action"], **fields)


def _screen(fields: Mapping[str, Json]) -> str:
    width, height = fields.get("display_width_px"), fields.get("display_height_px")
    size = f" of {width} x {height} pixels" if isinstance(width, int) and isinstance(height, int) else ""
    return f"Uses the screen{size}, mouse and keyboard of a computer; take a screenshot to see what has happened."


def _client_tool(kind: str, offer: Callable[[str, Fields], Sequence[Tool]]) -> TypedTool:
    """Return the table row for a tool that the client runs and that is called with ordinary `tool_use` blocks."""
    return TypedTool(kind, "client", "tool_use", "tool_result", offer)


TYPED_TOOLS: Final = (
    _client_tool("bash_*", _bash),
    _client_tool("text_editor_*", _text_editor),
    _client_tool("memory_*", _memory),
    _client_tool("computer_toolset_*", _toolset("computer")),
    _client_tool("browser_toolset_*", _toolset("browser")),
    _client_tool("computer_*", _computer),
    TypedTool("web_search_*", "origin", "server_tool_use", "web_search_tool_result"),
    TypedTool("web_fetch_*", "origin", "server_tool_use", "web_fetch_tool_result"),
    TypedTool("code_execution_*", "origin", "server_tool_use", "code_execution_tool_result"),
    TypedTool("tool_search_tool_*", "origin", "server_tool_use", "tool_search_tool_result"),
    TypedTool("advisor_*", "origin", "server_tool_use", "advisor_tool_result"),
    TypedTool("mcp_toolset", "origin", "mcp_tool_use", "mcp_tool_result"),
)
"""Rows of the table. The first row that matches a type applies."""

_NAMED: Final = "replaced with a placeholder such as `[fallback]`, unless the upstream speaks Messages"

BLOCKS: Final = {
    "text": "text",
    "image": "an image",
    "document": "a file; a text document becomes text",
    "search_result": "text",
    "thinking": "reasoning of the assistant message",
    "redacted_thinking": "omitted, unless the upstream speaks Messages",
    "bash_code_execution_tool_result": _NAMED,
    "text_editor_code_execution_tool_result": _NAMED,
    "container_upload": _NAMED,
    "compaction": "its summary becomes text, and its tool changes are applied",
    "tool_addition": "the tool is offered",
    "tool_removal": "the tool is no longer offered",
    "mcp_tool_listing": _NAMED,
    "fallback": _NAMED,
}
"""Handling of message blocks other than calls and results of typed tools."""
