"""vLLM's tool parsers, fed as its server does: `vllm:hermes`. Needs vllm, without its kernels.

A delta is the output of one engine step: text and its tokens. Reasoning is ignored, because vLLM has separate parsers
for it.
"""

from importlib.metadata import version
from typing import Any

from conformance.runners.reading import offered, reader
from conformance.runners.tokens import Tokenizer

VERSION = version("vllm")
PARSERS = {
    "hermes": "tool_call", "qwen3_coder": "qwen3_coder", "llama3_json": "llama3", "mistral": "mistral",
    "deepseek_v3": "deepseek_v3", "deepseek_v31": "deepseek_v31", "deepseek_v32": "deepseek_v32", "kimi_k2": "kimi_k2",
    "glm45": "glm45", "glm47": "glm47", "minimax_m2": "minimax_m2", "granite": "granite", "internlm": "internlm",
    "jamba": "jamba", "phi4_mini_json": "phi4", "xlam": "xlam", "pythonic": "pythonic", "olmo3": "olmo3",
    "step3": "step3", "seed_oss": "seed_oss", "longcat": "longcat", "hunyuan_a13b": "hunyuan_a13b",
    "functiongemma": "functiongemma", "gemma4": "gemma4", "apertus": "apertus", "lfm2": "lfm2", "mimo": "mimo",
}  # fmt: skip


class Run:
    """One reply, read by one of the parsers."""

    def __init__(self, name: str, tools: Any, whole: str) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: PLC0415
        from vllm.tool_parsers.abstract_tool_parser import ToolParserManager  # noqa: PLC0415

        self.request = ChatCompletionRequest(
            model="m", messages=[{"role": "user", "content": "x"}], tools=offered(tools) or None, stream=True
        )
        self.tokenizer = Tokenizer(whole)
        self.parser = ToolParserManager.get_tool_parser(name)(self.tokenizer, self.request.tools)
        self.text, self.numbers = "", []
        self.found: dict[str, Any] = {"text": "", "reasoning": "", "calls": []}

    def feed(self, delta: str) -> int:
        """Feed the output of one engine step and return the number of argument characters that it yields."""
        before, numbers_before = self.text, list(self.numbers)
        numbers = self.tokenizer.encode(delta)
        self.text, self.numbers = before + delta, [*numbers_before, *numbers]
        told = self.parser.extract_tool_calls_streaming(
            before, self.text, delta, numbers_before, self.numbers, numbers, self.request
        )
        return 0 if told is None else self._take(told)

    def _take(self, told: Any) -> int:
        self.found["text"] += told.content or ""
        known = 0
        for call in told.tool_calls or ():
            while len(self.found["calls"]) <= call.index:
                self.found["calls"].append({"name": "", "arguments": ""})
            entry, function = self.found["calls"][call.index], call.function
            entry["name"] += (function.name if function else "") or ""
            entry["arguments"] += (function.arguments if function else "") or ""
            known += len((function.arguments if function else "") or "")
        return known

    def close(self) -> dict[str, Any]:
        """Return the outcome, including the arguments that the server adds at the end."""
        rest = self.parser.get_remaining_unstreamed_args() if self.found["calls"] else ""
        if rest:
            self.found["calls"][-1]["arguments"] += rest
        return self.found


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return reader(lambda tools, text: Run(name, tools, text))
