"""Tools that are defined by a type instead of a schema.

Each protocol has a table, whose rows describe who runs a tool, and the form of its calls and results. A tool that the
client runs is offered to the model like any other tool, with a name, a description and a schema written by us; its call
is returned in the block or item that the client expects. Tools that only the origin can run are dropped and logged. The
tables contain all types known to the official SDKs.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

from attrs import frozen

from streamtool.core.conversation import Tool
from streamtool.core.json_value import Fields, Json

TEXT: Final[Fields] = {"type": "string"}
INTEGER: Final[Fields] = {"type": "integer"}


@frozen
class TypedTool:
    """Row of the table: one tool in all its versions."""

    type: str
    """Type in a request; a trailing `*` matches any suffix, usually a date."""
    runs: Literal["client", "origin"]
    call: str
    """Type of the block or item that contains a call."""
    result: str
    """Type of the block or item that contains a result; "" if the call's block or item contains the result too."""
    offer: Callable[[str, Fields], Sequence[Tool]] | None = None
    """Function that returns the tools to offer to the model, given a tool's type and fields; None if the origin runs
    the tool.
    """
    condition: str = ""
    """Condition that must be met for the client to run the tool; if it is not met, the origin runs the tool."""

    def matches(self, kind: str) -> bool:
        """Return whether the row describes tools of this type."""
        return kind.startswith(self.type[:-1]) if self.type.endswith("*") else kind == self.type


def row_of(rows: Iterable[TypedTool], kind: str) -> TypedTool | None:
    """Return the row for the type, or None if the type is unknown."""
    return next((row for row in rows if row.matches(kind)), None)


def tools_for_type(rows: Iterable[TypedTool], kind: str, fields: Fields) -> tuple[Tool, ...]:
    """Return the tools to offer to the model for a tool of this type, or () if the origin runs it or the type is
    unknown.

    `fields` are the tool's fields in the request.
    """
    row = row_of(rows, kind)
    return () if row is None or row.offer is None else tuple(row.offer(kind, fields))


def object_schema(required: Sequence[str] = (), **properties: Json) -> Fields:
    """Return the schema of an object with these properties."""
    found: dict[str, Json] = {"type": "object", "properties": properties}
    return {**found, "required": list(required)} if required else found


def described(kind: Fields, about: str) -> Fields:
    """Return the schema with a description."""
    return {**kind, "description": about}
