"""What the loop needs of a tool, whoever executes it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from attrs import frozen

from streamtool.conversation import Part

Json = Any  # a decoded JSON value

Progressed = Callable[[float, float | None, str | None], Awaitable[None]]
"""How a tool tells its progress: what is done, of how much, and in words."""


@frozen
class ToolOutput:
    """What a tool gave back."""

    content: tuple[Part, ...]
    error: bool = False


class ExecutableTool(Protocol):
    """A tool that can be executed."""

    @property
    def name(self) -> str:
        """As the model knows it."""
        ...

    @property
    def description(self) -> str: ...

    @property
    def parameters(self) -> Mapping[str, Json] | None:
        """JSON Schema of the arguments."""
        ...

    @property
    def timeout(self) -> float | None:
        """Seconds for one call; None: the agent's."""
        ...

    async def call(self, arguments: Mapping[str, Json], progressed: Progressed) -> ToolOutput:
        """Execute one call. Whatever it raises becomes its result."""
        ...


@runtime_checkable
class Prepared(Protocol):
    """A tool with something to do before its time begins to count."""

    async def ready(self, progressed: Progressed) -> None:
        """Do it. Whatever it raises becomes the result of the call."""
        ...
