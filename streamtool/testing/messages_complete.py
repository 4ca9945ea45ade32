"""The rules of a whole Messages reply (MW1, MW2), of its errors (E1, E2), and those that streams share.

Reply and stream are judged by what they come to: the blocks, the calls among them, the reason of the end and the
request. Only blocks that run at the client are known; those of tools that the origin runs are not.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeGuard

from attrs import frozen

from streamtool.testing.chat_complete import is_count, unique
from streamtool.testing.framing import Headers, Problems, Violation, check_whole, strict_json

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
"""A tool of these types has no name; its calls bear the name of the toolset."""
_AT_THE_ORIGIN: Final = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_")


@frozen
class MessagesCall:
    """A call that a reply makes, as far as the common rules look at it."""

    id: Json
    name: Json
    toolset: Json = None
    """The toolset to which the called tool belongs; None: it is a tool of its own."""

    @classmethod
    def of(cls, block: Mapping[str, Json]) -> "MessagesCall":
        """The call that the block is."""
        return cls(block.get("id"), block.get("name"), block.get("toolset_name"))


def validate_messages_whole(
    data: bytes, request: Mapping[str, Json] | None = None, *, headers: Headers | None = None
) -> list[Violation]:
    """What is wrong with a reply that was not streamed. `request` is the body that it answers."""
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
                problems.must("MW2", f"the input of block {position} is no object")
        elif block["type"] == "text":
            if block.get("text") == "":
                problems.must("M14", f"block {position} is an empty text")
            if calls:
                problems.should("M15", f"block {position} is a text behind a call")
    check_reason(reason, body.get("stop_sequence"), calls, problems)
    check_ids(calls, request, problems)
    check_request(calls, request, problems, cut=excused(reason))


def validate_messages_error(data: bytes) -> list[Violation]:
    """What is wrong with the body of an error."""
    problems = Problems()
    try:
        body = strict_json(data)
    except ValueError as error:
        problems.must("E1", f"not JSON: {error}")
        return problems.found
    if not isinstance(body, dict) or body.get("type") != "error":
        problems.must("E2", "the type of the body is not `error`")
    elif not isinstance(body.get("request_id"), str | None):
        problems.must("E2", "`request_id` is no string")
    check_error(body, "E1", problems)
    return problems.found


# --- what streams share -----------------------------------------------------------------------------------------------


def check_error(body: Json, rule: str, problems: Problems) -> None:
    """The shape of an error: type and message are strings (`rule`), the type is one that clients know (E2)."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        problems.must(rule, "`error` is no object")
        return
    for key in ("type", "message"):
        if not isinstance(error.get(key), str) or not error[key]:
            problems.must(rule, f"`error.{key}` is no string")
    if isinstance(error.get("type"), str) and error["type"] not in ERRORS:
        problems.should("E2", f"no client knows an error of type {error['type']!r}")


def envelope(message: Mapping[str, Json], rule: str, problems: Problems) -> None:
    """The fields that the message of `message_start` and a whole reply have in common."""
    if not isinstance(message.get("id"), str) or not message["id"]:
        problems.must(rule, "the message has no id")
    for key, wanted in (("type", "message"), ("role", "assistant")):
        if message.get(key) != wanted:
            problems.must(rule, f"the {key} of the message is {message.get(key)!r}, not {wanted!r}")
    if not isinstance(message.get("model"), str):
        problems.must(rule, "the message has no model")
    if not isinstance(message.get("content"), list):
        problems.must(rule, "the content of the message is no list")
    check_usage(message.get("usage"), ("input_tokens", "output_tokens"), rule, problems)


def check_usage(usage: Json, keys: Sequence[str], rule: str, problems: Problems) -> None:
    """Token counts: integers; only those of `keys` must be there."""
    if not isinstance(usage, dict) or not all(is_count(usage.get(key)) for key in keys):
        problems.must(rule, f"usage lacks integers for {', '.join(keys)}: {usage!r}")
        return
    for key in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"):
        if usage.get(key) is not None and not is_count(usage[key]):
            problems.must(rule, f"`usage.{key}` is no integer")


def check_block(block: Json, where: str, rule: str, problems: Problems) -> TypeGuard[dict[str, Json]]:
    """Whether `block` is of a known type; its strings are checked."""
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str) or kind not in _STRINGS:
        problems.must(rule, f"{where} has no known type: {kind!r}")
        return False
    for key in _STRINGS[kind]:
        if not isinstance(block.get(key), str):
            # the id of a call has a rule of its own
            problems.must("M11" if key == "id" else rule, f"`{key}` of {where} is no string")
    if kind == "tool_use" and block.get("name") == "":
        problems.must(rule, f"{where} is a call without a name")
    return True


def check_reason(reason: Json, sequence: Json, calls: Sequence[MessagesCall], problems: Problems) -> None:
    """M10: reason `tool_use` exactly when there is a call, for the reasons of a model that stopped by itself; a stop
    sequence exactly when that is the reason."""
    if reason in ("tool_use", "end_turn", "stop_sequence") and (reason == "tool_use") != bool(calls):
        problems.must("M10", f"{len(calls)} calls and the stop reason {reason!r}")
    if not isinstance(sequence, str | None) or (sequence is not None) != (reason == "stop_sequence"):
        problems.must("M10", f"the stop sequence is {sequence!r} with the stop reason {reason!r}")


def check_ids(calls: Iterable[MessagesCall], request: Mapping[str, Json] | None, problems: Problems) -> None:
    """M11: ids of calls are legal, with the usual prefix (SHOULD), and stand once in the conversation."""
    ids = [call.id for call in calls if isinstance(call.id, str)]  # others were reported as a block's shape
    for identity in ids:
        if not _ID.fullmatch(identity):
            problems.must("M11", f"the id of a call is {identity!r}")
        elif not identity.startswith("toolu_"):
            problems.should("M11", f"the id {identity!r} does not begin with toolu_")
    unique(ids, "M11", problems)
    for block in _history(request or {}):
        if block.get("id") in ids:
            problems.must("M11", f"the id {block['id']!r} stands in the history")


def excused(reason: Json) -> bool:
    """Whether a reply that ended so may lack the call that was demanded."""
    return reason in CUT or reason == "pause_turn"


def check_request(
    calls: Sequence[MessagesCall], request: Mapping[str, Json] | None, problems: Problems, *, cut: bool
) -> None:
    """M16: what the request allows and demands. `cut`: the reply may have ended before the call that was demanded."""
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
        problems.must("M16", f"{len(calls)} calls where one is allowed")
    if kind in ("any", "tool") and not calls and not cut:
        problems.must("M16", "the tool choice demands a call and there is none")


def _offered(request: Mapping[str, Json]) -> set[Json]:
    """Names of the tools and toolsets that the request offers; without any, of those that its history calls."""
    names: set[Json] = set()
    for tool in request.get("tools") or ():
        kind = str(tool.get("type"))
        if (toolset := _TOOLSET.match(kind)) is not None:
            names.add(toolset[1])
        elif "name" in tool and not kind.startswith(_AT_THE_ORIGIN):
            names.add(tool["name"])
    return names or {block.get("toolset_name") or block["name"] for block in _history(request)}


def _history(request: Mapping[str, Json]) -> list[dict[str, Json]]:
    """The calls of earlier turns."""
    return [
        block
        for message in request.get("messages") or ()
        if isinstance(message.get("content"), list)
        for block in message["content"]
        if isinstance(block, dict) and block.get("type") == "tool_use"
    ]
