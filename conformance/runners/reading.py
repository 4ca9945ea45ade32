"""Code shared by the runners, which read a reply piece by piece and return its outcome in the form that
`conformance/run.py` expects.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from conformance.runners.tokens import pieces_of


class Run(Protocol):
    """A parser that reads one reply."""

    def feed(self, delta: str) -> int:
        """Feed a delta and return the number of argument characters that it yields."""

    def close(self) -> dict[str, Any]:
        """Return the outcome: `text`, `reasoning`, `calls`."""


def reader(made: Callable[[Any, str], Run]) -> Callable[[list[str], Any, dict[str, Any]], dict[str, Any]]:
    """Return the function to pass to `run.py`. `made` is called with the tools and the whole text, so that a runner can
    determine the tokens in advance.
    """

    def read(pieces: list[str], tools: Any, _: dict[str, Any]) -> dict[str, Any]:
        run = made(tools, "".join(pieces))
        for piece in pieces_of(pieces):
            run.feed(piece)
        found = run.close()
        for call in found["calls"]:
            call["arguments"] = call["arguments"] or "{}"
        return found

    return read


def schemas_of(tools: Any) -> Mapping[str, Any]:
    """Return the schemas of a case's tools, by name."""
    return {name: {} for name in tools} if isinstance(tools, list) else dict(tools or {})


def offered(tools: Any) -> list[dict[str, Any]]:
    """Return a case's tools in Chat Completions format."""
    return [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in schemas_of(tools).items()
    ]
