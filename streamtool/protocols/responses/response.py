"""The response object, which is the body of a complete reply and part of the first and last events of a stream.

Most of the object repeats the request, including its tools. The object is encoded again each of the three times that a
stream sends it, because the encoded form would account for most of an open stream's memory.
"""

from collections.abc import Iterable
from typing import Final

from streamtool.core.conversation import Conversation
from streamtool.core.errors import StreamtoolError
from streamtool.core.json_value import Json
from streamtool.core.reply import Usage
from streamtool.protocols.shared import wire

_CODES: Final = frozenset(
    {"server_error", "rate_limit_exceeded", "invalid_prompt", "context_length_exceeded", "insufficient_quota"}
)
"""Error codes that clients recognize in a failed response."""
_TOO_MANY: Final = 429
_KEYS: Final = frozenset({"authorization", "headers"})
"""Fields of a tool that contain keys for its server. Stored responses must not contain them."""


class ResponseObject:
    """Response object of one reply, which can be written at each stage of the reply."""

    __slots__ = ("_conversation", "_head", "_model")

    def __init__(self, conversation: Conversation, *, id: str, created: int, model: str) -> None:
        self._head = wire.encode({"id": id, "object": "response", "created_at": created})[:-1]
        self._conversation = conversation
        self._model = model

    def write(
        self, status: bytes, output: bytes = b"", *, usage: Usage | None = None, error: Json = None, why: Json = None
    ) -> bytes:
        """Return the object as JSON. `output` contains the items, joined by commas; `why` states why a response is
        incomplete.
        """
        return b'%b,"status":"%b","error":%b,"incomplete_details":%b,"output":[%b],"usage":%b%b' % (
            self._head,
            status,
            wire.encode(error),
            wire.encode(why and {"reason": why}),
            output,
            wire.encode(usage and usage_fields(usage)),
            b"," + wire.encode({"model": self._model, **_echo(self._conversation)})[1:],
        )


def _echo(conversation: Conversation) -> dict[str, Json]:
    """Return the fields that repeat the request. Fields that the client omitted have the origin's default value, or
    null.
    """
    raw = conversation.raw
    choice = raw.get("tool_choice") or "auto"
    return {
        "background": conversation.background,
        "conversation": (kept := raw.get("conversation")) and {"id": kept.id},
        "instructions": raw.get("instructions"),
        "max_output_tokens": raw.get("max_output_tokens"),
        "max_tool_calls": raw.get("max_tool_calls"),
        "metadata": raw.get("metadata") or {},
        "parallel_tool_calls": conversation.choice.parallel,
        "previous_response_id": raw.get("previous_response_id"),
        "prompt_cache_key": raw.get("prompt_cache_key"),
        "reasoning": {"effort": None, "summary": None, **(raw.get("reasoning") or {})},
        "safety_identifier": raw.get("safety_identifier"),
        "store": raw.get("store") is not False,
        "temperature": raw.get("temperature"),
        "text": {**(raw.get("text") or {}), "format": (raw.get("text") or {}).get("format") or {"type": "text"}},
        "tool_choice": "required" if choice == "any" else choice,
        "tools": [_tool(tool) for tool in raw.get("tools") or ()],
        "top_p": raw.get("top_p"),
        "truncation": raw.get("truncation") or "disabled",
        "user": raw.get("user"),
    }


def _tool(tool: Json) -> Json:
    """Return the tool as received, without its keys, like OpenAI. A function is completed with the fields that typed
    clients expect.
    """
    if isinstance(tool, dict) and _is_function(tool):
        return {"type": "function", "description": None, "parameters": None, "strict": False, **tool}
    return {name: value for name, value in tool.items() if name not in _KEYS} if isinstance(tool, dict) else tool


def _is_function(tool: dict[str, Json]) -> bool:
    return tool.get("type") in (None, "function")


def contains_tool_keys(tools: Iterable[Json]) -> bool:
    """Return whether tools of a request contain keys for their servers."""
    return any(isinstance(tool, dict) and not _is_function(tool) and any(map(tool.get, _KEYS)) for tool in tools)


def usage_fields(usage: Usage) -> dict[str, Json]:
    """Return the token usage as an object; unknown counts are 0."""
    return {
        "input_tokens": usage.input,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.input + usage.output,
        **wire.own_counts(usage),
    }


def error_code(error: StreamtoolError) -> str:
    """Return the code for an error in a failed response, which is always one that clients recognize."""
    if error.code in _CODES:
        return error.code or ""
    return "rate_limit_exceeded" if error.status == _TOO_MANY else "server_error"
