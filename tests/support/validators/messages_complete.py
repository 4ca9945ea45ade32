"""The rules for a complete Messages reply (MW1, MW2), for its errors (E1, E2), and those shared with streams.

Replies and streams are judged by their content: blocks, calls, stop reason and request. Only blocks of tools that the
client runs are supported, not those of tools that the origin runs.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeGuard

from attrs import frozen
from support.validators.chat_complete import is_count, unique
from support.validators.framing import Headers, Problems, Violation, check_whole, strict_json

Json = Any  # a decoded JSON value

REASONS: Final = (
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "pause_turn",
    "refusal",
    "model_context_window_exceeded",
)
CUT: Final = ("max_tokens", "refusal", "model_context_window_exceeded")
ERRORS: Final = (
    "invalid_request_error",
    "authentication_error",
    "billing_error",
    "permission_error",
    "not_found_error",
    "conflict_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "timeout_error",
    "overloaded_error",
)
_STRINGS: Final = {
    "text": ("text",),
    "thinking": ("thinking", "signature"),
    "redacted_thinking": ("data",),
    "tool_use": ("id", "name"),
}
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_TOOLSET: Final = re.compile("(browser|computer)_toolset_")
"""A tool of these types has no name; its calls carry the name of the toolset."""
_AT_THE_ORIGIN: Final = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_")


@frozen
class MessagesCall:
    """A call in a reply, with the fields that the shared rules need."""

    id: Json
    name: Json
    toolset: Json = None
    """The toolset of the called tool; None if the tool does not belong to one."""

    @classmethod
    def of(cls, block: Mapping[str, Json]) -> "MessagesCall":
        """Return the call in a block."""
        return cls(block.get("id"), block.get("name"), block.get("toolset_name"))


def validate_messages_whole(
    data: bytes, request: Mapping[str, Json] | None = None, *, headers: Headers | None = None
) -> list[Violation]:
    """Return the violations of a complete reply. `request` is the body that it answers."""
    return check_whole(data, headers, "MW1", lambda body, problems: _whole(body, request, problems))


def _whole(body: dict[str, Json], request: Mapping[str, Json] | None, problems: Problems) -> None:
    envelope(body, "MW1", problems)
    for key in ("stop_reason", "stop_sequence"):
        if key not in body:
            problems.must("MW1", f"no `{key}` key")
    reason = body.get("stop_reason")
    if reason not in REASONS:
        problems.must("MW1", f"the stop reason is {reason!r}")
    calls: list[MessagesCall] = []
    content = body.get("content")
    for position, block in enumerate(content if isinstance(content, list) else ()):
        if not check_block(block, f"block {position}", "MW2", problems):
            continue
        if block["type"] == "tool_use":
            calls.append(MessagesCall.of(block))
            if not isinstance(block.get("input"), dict):
                problems.must("MW2", f"the input of block {position} is not an object")
        elif block["type"] == "text":
            if block.get("text") == "":
                problems.must("M14", f"block {position} is an empty text")
            if calls:
                problems.should("M15", f"block {position} is a text after a call")
    check_reason(reason, body.get("stop_sequence"), calls, problems)
    check_ids(calls, request, problems)
    check_request(calls, request, problems, cut=excused(reason))


def validate_messages_error(data: bytes) -> list[Violation]:
    """Return the violations of an error body."""
    problems = Problems()
    try:
        body = strict_json(data)
    except ValueError as error:
        problems.must("E1", f"not JSON: {error}")
        return problems.found
    if not isinstance(body, dict) or body.get("type") != "error":
        problems.must("E2", "the type of the body is not `error`")
    elif not isinstance(body.get("request_id"), str | None):
        problems.must("E2", "`request_id` is not a string")
    check_error(body, "E1", problems)
    return problems.found


# --- shared with streams ----------------------------------------------------------------------------------------------


def check_error(body: Json, rule: str, problems: Problems) -> None:
    """Check an error: type and message are strings (`rule`), and clients know the type (E2)."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        problems.must(rule, "`error` is not an object")
        return
    for key in ("type", "message"):
        if not isinstance(error.get(key), str) or not error[key]:
            problems.must(rule, f"`error.{key}` is not a string")
    if isinstance(error.get("type"), str) and error["type"] not in ERRORS:
        problems.should("E2", f"no client knows an error of type {error['type']!r}")


def envelope(message: Mapping[str, Json], rule: str, problems: Problems) -> None:
    """Check the fields that the message of `message_start` and a complete reply have in common."""
    if not isinstance(message.get("id"), str) or not message["id"]:
        problems.must(rule, "the message has no id")
    for key, wanted in (("type", "message"), ("role", "assistant")):
        if message.get(key) != wanted:
            problems.must(rule, f"the {key} of the message is {message.get(key)!r}, not {wanted!r}")
    if not isinstance(message.get("model"), str):
        problems.must(rule, "the message has no model")
    if not isinstance(message.get("content"), list):
        problems.must(rule, "the content of the message is not a list")
    check_usage(message.get("usage"), ("input_tokens", "output_tokens"), rule, problems)


