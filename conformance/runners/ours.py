"""streamtool's own parser, listening for one format or for all formats: `ours:tool_call`, `ours:all`."""

from importlib.metadata import version
from typing import Any

from conformance.runners.reading import reader
from statemachine import FORMATS, ArgumentsDelta, CallEnd, CallStart, Parser, ReasoningDelta, TextDelta

VERSION = version("streamtool")
PARSERS = {name: name for name in FORMATS}


class Run:
    """One reply."""

    def __init__(self, name: str, tools: Any, _: str) -> None:
        self.parser = Parser(tools, formats=None if name == "all" else [name])
        self.found: dict[str, Any] = {"text": "", "reasoning": "", "calls": []}

    def feed(self, delta: str) -> int:
        """Feed a delta and return the number of argument characters that it yields."""
        return self._take(self.parser.feed(delta))

    def close(self) -> dict[str, Any]:
        """Return the outcome."""
        self._take(self.parser.close())
        return self.found

    def _take(self, events: Any) -> int:
        known = 0
        for event in events:
            match event:
                case TextDelta(text=text):
                    self.found["text"] += text
                case ReasoningDelta(text=text):
                    self.found["reasoning"] += text
                case CallStart(name=name):
                    self.found["calls"].append({"name": name, "arguments": ""})
                case ArgumentsDelta(text=text):
                    self.found["calls"][-1]["arguments"] += text
                    known += len(text)
                case CallEnd(complete=complete):
                    self.found["calls"][-1]["complete"] = complete
                case _:
                    pass
        return known


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return reader(lambda tools, text: Run(name, tools, text))
