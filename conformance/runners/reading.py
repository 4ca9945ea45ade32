"""What the runners share: a reply is read piece by piece, and comes out as `conformance/run.py` wants it."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from conformance.runners.tokens import pieces_of


class Run(Protocol):
    """A parser that reads one reply."""

    def feed(self, delta: str) -> int:
        """Reads a piece. Returns how many characters of arguments are known since."""

    def close(self) -> dict[str, Any]:
        """What all of it came to: `text`, `reasoning`, `calls`."""


def reader(made: Callable[[Any, str], Run]) -> Callable[[list[str], Any, dict[str, Any]], dict[str, Any]]:
    """The function that `run.py` wants; `made` gets the tools and the whole text, of which it may know the tokens."""

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
    """The schemas of the tools of a case, by name."""
    return {name: {} for name in tools} if isinstance(tools, list) else dict(tools or {})


def offered(tools: Any) -> list[dict[str, Any]]:
    """The tools of a case as Chat Completions offers them."""
    return [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in schemas_of(tools).items()
    ]
