"""The parsers in the AI SDK's middleware (`@ai-sdk-tool/parser`), fed as the middleware does: `ai_sdk:hermes`.

Needs node, and `npm ci --prefix conformance/runners`. One node process (`ai_sdk.mjs`) reads all replies. The AI SDK
itself has no such parser.
"""

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from conformance.runners.reading import reader, schemas_of

FOLDER = Path(__file__).parent
VERSION = json.loads((FOLDER / "node_modules/@ai-sdk-tool/parser/package.json").read_text(encoding="utf-8"))["version"]
PARSERS = {"hermes": "tool_call", "qwen3Coder": "qwen3_coder", "morphXml": "tag"}


@cache
def process() -> Any:
    """Start node. The process exits when its input is closed."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "encoding": "utf-8", "bufsize": 1}
    return subprocess.Popen([shutil.which("node") or "node", "ai_sdk.mjs"], cwd=FOLDER, **pipes)  # noqa: S603


def asked(**line: Any) -> Any:
    """Send a line to node and return the line that it sends back."""
    process().stdin.write(f"{json.dumps(line)}\n")
    told = json.loads(process().stdout.readline())
    if "error" in told:
        raise RuntimeError(told["error"])
    return told


def clock() -> float:
    """Return the CPU seconds that node has spent in the parsers, excluding communication."""
    seconds: float = asked()["seconds"]
    return seconds


class Run:
    """One reply, read by a parser for stream parts."""

    def __init__(self, name: str, tools: Any, _: str) -> None:
        asked(open=name, tools=[{"name": tool, "inputSchema": schema} for tool, schema in schemas_of(tools).items()])
        self.known: dict[str, int] = {}
        self.found: dict[str, Any] = {"text": "", "reasoning": "", "calls": []}

    def feed(self, delta: str) -> int:
        """Feed a delta and return the number of argument characters that it yields."""
        return self._take(asked(feed=delta)["parts"])

    def close(self) -> dict[str, Any]:
        """Return the outcome."""
        self._take(asked(close=True)["parts"])
        return self.found

    def _take(self, parts: Any) -> int:
        before = sum(self.known.values())
        for part in parts:
            match part["type"]:
                case "text-delta":
                    self.found["text"] += part["delta"]
                case "tool-input-delta":
                    self.known[part["id"]] = self.known.get(part["id"], 0) + len(part["delta"])
                case "tool-call":
                    self.known[part["toolCallId"]] = len(part["input"])
                    self.found["calls"].append({"name": part["toolName"], "arguments": part["input"]})
                case _:
                    pass
        return sum(self.known.values()) - before


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return reader(lambda tools, text: Run(name, tools, text))
