"""Calls of tools that have a type instead of a name: their items, and the fields of these."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

Json = Any  # a decoded JSON value

TYPED: Final[Mapping[str, str]] = {
    "shell_call": "shell",
    "local_shell_call": "local_shell",
    "apply_patch_call": "apply_patch",
    "computer_call": "computer",
    "tool_search_call": "tool_search",
}
"""Type of the call → type of the tool."""
TYPED_PREFIXES: Final[Mapping[str, str]] = {
    "shell_call": "sh_",
    "local_shell_call": "lsh_",
    "apply_patch_call": "apc_",
    "computer_call": "cu_",
    "tool_search_call": "tsc_",
}
"""Prefixes of the items' ids."""
_ACTIONS: Final[Mapping[str, Mapping[str, type]]] = {
    "click": {"x": int, "y": int, "button": str},
    "double_click": {"x": int, "y": int},
    "move": {"x": int, "y": int},
    "drag": {"path": list},
    "keypress": {"keys": list},
    "screenshot": {},
    "scroll": {"x": int, "y": int, "scroll_x": int, "scroll_y": int},
    "type": {"text": str},
    "wait": {},
}


def typed(kind: Json) -> str | None:
    """Return the type of a tool without a name, as its calls use it; None if it has a name or the origin runs it."""
    kind = "computer" if kind in ("computer_use", "computer_use_preview") else kind
    return kind if isinstance(kind, str) and kind in TYPED.values() else None


def fits(item: Mapping[str, Json]) -> bool:
    """Return whether the item has the fields of its type; only those of a completed one must not be empty."""
    done = item.get("status") == "completed"
    match item:
        case {"type": "shell_call", "action": {"commands": [*commands]}}:
            return _strings(commands) and (bool(commands) or not done)
        case {"type": "local_shell_call", "action": {"type": "exec", "command": [*command], "env": {**env}}}:
            return _strings((*command, *env.values())) and (bool(command) or not done)
        case {"type": "apply_patch_call", "operation": {"type": kind, "path": str(path), **more}}:
            wants = kind in ("create_file", "update_file")
            fine = isinstance(more.get("diff"), str) if wants else kind == "delete_file"
            return fine and bool(path) and item.get("status") in ("in_progress", "completed")
        case {"type": "computer_call", "pending_safety_checks": [*_]}:
            actions = item.get("actions") or ([item["action"]] if "action" in item else [])
            return all(_acts(action) for action in actions) and (bool(actions) or not done)
        case {"type": "tool_search_call", "arguments": {}, "execution": "client"}:
            return True
    return False


def _acts(action: Json) -> bool:
    wanted = _ACTIONS.get(str(action.get("type"))) if isinstance(action, dict) else None
    return wanted is not None and all(isinstance(action.get(key), kind) for key, kind in wanted.items())


def _strings(values: Iterable[Json]) -> bool:
    return all(isinstance(value, str) for value in values)
