"""The tools that are offered: their names, and the JSON Schemas of their parameters."""

from collections.abc import Iterable, Mapping
from typing import Any

Tools = Mapping[str, Any] | Iterable[Any] | None


class Toolset:
    """The offered tools, as the parser asks for them."""

    __slots__ = ("_folded", "_schemas")

    def __init__(self, schemas: Mapping[str, Any] | None) -> None:
        self._schemas = schemas
        self._folded: dict[str, str | None] | None = None

    @property
    def any(self) -> bool:
        """Every name is a tool."""
        return self._schemas is None

    def __contains__(self, name: str) -> bool:
        return self._schemas is not None and name in self._schemas

    def schema(self, name: str | None) -> object:
        """The JSON Schema of a tool's parameters; None if it has none."""
        return None if self._schemas is None or name is None else self._schemas.get(name)

    def offered(self, name: str) -> str | None:
        """The offered tool that a name means: itself, else the only one equal without `functions.` and case."""
        schemas = self._schemas
        if not name:
            return None
        if schemas is None or name in schemas:
            return name
        if self._folded is None:
            self._folded = {}
            for tool in schemas:
                fold = tool.lower()
                self._folded[fold] = None if fold in self._folded else tool
        plain = name.removeprefix("functions.")
        return plain if plain in schemas else self._folded.get(plain.lower())
