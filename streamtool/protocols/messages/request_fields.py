"""What becomes of each field of a request, and of a tool in it. A test compares the names with those of the SDK.

Source: the request types of anthropic-python 2.12.
"""

from collections.abc import Mapping
from typing import Final

from streamtool.protocols.fields import NATIVE, PASSED

REQUEST_FIELDS: Final[Mapping[str, str]] = {
    "model": "read",
    "messages": "read",
    "system": "read",
    "max_tokens": "read",
    "stream": "read",
    "stop_sequences": "read; end the visible text",
    "metadata": "`user_id` is read",
    "tools": "read",
    "tool_choice": "read",
    "thinking": "the budget is read",
    "output_config": "`effort` and `format` are read",
    "output_format": "read, the older form of `output_config.format`",
    "temperature": "read",
    "top_p": "read",
    "top_k": "read",
    "thread": "refused: conversations are not kept",
    "betas": PASSED,
    "billing_policy": PASSED,
    "cache_control": PASSED,
    "compaction": PASSED,
    "container": PASSED,
    "context_management": PASSED,
    "diagnostics": PASSED,
    "fallback_credit_token": PASSED,
    "fallbacks": PASSED,
    "inference_geo": PASSED,
    "mcp_servers": PASSED,
    "service_tier": PASSED,
    "speed": PASSED,
    "user_profile_id": PASSED,
    "workspace_id": PASSED,
}
TOOL_FIELDS: Final[Mapping[str, str]] = {
    "name": "read",
    "type": "read",
    "description": "read",
    "input_schema": "read",
    "input_examples": "the first three stand in the tool prompt",
    "defer_loading": "the tool is offered when the conversation refers to it; at once, if only the origin could search",
    "allowed_callers": "a tool without `direct` is left out, and noted: programs run at the origin only",
    "strict": NATIVE,
    "eager_input_streaming": "arguments are always streamed as they come",
    "cache_control": NATIVE,
}
