"""mlx-lm's tool parsers, fed as its server does: `mlx:glm47`. Each receives the whole text between two markers.

Only the parsers, which are plain Python, are imported; mlx itself is not needed.
"""

import json
from importlib.metadata import distribution, version
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from conformance.runners.reading import offered, reader

VERSION = version("mlx-lm")
PARSERS = {
    "json_tools": "tool_call", "qwen3_coder": "qwen3_coder", "mistral": "mistral", "kimi_k2": "kimi_k2",
    "glm47": "glm47", "minimax_m2": "minimax_m2", "pythonic": "lfm2", "function_gemma": "functiongemma",
    "gemma4": "gemma4", "longcat": "longcat",
}  # fmt: skip


class Run:
    """One reply, split at the markers as in the server."""

    def __init__(self, name: str, tools: Any, _: str) -> None:
        file = distribution("mlx-lm").locate_file(f"mlx_lm/tool_parsers/{name}.py")
        spec = spec_from_file_location(f"mlx_tool_parser_{name}", str(file))
        if spec is None or spec.loader is None:
            raise ImportError(f"mlx-lm has no parser {name}")
        self.module = module_from_spec(spec)
        spec.loader.exec_module(self.module)
        self.tools = offered(tools)
        self.rest, self.inside = "", False
        self.found: dict[str, Any] = {"text": "", "reasoning": "", "calls": []}

    def feed(self, delta: str) -> int:
        """Feed a delta and return the number of argument characters that it yields, which is 0 before the end of a
        call.
        """
        self.rest += delta
        known = 0
        while True:
            marker = self.module.tool_call_end if self.inside else self.module.tool_call_start
            place = self.rest.find(marker) if marker else -1
            if place < 0:
                return known
            before, self.rest = self.rest[:place], self.rest[place + len(marker) :]
            if self.inside:
                known += self._parsed(before)
            else:
                self.found["text"] += before
            self.inside = not self.inside

    def _parsed(self, text: str) -> int:
        told = self.module.parse_tool_call(text, self.tools)
        known = 0
        for call in told if isinstance(told, list) else [told]:
            arguments = call["arguments"]
            arguments = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            self.found["calls"].append({"name": call["name"], "arguments": arguments})
            known += len(arguments)
        return known

    def close(self) -> dict[str, Any]:
        """Return the outcome. If the last call has no closer, it is read here."""
        if self.inside and self.rest.strip():
            self._parsed(self.rest)
        elif not self.inside:
            self.found["text"] += self.rest
        return self.found


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return reader(lambda tools, text: Run(name, tools, text))
