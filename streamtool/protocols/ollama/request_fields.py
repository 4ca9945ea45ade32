"""What becomes of each field of a request, and of a tool in it. A test compares the names with those of the SDK.

Fields of `options` bear its name. Source: the request types of ollama-python 0.6.
"""

from collections.abc import Mapping
from typing import Final

from streamtool.protocols.fields import PASSED, SAME

_MACHINE: Final = "goes to an upstream of the same protocol; without meaning where no model is loaded"

REQUEST_FIELDS: Final[Mapping[str, str]] = {
    "model": "read",
    "messages": "read",
    "prompt": "read, at `/api/generate`",
    "system": "read, at `/api/generate`",
    "images": "read, at `/api/generate`",
    "stream": "read; true by default",
    "tools": "read",
    "format": "read",
    "think": "read, as the effort of reasoning",
    "keep_alive": _MACHINE,
    "options": "read",
    "options.num_predict": "read",
    "options.stop": "read; ends the visible text",
    "options.temperature": "read",
    "options.top_p": "read",
    "options.top_k": "read",
    "options.seed": "read",
    "options.presence_penalty": "read",
    "options.frequency_penalty": "read",
    "options.mirostat": SAME,
    "options.mirostat_eta": SAME,
    "options.mirostat_tau": SAME,
    "options.penalize_newline": SAME,
    "options.repeat_last_n": SAME,
    "options.repeat_penalty": SAME,
    "options.tfs_z": SAME,
    "options.typical_p": SAME,
    "options.num_keep": SAME,
    "options.num_ctx": _MACHINE,
    "options.num_batch": _MACHINE,
    "options.num_gpu": _MACHINE,
    "options.main_gpu": _MACHINE,
    "options.num_thread": _MACHINE,
    "options.numa": _MACHINE,
    "options.low_vram": _MACHINE,
    "options.f16_kv": _MACHINE,
    "options.use_mmap": _MACHINE,
    "options.use_mlock": _MACHINE,
    "options.logits_all": _MACHINE,
    "options.vocab_only": _MACHINE,
    "options.embedding_only": _MACHINE,
    "logprobs": PASSED,
    "top_logprobs": PASSED,
    "suffix": PASSED,
    "template": PASSED,
    "context": PASSED,
    "raw": PASSED,
    "width": PASSED,
    "height": PASSED,
    "steps": PASSED,
}
TOOL_FIELDS: Final[Mapping[str, str]] = {
    "name": "read",
    "description": "read",
    "parameters": "read",
}
