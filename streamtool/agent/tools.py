"""Interface for tools that an agent can execute."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, runtime_checkable

from attrs import frozen

from streamtool.core.conversation import Part
from streamtool.core.json_value import Json

OnProgress = Callable[[float, float | None, str | None], Awaitable[None]]
"""Callback that a tool uses to report progress: the amount done, the total if known, and a message."""


@frozen
class ToolOutput:
    """Result of a tool call."""

    content: tuple[Part, ...]
    error: bool = False


class ExecutableTool(Protocol):
    """A tool that an agent can execute."""

    @property
    def name(self) -> str:
        """Name that the model uses."""
        ...

    @property
    def description(self) -> str: ...

    @property
    def parameters(self) -> Mapping[str, Json] | None:
        """JSON Schema of the arguments."""
        ...

    @property
    def timeout(self) -> float | None:
        """Maximum seconds for a call; None for the agent's default."""
        ...

    async def call(self, arguments: Mapping[str, Json], progressed: OnProgress) -> ToolOutput:
        """Execute one call. An exception becomes the call's result."""
        ...


@runtime_checkable
class Trusting(Protocol):
    """A tool that decides whether it executes calls that repeat a result or a tool's description."""

    run_quoted: bool


@runtime_checkable
class Eager(Protocol):
    """A tool that decides whether its calls may start while the model is still writing the reply."""

    eager: bool


@runtime_checkable
class Prepared(Protocol):
    """A tool that prepares for each call. The preparation does not count towards the call's timeout."""

    async def ready(self, progressed: OnProgress) -> None:
        """Prepare for a call. An exception becomes the call's result."""
        ...
