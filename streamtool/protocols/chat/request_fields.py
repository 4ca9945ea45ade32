"""Treatment of request fields and function fields. A test compares the field names with the SDK's.

Fields that contain options are added from the option table. Source: the request types of openai-python 3.54.
"""

from collections.abc import Mapping
from typing import Final

from streamtool.protocols.decisions import HONORED, NATIVE, PASSED, Field, RequestFields

REQUEST_FIELDS: Final = RequestFields(
    "chat",
    {
        "model": HONORED,
        "messages": HONORED,
        "stream": HONORED,
        "stream_options": HONORED.with_note("only `include_usage`"),
        "tools": HONORED,
        "tool_choice": HONORED,
        "parallel_tool_calls": HONORED,
        "functions": HONORED.with_note("the older form of `tools`"),
        "function_call": HONORED.with_note("the older form of `tool_choice`"),
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
    },
)
TOOL_FIELDS: Final[Mapping[str, Field]] = {
    "name": HONORED,
    "description": HONORED,
    "parameters": HONORED,
    "strict": NATIVE,
}
