"""Typed tools of this protocol, with schemas for those that the client runs.

Clients send types such as `shell` without a schema. Each schema in this module has the form of the item in which the
call is returned, without the item's metadata. Source: the tool and item types of openai-python 3.54.
"""

from collections.abc import Mapping
from typing import Final

from streamtool.core.conversation import Tool
from streamtool.core.json_value import Fields, Json
from streamtool.protocols.shared.typed_tools import INTEGER, TEXT, TypedTool, described, object_schema, tools_for_type

_TEXTS: Final = {"type": "array", "items": TEXT}
_SHELL: Final = object_schema(
    ["commands"],
    commands=described(_TEXTS, "what to run, one after another"),
    timeout_ms=described(INTEGER, "how long it may take, in milliseconds"),
    max_output_length=described(INTEGER, "how many characters of output are wanted at most"),
)
_LOCAL_SHELL: Final = object_schema(
    ["command"],
    command=described(_TEXTS, 'the program and its arguments; for a line of shell ["bash", "-lc", "the line"]'),
    working_directory=TEXT,
    env={"type": "object", "additionalProperties": TEXT, "description": "variables of the environment"},
    timeout_ms=described(INTEGER, "how long it may take, in milliseconds"),
)
_DIFF: Final = (
    "create_file: each line of the file with + before it; update_file: for each place a line @@, then lines around it "
    "with a blank before them, lines to remove with -, lines to add with +"
)
_PATCH: Final = object_schema(
    ["type", "path"],
    type={"enum": ["create_file", "update_file", "delete_file"]},
    path=described(TEXT, "of the file, from the workspace root"),
    diff=described(TEXT, _DIFF),
)
_POINT: Final = object_schema(["x", "y"], x=INTEGER, y=INTEGER)
_ACTIONS: Final = (
    "screenshot",
    "click",
    "double_click",
    "move",
    "drag",
    "scroll",
    "type",
    "keypress",
    "wait",
)
_ACTION: Final = object_schema(
    ["type"],
    type={"enum": list(_ACTIONS)},
    x=described(INTEGER, "click, double_click, move, scroll: where, in pixels"),
    y=INTEGER,
    button=described({"enum": ["left", "right", "wheel", "back", "forward"]}, "click"),
    path={"type": "array", "items": _POINT, "description": "drag: the points of the way"},
    scroll_x=described(INTEGER, "scroll: how far"),
    scroll_y=INTEGER,
    text=described(TEXT, "type: the text"),
    keys=described(_TEXTS, "keypress: the keys; with the mouse: keys held meanwhile"),
)
_SEARCH: Final = object_schema(["query"], query=described(TEXT, "what the tool is to do"))


def tools_of(kind: str, fields: Fields) -> tuple[Tool, ...]:
    """Return the tools for this type, or () if the client does not run them."""
    return tools_for_type(TYPED_TOOLS, kind, fields)


def _shell(kind: str, fields: Fields) -> tuple[Tool, ...]:
    match fields.get("environment"):
        case {"type": "local", **more}:
            about = "Runs commands in a shell on the user's machine."
            return (Tool("shell", about + _skills(more.get("skills")), _SHELL, kind=kind),)
    return ()


def _skills(skills: Json) -> str:
    """Return the part of a shell's description that lists its skills, or "" if it has none."""
    known = [skill for skill in skills if isinstance(skill, Mapping)] if isinstance(skills, list) else []
    if not known:
        return ""
    head = "\nFolders with instructions for certain tasks; read SKILL.md in one before:"
    return "\n".join(
        [head, *(f"- {skill.get('name')} (in {skill.get('path')}): {skill.get('description')}" for skill in known)]
    )


def _local_shell(kind: str, fields: Fields) -> tuple[Tool, ...]:  # noqa: ARG001  this tool has no options
    return (Tool("local_shell", "Runs a program on the user's machine.", _LOCAL_SHELL, kind=kind),)


def _apply_patch(kind: str, fields: Fields) -> tuple[Tool, ...]:  # noqa: ARG001  as above
    return (Tool("apply_patch", "Creates, changes or deletes one file.", _PATCH, kind=kind),)


def _computer(kind: str, fields: Fields) -> tuple[Tool, ...]:
    """Return the tool for a computer. The newer type accepts several actions per call; the older type describes the
    screen.
    """
    about = "Uses the screen, mouse and keyboard of a computer; each call is answered with a screenshot."
    if kind == "computer":
        actions = {"type": "array", "items": _ACTION}
        return (Tool("computer", about, object_schema(["actions"], actions=actions), kind=kind),)
    width, height, system = (fields.get(key) for key in ("display_width", "display_height", "environment"))
    screen = f" The screen has {width} x {height} pixels; the environment is {system}."
    return (Tool("computer", about + screen, object_schema(["action"], action=_ACTION), kind=kind),)


def _tool_search(kind: str, fields: Fields) -> tuple[Tool, ...]:
    if fields.get("execution") != "client":
        return ()
    about = fields.get("description") or "Searches for further tools, which can be called after that."
    return (Tool("tool_search", about, fields.get("parameters") or _SEARCH, kind=kind),)


TYPED_TOOLS: Final = (
    TypedTool("shell", "client", "shell_call", "shell_call_output", _shell, "`environment` is `local`"),
    TypedTool("local_shell", "client", "local_shell_call", "local_shell_call_output", _local_shell),
    TypedTool("apply_patch", "client", "apply_patch_call", "apply_patch_call_output", _apply_patch),
    TypedTool("computer", "client", "computer_call", "computer_call_output", _computer),
    TypedTool("computer_use_preview", "client", "computer_call", "computer_call_output", _computer),
    TypedTool(
        "tool_search", "client", "tool_search_call", "tool_search_output", _tool_search, "`execution` is `client`"
    ),
    TypedTool("web_search*", "origin", "web_search_call", ""),
    TypedTool("file_search", "origin", "file_search_call", ""),
    TypedTool("mcp", "origin", "mcp_call", ""),
    TypedTool("code_interpreter", "origin", "code_interpreter_call", ""),
    TypedTool("image_generation", "origin", "image_generation_call", ""),
    TypedTool("programmatic_tool_calling", "origin", "program", "program_output"),
)
"""Rows of the table. The first row that matches a type applies."""

ITEMS: Final = {
    "message": "a message",
    "function_call": "a call",
    "function_call_output": "a result",
    "custom_tool_call": "a call",
    "custom_tool_call_output": "a result",
    "reasoning": "reasoning of the assistant message",
    "additional_tools": "its tools are added to the request's tools",
    "item_reference": "replaced with an item of an earlier reply",
    "mcp_list_tools": "omitted",
    "mcp_approval_request": "omitted",
    "mcp_approval_response": "omitted",
    "compaction": "text if streamtool created it, otherwise omitted",
    "compaction_trigger": "omitted",
    "configuration_update": "omitted",
}
"""Handling of items other than calls and results of typed tools."""
