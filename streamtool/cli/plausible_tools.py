"""Thirty tools of the kinds that agents typically offer, with realistic parameters and names that occur in ordinary
text.

`streamtool parse --negatives` offers them to the parser to find text that is mistaken for calls.
"""

from collections.abc import Iterator, Mapping
from typing import Any

PARAMETERS: Mapping[str, str] = {
    "read_file": "path offset:integer limit:integer",
    "write_file": "path content",
    "edit_file": "path old_string new_string replace_all:boolean",
    "delete_file": "path",
    "list_files": "path recursive:boolean",
    "list_directory": "path",
    "glob": "pattern path",
    "grep": "pattern path include",
    "search": "query limit:integer",
    "web_search": "query count:integer",
    "fetch": "url max_length:integer",
    "open_url": "url",
    "bash": "command timeout:integer",
    "shell": "command:array workdir",
    "python": "code",
    "run": "command",
    "execute_sql": "query",
    "query": "sql database",
    "get_weather": "city days:integer unit",
    "get_time": "timezone",
    "calculator": "expression",
    "translate": "text target",
    "send_email": "to subject body cc:array",
    "create_event": "title start end attendees:array",
    "get_user": "id:integer",
    "update": "id:integer fields:object",
    "add": "a:number b:number",
    "todo_write": "todos:array",
    "task": "description prompt",
    "ping": "",
}
"""Tool name -> parameters, separated by spaces. A parameter without a type is a string."""


def plausible_tools() -> dict[str, dict[str, Any]]:
    """Return a mapping of tool names to the schemas of their parameters. Only the first parameter of a tool is
    required.
    """
    return {name: schema(dict(typed(parameters))) for name, parameters in PARAMETERS.items()}


def typed(parameters: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each parameter with its schema."""
    for parameter in parameters.split():
        name, _, kind = parameter.partition(":")
        yield name, {"type": kind or "string"}


def schema(properties: dict[str, dict[str, str]]) -> dict[str, Any]:
    """Return the schema of an object with these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)[:1]}
