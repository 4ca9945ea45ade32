"""What becomes of each field of a request, and of a tool in it. A test compares the names with those of the SDK.

Source: the request types of openai-python 3.54.
"""

from collections.abc import Mapping
from typing import Final

from streamtool.protocols.fields import NATIVE, PASSED

_HOSTED: Final = "about tools that only the origin runs: left out, and noted"

REQUEST_FIELDS: Final[Mapping[str, str]] = {
    "model": "read",
    "input": "read",
    "instructions": "read",
    "previous_response_id": "read",
    "store": "read",
    "metadata": "repeated in the response",
    "stream": "read",
    "tools": "read",
    "tool_choice": "read",
    "parallel_tool_calls": "read",
    "max_output_tokens": "read",
    "temperature": "read",
    "top_p": "read",
    "reasoning": "`effort` is read",
    "text": "`format` is read",
    "user": "read",
    "safety_identifier": "read, like `user`",
    "background": "read",
    "conversation": "read",
    "prompt": "refused: prompts are not stored here",
    "max_tool_calls": _HOSTED,
    "access_programs": PASSED,
    "background_options": PASSED,
    "context_management": PASSED,
    "image": PASSED,
    "include": PASSED,
    "moderation": PASSED,
    "prompt_cache_key": PASSED,
    "prompt_cache_options": PASSED,
    "prompt_cache_retention": PASSED,
    "service_tier": PASSED,
    "stream_options": PASSED,
    "top_logprobs": PASSED,
    "truncation": PASSED,
}
TOOL_FIELDS: Final[Mapping[str, str]] = {
    "name": "read",
    "type": "read",
    "description": "read",
    "parameters": "read",
    "format": "its grammar is told to the model",
    "output_schema": "the tool prompt says what comes back",
    "defer_loading": "where the client runs `tool_search`, the tool is offered when it was found; else at once",
    "allowed_callers": "a tool without `direct` is left out, and noted: programs run at the origin only",
    "strict": NATIVE,
    "async": "left out: a call is answered in the next request",
}
