"""What becomes of each field of a request, and of a tool in it. A test compares the names with those of the SDK.

Source: the request types of openai-python 3.54.
"""

from collections.abc import Mapping
from typing import Final

from streamtool.protocols.fields import NATIVE, PASSED

REQUEST_FIELDS: Final[Mapping[str, str]] = {
    "model": "read",
    "messages": "read",
    "stream": "read",
    "stream_options": "`include_usage` is read",
    "tools": "read",
    "tool_choice": "read",
    "parallel_tool_calls": "read",
    "functions": "read, the older form of `tools`",
    "function_call": "read, the older form of `tool_choice`",
    "response_format": "read",
    "n": "read",
    "stop": "read; ends the visible text",
    "max_tokens": "read",
    "max_completion_tokens": "read",
    "temperature": "read",
    "top_p": "read",
    "top_k": "read",
    "seed": "read",
    "presence_penalty": "read",
    "frequency_penalty": "read",
    "reasoning_effort": "read",
    "user": "read",
    "safety_identifier": "read, like `user`",
    "audio": PASSED,
    "logit_bias": PASSED,
    "logprobs": PASSED,
    "top_logprobs": PASSED,
    "metadata": PASSED,
    "modalities": PASSED,
    "moderation": PASSED,
    "prediction": PASSED,
    "prompt_cache_key": PASSED,
    "prompt_cache_options": PASSED,
    "prompt_cache_retention": PASSED,
    "service_tier": PASSED,
    "store": PASSED,
    "verbosity": PASSED,
    "web_search_options": PASSED,
}
TOOL_FIELDS: Final[Mapping[str, str]] = {
    "name": "read",
    "description": "read",
    "parameters": "read",
    "strict": NATIVE,
}
