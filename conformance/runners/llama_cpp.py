"""llama.cpp's chat parser, fed as its server does: `llama_cpp:Qwen3-Coder`. Each parser is built from a chat template.

Needs xllamacpp, whose library contains the parser but exports it only to C++; a C++ compiler, for `llama_cpp.cpp`; and
llama.cpp's source in the same version, for its headers and templates. The `LLAMA_CPP` environment variable names the
source folder, which xllamacpp's source distribution contains as `thirdparty/llama.cpp`.
"""

import ctypes
import json
import os
import subprocess
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from conformance.runners.reading import offered, reader

VERSION = f"b{version('xllamacpp').rpartition('.')[2]}"
PARSERS = {
    "Qwen-Qwen2.5-7B-Instruct": "tool_call", "Qwen3-Coder": "qwen3_coder", "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek_v3",
    "deepseek-ai-DeepSeek-V3.1": "deepseek_v31", "deepseek-ai-DeepSeek-V3.2": "deepseek_v32",
    "moonshotai-Kimi-K2": "kimi_k2", "Kimi-K3": "kimi_k3", "GLM-4.6": "glm45", "GLM-4.7-Flash": "glm47",
    "MiniMax-M1": "minimax_m1", "MiniMax-M2": "minimax_m2", "MiniMax-M3": "minimax_m3",
    "ibm-granite-granite-3.3-2B-Instruct": "granite", "ByteDance-Seed-OSS": "seed_oss",
    "google-gemma-4-31B-it": "gemma4", "Apertus-8B-Instruct": "apertus", "LFM2-8B-A1B": "lfm2",
    "GigaChat3-10B-A1.8B": "gigachat3", "openai-gpt-oss-120b": "harmony", "openbmb-MiniCPM5-1B": "minicpm5",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "cohere", "NVIDIA-Nemotron-Nano-v2": "nemotron",
}  # fmt: skip
UNSEEN = "<|python_tag|>"
"""A special token that the server does not turn into text."""


@cache
def library() -> Any:
    """Compile and load the parser."""
    import xllamacpp.xllamacpp as package  # noqa: PLC0415

    parts = ("common", "include", "ggml/include", "vendor")
    command = ["c++", "-shared", "-fPIC", "-O2", "-std=c++17", "-D_GLIBCXX_USE_CXX11_ABI=0"]
    command += [f"-I{Path(os.environ['LLAMA_CPP'], part)}" for part in parts]
    with tempfile.TemporaryDirectory() as folder:
        built = f"{folder}/parser.so"
        command += [str(Path(__file__).with_suffix(".cpp")), package.__file__, "-o", built]
        subprocess.run(command, check=True)  # noqa: S603
        found = ctypes.CDLL(built)
    found.opened.restype = ctypes.c_void_p
    found.fed.restype, found.fed.argtypes = ctypes.c_long, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_bool]
    for function in (found.begun, found.known, found.failure):
        function.restype = ctypes.c_char_p
    for function in (found.begun, found.known, found.closed):
        function.argtypes = [ctypes.c_void_p]
    return found


@cache
def template(name: str) -> bytes:
    """Return one of the chat templates that llama.cpp is tested with."""
    return Path(os.environ["LLAMA_CPP"], "models", "templates", f"{name}.jinja").read_bytes()


class Run:
    """One reply, as received by a client of the server."""

    def __init__(self, name: str, tools: Any, whole: str) -> None:
        # Templates fail for an array whose items have no type.
        written = json.dumps(offered(tools)).replace('{"type": "array"}', '{"type": "array", "items": {}}')
        self.library = library()
        self.reply = self._checked(self.library.opened(template(name), written.encode()) or -1)
        begun = self.library.begun(self.reply).decode()
        self.skip = len(begun) if whole.startswith(begun) else 0

    def feed(self, delta: str) -> int:
        """Feed a delta and return the number of argument bytes that it yields."""
        text, self.skip = delta[self.skip :], max(self.skip - len(delta), 0)
        return self._checked(self.library.fed(self.reply, text.replace(UNSEEN, "").encode(), False))

    def close(self) -> dict[str, Any]:
        """Return the outcome."""
        self._checked(self.library.fed(self.reply, b"", True))
        told = json.loads(self.library.known(self.reply))
        return {
            "text": told["content"],
            "reasoning": told.get("reasoning_content", ""),
            "calls": [call["function"] for call in told.get("tool_calls", ())],
        }

    def _checked(self, told: int) -> int:
        if told < 0:
            raise RuntimeError(self.library.failure().decode())
        return told

    def __del__(self) -> None:
        if hasattr(self, "reply"):
            self.library.closed(self.reply)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return reader(lambda tools, text: Run(name, tools, text))
