"""Treatment of request fields and function fields. A test compares the field names with the SDK's.

Members of `options` are named `options.member`. Fields that contain options are added from the option table. Source:
the request types of ollama-python 0.6.
"""

from collections.abc import Mapping
from typing import Final

from streamtool.protocols.decisions import HONORED, LOCAL, PASSED, Field, RequestFields

REQUEST_FIELDS: Final = RequestFields(
    "ollama",
    {
        "model": HONORED,
        "messages": HONORED,
        "prompt": HONORED.with_note("at `/api/generate`"),
        "system": HONORED.with_note("at `/api/generate`"),
        "images": HONORED.with_note("at `/api/generate`"),
        "stream": HONORED.with_note("true by default"),
        "tools": HONORED,
        "keep_alive": LOCAL,
        "options": HONORED,
        "options.mirostat": PASSED,
        "options.mirostat_eta": PASSED,
        "options.mirostat_tau": PASSED,
        "options.penalize_newline": PASSED,
        "options.repeat_last_n": PASSED,
        "options.tfs_z": PASSED,
        "options.typical_p": PASSED,
        "options.num_keep": PASSED,
        "options.num_ctx": LOCAL,
        "options.num_batch": LOCAL,
        "options.num_gpu": LOCAL,
        "options.main_gpu": LOCAL,
        "options.num_thread": LOCAL,
        "options.numa": LOCAL,
        "options.low_vram": LOCAL,
        "options.f16_kv": LOCAL,
        "options.use_mmap": LOCAL,
        "options.use_mlock": LOCAL,
        "options.logits_all": LOCAL,
        "options.vocab_only": LOCAL,
        "options.embedding_only": LOCAL,
        "logprobs": PASSED,
        "top_logprobs": PASSED,
        "suffix": PASSED,
        "template": PASSED,
        "context": PASSED,
        "raw": PASSED,
        "width": PASSED,
        "height": PASSED,
        "steps": PASSED,
    },
)
TOOL_FIELDS: Final[Mapping[str, Field]] = {
    "name": HONORED,
    "description": HONORED,
    "parameters": HONORED,
}
