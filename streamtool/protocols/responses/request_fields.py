"""Treatment of request fields and tool fields. A test compares the field names with the SDK's.

Fields that contain options are added from the option table. Source: the request types of openai-python 3.54.
"""

from collections.abc import Mapping
from typing import Final

from streamtool.protocols.decisions import DROPPED, HONORED, NATIVE, PASSED, REJECTED, Field, RequestFields

REQUEST_FIELDS: Final = RequestFields(
    "responses",
    {
        "model": HONORED,
        "input": HONORED,
        "instructions": HONORED,
        "previous_response_id": HONORED,
        "store": HONORED,
        "metadata": HONORED.with_note("repeated in the response"),
        "stream": HONORED,
        "tools": HONORED,
        "tool_choice": HONORED,
        "parallel_tool_calls": HONORED,
        "background": HONORED,
        "conversation": HONORED,
        "prompt": REJECTED.with_note("prompts are not stored here"),
        "max_tool_calls": PASSED.with_note("limits calls to tools that only the origin runs"),
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
    },
)
TOOL_FIELDS: Final[Mapping[str, Field]] = {
    "name": HONORED,
    "type": HONORED,
    "description": HONORED,
    "parameters": HONORED,
    "format": HONORED.with_note("the tool prompt shows its grammar"),
    "output_schema": HONORED.with_note("the tool prompt shows the result's type"),
    "defer_loading": HONORED.with_note(
        "the tool is offered once the client's `tool_search` finds it, or immediately if the client has no such tool"
    ),
    "allowed_callers": HONORED.with_note(
        "a tool without `direct` is dropped and logged, because only the origin runs programs"
    ),
    "strict": NATIVE,
    "async": DROPPED.with_note("results are always sent in the next request"),
}