def check_usage(usage: Json, keys: Sequence[str], rule: str, problems: Problems) -> None:
    """Check usage: the counts are integers; only those of `keys` are required."""
    if not isinstance(usage, dict) or not all(is_count(usage.get(key)) for key in keys):
        problems.must(rule, f"usage lacks integers for {', '.join(keys)}: {usage!r}")
        return
    for key in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"):
        if usage.get(key) is not None and not is_count(usage[key]):
            problems.must(rule, f"`usage.{key}` is not an integer")


def check_block(block: Json, where: str, rule: str, problems: Problems) -> TypeGuard[dict[str, Json]]:
    """Return whether `block` has a known type, after checking its strings."""
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str) or kind not in _STRINGS:
        problems.must(rule, f"{where} has an unknown type: {kind!r}")
        return False
    for key in _STRINGS[kind]:
        if not isinstance(block.get(key), str):
            # call ids have a separate rule
            problems.must("M11" if key == "id" else rule, f"`{key}` of {where} is not a string")
    if kind == "tool_use" and block.get("name") == "":
        problems.must(rule, f"{where} is a call without a name")
    return True


def check_reason(reason: Json, sequence: Json, calls: Sequence[MessagesCall], problems: Problems) -> None:
    """Check the stop reason (M10): `tool_use` exactly if there is a call, and a stop sequence exactly if that is the
    reason. Reasons for a truncated reply are not checked.
    """
    if reason in ("tool_use", "end_turn", "stop_sequence") and (reason == "tool_use") != bool(calls):
        problems.must("M10", f"{len(calls)} calls and the stop reason {reason!r}")
    if not isinstance(sequence, str | None) or (sequence is not None) != (reason == "stop_sequence"):
        problems.must("M10", f"the stop sequence is {sequence!r} with the stop reason {reason!r}")


def check_ids(calls: Iterable[MessagesCall], request: Mapping[str, Json] | None, problems: Problems) -> None:
    """Check call ids (M11): well-formed, with the usual prefix (SHOULD), and unique in the conversation."""
    ids = [call.id for call in calls if isinstance(call.id, str)]  # `check_block` has reported the others
    for identity in ids:
        if not _ID.fullmatch(identity):
            problems.must("M11", f"the id of a call is {identity!r}")
        elif not identity.startswith("toolu_"):
            problems.should("M11", f"the id {identity!r} does not begin with toolu_")
    unique(ids, "M11", problems)
    for block in _history(request or {}):
        if block.get("id") in ids:
            problems.must("M11", f"the id {block['id']!r} is already in the history")


def excused(reason: Json) -> bool:
    """Return whether a reply with this stop reason may lack a required call."""
    return reason in CUT or reason == "pause_turn"


def check_request(
    calls: Sequence[MessagesCall], request: Mapping[str, Json] | None, problems: Problems, *, cut: bool
) -> None:
    """Check the calls against what the request allows and requires (M16). If `cut`, a required call may be missing."""
    if request is None:
        return
    known = _offered(request)
    choice = request.get("tool_choice") or {}
    kind = choice.get("type", "auto")
    for call in calls:
        if (call.toolset or call.name) not in known:
            problems.must("M16", f"{call.name!r} is not among the tools")
        elif kind == "none" or (kind == "tool" and choice.get("name") not in (call.name, call.toolset)):
            problems.must("M16", f"the tool choice does not allow {call.name!r}")
    if choice.get("disable_parallel_tool_use") and len(calls) > 1:
        problems.must("M16", f"{len(calls)} calls where only one is allowed")
    if kind in ("any", "tool") and not calls and not cut:
        problems.must("M16", "the tool choice requires a call, but the reply has none")


def _offered(request: Mapping[str, Json]) -> set[Json]:
    """Return the names of the tools and toolsets that the request offers or, without any, of those that its history
    calls.
    """
    names: set[Json] = set()
    for tool in request.get("tools") or ():
        kind = str(tool.get("type"))
        if (toolset := _TOOLSET.match(kind)) is not None:
            names.add(toolset[1])
        elif "name" in tool and not kind.startswith(_AT_THE_ORIGIN):
            names.add(tool["name"])
    return names or {block.get("toolset_name") or block["name"] for block in _history(request)}


def _history(request: Mapping[str, Json]) -> list[dict[str, Json]]:
    """Return the calls of earlier turns."""
    return [
        block
        for message in request.get("messages") or ()
        if isinstance(message.get("content"), list)
        for block in message["content"]
        if isinstance(block, dict) and block.get("type") == "tool_use"
    ]
