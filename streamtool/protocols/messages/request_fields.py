"""Treatment of request fields and tool fields. A test compares the field names with the SDK's.

Fields that contain options are added from the option table. Source: the request types of anthropic-python 2.12.
"""

from collections.abc import Mapping
from typing import Final

from streamtool.protocols.decisions import HONORED, NATIVE, PASSED, REJECTED, Field, RequestFields

REQUEST_FIELDS: Final = RequestFields(
    "messages",
    {
        "model": HONORED,
        "messages": HONORED,
        "system": HONORED,
        "stream": HONORED,
        "tools": HONORED,
        "tool_choice": HONORED,
        "thread": REJECTED.with_note("conversations are not stored"),
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
    },
)
TOOL_FIELDS: Final[Mapping[str, Field]] = {
    "name": HONORED,
    "type": HONORED,
    "description": HONORED,
    "input_schema": HONORED,
    "input_examples": HONORED.with_note("the tool prompt shows the first three"),
    "defer_loading": HONORED.with_note(
        "the tool is offered once the conversation refers to it, or immediately if only the origin could find it"
    ),
    "allowed_callers": HONORED.with_note(
        "a tool without `direct` is dropped and logged, because only the origin runs programs"
    ),
    "strict": NATIVE,
    "eager_input_streaming": HONORED.with_note("arguments are always streamed as they arrive"),
    "cache_control": NATIVE,
}
