"""SGLang's detectors, fed as its server does: `sglang:qwen`. Needs sglang, without its kernels."""

from importlib.metadata import version
from typing import Any

from conformance.runners.reading import offered, reader

VERSION = version("sglang")
PARSERS = {
    "hermes": "tool_call", "qwen25": "tool_call", "qwen3_coder": "qwen3_coder", "llama3": "llama3",
    "mistral": "mistral", "deepseekv3": "deepseek_v3", "deepseekv31": "deepseek_v31", "deepseekv32": "deepseek_v32",
    "kimi_k2": "kimi_k2", "glm45": "glm45", "glm47": "glm47", "minimax-m2": "minimax_m2", "pythonic": "pythonic",
    "step3": "step3", "gpt-oss": "harmony", "hunyuan": "hunyuan_a13b", "gemma4": "gemma4", "apertus2509": "apertus",
    "lfm2": "lfm2", "mimo": "mimo", "gigachat3": "gigachat3",
}  # fmt: skip


class Run:
    """One reply, read by one of the detectors."""

    def __init__(self, name: str, tools: Any, whole: str) -> None:  # noqa: ARG002  the signature of all runners
        from sglang.srt.entrypoints.openai.protocol import Tool  # noqa: PLC0415
        from sglang.srt.function_call.function_call_parser import FunctionCallParser  # noqa: PLC0415

        self.parser = FunctionCallParser([Tool.model_validate(tool) for tool in offered(tools)], name)
        self.found: dict[str, Any] = {"text": "", "reasoning": "", "calls": []}

    def feed(self, delta: str) -> int:
        """Feed a delta and return the number of argument characters that it yields."""
        return self._take(*self.parser.parse_stream_chunk(delta))

    def _take(self, text: str, calls: Any) -> int:
        self.found["text"] += text or ""
        known = 0
        for call in calls:
            index = max(call.tool_index, 0)
            while len(self.found["calls"]) <= index:
                self.found["calls"].append({"name": "", "arguments": ""})
            entry = self.found["calls"][index]
            entry["name"] += call.name or ""
            entry["arguments"] += call.parameters or ""
            known += len(call.parameters or "")
        return known

    def close(self) -> dict[str, Any]:
        """Return the outcome."""
        self._take(*self.parser.parse_stream_end())
        return self.found


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return reader(lambda tools, text: Run(name, tools, text))
