"""Tools that a type names instead of a schema: one row says who runs such a tool and how its calls and results look.

Each protocol has a table of rows. A tool that the client runs is offered to the model like any other, with a name, a
description and a schema of ours; its call goes back in the block or item that the client expects. What only the origin
can run is left out and recorded. The tables name all types that the official SDKs know.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from attrs import frozen

from streamtool.conversation import Tool

Json = Any  # a JSON value
Fields = Mapping[str, Json]

TEXT: Final[Fields] = {"type": "string"}
INTEGER: Final[Fields] = {"type": "integer"}


@frozen
class TypedTool:
    """A row: one tool in all its versions."""

    type: str
    """Its type in a request; a `*` at the end stands for whatever follows, which is a date as a rule."""
    runs: Literal["client", "origin"]
    call: str
    """The type of the block or item that is its call."""
    result: str
    """The type of the block or item that is its result; "": the call holds it."""
    offer: Callable[[str, Fields], Sequence[Tool]] | None = None
    """The tools that the model is offered for it, made of its type and the fields that came; None: the origin's."""
    where: str = ""
    """On what it depends that the client runs it; otherwise the origin does."""

    def names(self, kind: str) -> bool:
        """Whether a tool of this type is meant."""
        return kind.startswith(self.type[:-1]) if self.type.endswith("*") else kind == self.type


def row_of(rows: Iterable[TypedTool], kind: str) -> TypedTool | None:
    """The row of the type; None if nobody here knows it."""
    return next((row for row in rows if row.names(kind)), None)


def offered(rows: Iterable[TypedTool], kind: str, fields: Fields) -> tuple[Tool, ...]:
    """What the model is offered for the tool of this type; () if the origin runs it, or nobody here knows it.

    `fields` are those of the tool as it came.
    """
    row = row_of(rows, kind)
    return () if row is None or row.offer is None else tuple(row.offer(kind, fields))


def schema(required: Sequence[str] = (), **properties: Json) -> Fields:
    """An object with these properties."""
    found: dict[str, Json] = {"type": "object", "properties": properties}
    return {**found, "required": list(required)} if required else found


def told(kind: Fields, about: str) -> Fields:
    """The schema of a value with a description."""
    return {**kind, "description": about}
