"""The tools of this protocol that a type names, and the schemas of those that the client runs.

`shell` and its kin come without a schema. What the model is told of them here has the shape of the item in which the
call goes back, without what only surrounds it. Source: the tool and item types of openai-python 3.54.
"""

from collections.abc import Mapping
from typing import Any, Final

from streamtool.conversation import Tool
from streamtool.protocols.typed_tools import INTEGER, TEXT, Fields, TypedTool, offered, schema, told

Json = Any  # a JSON value

_TEXTS: Final = {"type": "array", "items": TEXT}
_SHELL: Final = schema(
    ["commands"],
    commands=told(_TEXTS, "what to run, one after another"),
    timeout_ms=told(INTEGER, "how long it may take, in milliseconds"),
    max_output_length=told(INTEGER, "how many characters of output are wanted at most"),
)
_LOCAL_SHELL: Final = schema(
    ["command"],
    command=told(_TEXTS, 'the program and its arguments; for a line of shell ["bash", "-lc", "the line"]'),
    working_directory=TEXT,
    env={"type": "object", "additionalProperties": TEXT, "description": "variables of the environment"},
    timeout_ms=told(INTEGER, "how long it may take, in milliseconds"),
)
_DIFF: Final = (
    "create_file: each line of the file with + before it; update_file: for each place a line @@, then lines around it "
    "with a blank before them, lines to remove with -, lines to add with +"
)
_PATCH: Final = schema(
    ["type", "path"],
    type={"enum": ["create_file", "update_file", "delete_file"]},
    path=told(TEXT, "of the file, from the workspace root"),
    diff=told(TEXT, _DIFF),
)
_POINT: Final = schema(["x", "y"], x=INTEGER, y=INTEGER)
_ACTIONS: Final = (
    "screenshot", "click", "double_click", "move", "drag", "scroll", "type", "keypress", "wait",
)  # fmt: skip
_ACTION: Final = schema(
    ["type"],
    type={"enum": list(_ACTIONS)},
    x=told(INTEGER, "click, double_click, move, scroll: where, in pixels"),
    y=INTEGER,
    button=told({"enum": ["left", "right", "wheel", "back", "forward"]}, "click"),
    path={"type": "array", "items": _POINT, "description": "drag: the points of the way"},
    scroll_x=told(INTEGER, "scroll: how far"),
    scroll_y=INTEGER,
    text=told(TEXT, "type: the text"),
    keys=told(_TEXTS, "keypress: the keys; with the mouse: keys held meanwhile"),
)
_SEARCH: Final = schema(["query"], query=told(TEXT, "what the tool is to do"))


def tools_of(kind: str, fields: Fields) -> tuple[Tool, ...]:
    """The tools for one of this type; () if the client does not run it."""
    return offered(TYPED_TOOLS, kind, fields)


def _shell(kind: str, fields: Fields) -> tuple[Tool, ...]:
    match fields.get("environment"):
        case {"type": "local", **more}:
            about = "Runs commands in a shell on the user's machine."
            return (Tool("shell", about + _skills(more.get("skills")), _SHELL, kind=kind),)
    return ()


def _skills(skills: Json) -> str:
    """What the model has to know of the skills that a shell has."""
    known = [skill for skill in skills if isinstance(skill, Mapping)] if isinstance(skills, list) else []
    if not known:
        return ""
    head = "\nFolders with instructions for certain tasks; read SKILL.md in one before:"
    return "\n".join(
        [head, *(f"- {skill.get('name')} (in {skill.get('path')}): {skill.get('description')}" for skill in known)]
    )


def _local_shell(kind: str, fields: Fields) -> tuple[Tool, ...]:  # noqa: ARG001  it has no options
    return (Tool("local_shell", "Runs a program on the user's machine.", _LOCAL_SHELL, kind=kind),)


def _apply_patch(kind: str, fields: Fields) -> tuple[Tool, ...]:  # noqa: ARG001  as above
    return (Tool("apply_patch", "Creates, changes or deletes one file.", _PATCH, kind=kind),)


def _computer(kind: str, fields: Fields) -> tuple[Tool, ...]:
    """The newer tool takes several actions in a call, the older one tells what screen there is."""
    about = "Uses the screen, mouse and keyboard of a computer; each call is answered with a screenshot."
    if kind == "computer":
        actions = {"type": "array", "items": _ACTION}
        return (Tool("computer", about, schema(["actions"], actions=actions), kind=kind),)
    width, height, system = (fields.get(key) for key in ("display_width", "display_height", "environment"))
    screen = f" The screen has {width} x {height} pixels; the environment is {system}."
    return (Tool("computer", about + screen, schema(["action"], action=_ACTION), kind=kind),)


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
"""The first row that names a type counts."""

ITEMS: Final = {
    "message": "a message",
    "function_call": "a call",
    "function_call_output": "its result",
    "custom_tool_call": "a call",
    "custom_tool_call_output": "its result",
    "reasoning": "reasoning of the assistant's turn",
    "additional_tools": "its tools join the others",
    "item_reference": "the item of an earlier reply",
    "mcp_list_tools": "left out",
    "mcp_approval_request": "left out",
    "mcp_approval_response": "left out",
    "compaction": "text, if it was made here; else left out",
    "compaction_trigger": "left out",
    "configuration_update": "left out",
}
"""What becomes of the items that are neither calls nor results of typed tools."""
