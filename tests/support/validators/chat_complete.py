"""The rules for a complete Chat Completions reply (CW1–CW5), for its errors (E1, E3), and those shared with streams."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

from attrs import frozen
from support.validators.framing import (
    Headers,
    Problems,
    Violation,
    check_whole,
    is_object_prefix,
    strict_json,
    without_end,
)

Json = Any  # a decoded JSON value

REASONS: Final = ("stop", "length", "tool_calls", "content_filter", "function_call")
CUT: Final = ("length", "content_filter")
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")


@frozen
class Made:
    """A call in a reply, with the fields that the shared rules need."""

    id: str | None
    name: str
    arguments: str
    custom: bool = False
    legacy: bool = False


def validate_chat_whole(
    data: bytes, request: Mapping[str, Json] | None = None, *, headers: Headers | None = None
) -> list[Violation]:
    """Return the violations of a complete reply. `request` is the body that it answers."""
    return check_whole(data, headers, "CW1", lambda body, problems: _whole(body, request, problems))


def _whole(body: dict[str, Json], request: Mapping[str, Json] | None, problems: Problems) -> None:
    envelope(body, "chat.completion", "CW1", "the body", problems)
    if "error" in body:
        problems.must("CW1", "a reply has an `error` key")
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        problems.must("CW1", "`choices` is not a list, or is empty")
        return
    wanted = count(request)
    if wanted is not None and len(choices) != wanted:
        problems.must("CW2", f"{len(choices)} choices, not {wanted}")
    ids: list[str] = []
    for position, choice in enumerate(choices):
        _choice(choice, position, request, ids, problems)
    unique(ids, "CW3", problems)
    usage = body.get("usage")
    if usage is None:
        problems.must("CW5", "no usage")
    else:
        check_usage(usage, "CW5", problems)


def _choice(
    choice: Json, position: int, request: Mapping[str, Json] | None, ids: list[str], problems: Problems
) -> None:
    where = f"choice {position}"
    if choice.get("index") != position:
        problems.must("CW2", f"{where} has index {choice.get('index')!r}")
    if "logprobs" not in choice:
        problems.should("CW2", f"{where} has no `logprobs` key")
    message = choice.get("message")
    if not isinstance(message, dict):
        problems.must("CW2", f"{where} has no message")
        return
    if message.get("role") != "assistant":
        problems.must("CW2", f"the role of {where} is {message.get('role')!r}")
    if "content" not in message or not isinstance(message["content"], str | None):
        problems.must("CW2", f"the content of {where} is neither a string nor null")
    if "refusal" not in message or not isinstance(message["refusal"], str | None):
        problems.should("CW2", f"the refusal of {where} is neither a string nor null")
    calls: list[Made] = []
    given = message.get("tool_calls")
    if given is not None and (not isinstance(given, list) or not given):
        problems.must("CW3", f"`tool_calls` of {where} is not a list, or is empty instead of absent")
    for item in given or ():
        made = _call(item, where, problems)
        if made is not None:
            calls.append(made)
    legacy = message.get("function_call")
    if legacy is not None:
        name, arguments = legacy.get("name"), legacy.get("arguments")
        if not isinstance(name, str) or not isinstance(arguments, str):
            problems.must("CW3", f"the function call of {where} lacks name or arguments")
        calls.append(Made(None, str(name), str(arguments), legacy=True))
    if message.get("content") is None and not calls and not message.get("refusal"):
        problems.should("CW2", f"{where} has no content")
    ids.extend(call.id for call in calls if call.id is not None)
    reason = choice.get("finish_reason")
    if reason not in REASONS:
        problems.must("CW4", f"the finish reason of {where} is {reason!r}")
    check_reason(reason, calls, "CW4", where, problems)
    for call in calls:
        check_arguments(call, reason, "CW3", problems)
    check_request(calls, request, reason, problems)


def _call(item: Json, where: str, problems: Problems) -> Made | None:
    kind = item.get("type")
    if kind not in ("function", "custom"):
        problems.must("CW3", f"a call of {where} has type {kind!r}")
        return None
    inner, key = item.get(kind), "arguments" if kind == "function" else "input"
    if not isinstance(inner, dict):
        problems.must("CW3", f"a call of {where} has no `{kind}` object")
        return None
    name, value = inner.get("name"), inner.get(key)
    if not isinstance(name, str) or not name or not isinstance(value, str):
        problems.must("CW3", f"name and {key} of a call of {where} are not strings")
        return None
    check_id(item.get("id"), "CW3", problems)
    return Made(item.get("id"), name, value, custom=kind == "custom")


def validate_chat_error(data: bytes) -> list[Violation]:
    """Return the violations of an error body."""
    problems = Problems()
    try:
        body = strict_json(data)
    except ValueError as error:
        problems.must("E1", f"not JSON: {error}")
        return problems.found
    check_error(body, "E1", problems)
    return problems.found


# --- shared with streams ----------------------------------------------------------------------------------------------


def check_error(body: Json, rule: str, problems: Problems) -> None:
    """Check an error: message and type are strings (`rule`), param and code are present (E3)."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        problems.must(rule, "`error` is not an object")
        return
    for key in ("message", "type"):
        if not isinstance(error.get(key), str) or not error[key]:
            problems.must(rule, f"`error.{key}` is not a string")
    for key in ("param", "code"):
        if key not in error:
            problems.should("E3", f"`error.{key}` is absent instead of null")
        elif not isinstance(error[key], str | None):
            problems.must("E3", f"`error.{key}` is neither a string nor null")


def envelope(body: Mapping[str, Json], kind: str, rule: str, where: str, problems: Problems) -> None:
    """Check the fields that every chunk and every reply has."""
    if not isinstance(body.get("id"), str) or not body["id"]:
        problems.must(rule, f"{where} has no id")
    if body.get("object") != kind:
        problems.must(rule, f"the object of {where} is {body.get('object')!r}, not {kind!r}")
    if not is_count(body.get("created")):
        problems.must(rule, f"the time of {where} is not an integer")
    if not isinstance(body.get("model"), str):
        problems.must(rule, f"{where} has no model")
    if not isinstance(body.get("choices"), list):
        problems.must(rule, f"the choices of {where} are not a list")


def is_count(value: Json) -> TypeGuard[int]:
    """Return whether `value` is a non-negative integer."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_id(identity: Json, rule: str, problems: Problems) -> None:
    """Check a call id: present and well-formed (MUST), with the usual prefix (SHOULD)."""
    if not isinstance(identity, str) or not _ID.fullmatch(identity):
        problems.must(rule, f"the id of a call is {identity!r}")
    elif not identity.startswith("call_"):
        problems.should(rule, f"the id {identity!r} does not begin with call_")


def unique(ids: Sequence[str], rule: str, problems: Problems) -> None:
    """Report ids that occur more than once."""
    for identity in sorted({each for each in ids if ids.count(each) > 1}):
        problems.must(rule, f"the id {identity!r} occurs more than once")


def check_usage(usage: Json, rule: str, problems: Problems) -> None:
    """Check usage: the counts are integers, and the total is their sum."""
    keys = ("prompt_tokens", "completion_tokens", "total_tokens")
    if not isinstance(usage, dict) or not all(is_count(usage.get(key)) for key in keys):
        problems.must(rule, f"usage is not three integers: {usage!r}")
    elif usage["total_tokens"] != usage["prompt_tokens"] + usage["completion_tokens"]:
        problems.should(rule, "the token total is not the sum")


def check_reason(reason: Json, calls: Sequence[Made], rule: str, where: str, problems: Problems) -> None:
    """Check that the reason is `tool_calls` exactly if there is a call. Reasons for a truncated reply are not
    checked.
    """
    expected = ("function_call" if calls[0].legacy else "tool_calls") if calls else "stop"
    if reason in ("stop", "tool_calls", "function_call") and reason != expected:
        problems.must(rule, f"{where} has {len(calls)} calls and the reason {reason!r}")


def check_arguments(call: Made, reason: Json, rule: str, problems: Problems) -> None:
    """Check that the arguments are a JSON object or, if the reply was truncated, the beginning of one."""
    if call.custom:
        return
    try:
        whole = isinstance(strict_json(call.arguments), dict)
    except ValueError:
        whole = False
    if whole:
        return
    text, ended = without_end(call.arguments)
    if reason not in CUT and not ended:
        problems.must(rule, f"the arguments of {call.name!r} are not a JSON object: {call.arguments[:80]!r}")
    elif not is_object_prefix(text):
        problems.must(rule, f"the arguments of {call.name!r} do not begin a JSON object: {call.arguments[:80]!r}")


def count(request: Mapping[str, Json] | None) -> int | None:
    """Return how many choices were requested; None without a request."""
    return None if request is None else request.get("n") or 1


def offered(request: Mapping[str, Json]) -> set[str]:
    """Return the names of the tools that the request offers or, without any, of those that its history calls."""
    names = {tool["name"] for tool in request.get("functions") or ()}
    for tool in request.get("tools") or ():
        inner = tool.get(tool.get("type", "function"))
        if isinstance(inner, dict) and "name" in inner:
            names.add(inner["name"])
    if names:
        return names
    for message in request.get("messages") or ():
        for call in message.get("tool_calls") or ():
            names.add((call.get("function") or call.get("custom"))["name"])
        if message.get("function_call"):
            names.add(message["function_call"]["name"])
    return names


def check_request(calls: Sequence[Made], request: Mapping[str, Json] | None, reason: Json, problems: Problems) -> None:
    """Check the calls of one choice against what the request allows and requires (C19, C20)."""
    if request is None:
        return
    known = offered(request)
    for call in calls:
        if call.name not in known:
            problems.must("C19", f"{call.name!r} is not among the tools")
        if call.legacy and not request.get("functions"):
            problems.must("C20", "a function_call, but the request has no functions")
        if not call.legacy and request.get("functions"):
            problems.must("C20", "tool_calls, but the request has functions")
    single = request.get("parallel_tool_calls") is False or request.get("functions")
    if single and len(calls) > 1:
        problems.must("C19", f"{len(calls)} calls where only one is allowed")
    choice = request.get("tool_choice", request.get("function_call"))
    allowed, demanded = _allowed(choice, known)
    for call in calls:
        if call.name in known and call.name not in allowed:
            problems.must("C19", f"the tool choice does not allow {call.name!r}")
    if demanded and not calls and reason not in CUT:
        problems.must("C19", "the tool choice requires a call, but the reply has none")


def _allowed(choice: Json, known: set[str]) -> tuple[set[str], bool]:
    """Return the names that a tool choice allows, and whether it requires a call."""
    if choice == "none":
        return set(), False
    if isinstance(choice, dict):
        if choice.get("type") == "allowed_tools":
            subset = choice.get("allowed_tools", choice)
            return {_name(tool) for tool in subset["tools"]}, subset["mode"] == "required"
        if choice.get("type", "function") in ("function", "custom"):
            return {_name(choice)}, True
    return known, choice in ("required", "any")


def _name(fields: Mapping[str, Json]) -> str:
    inner = fields.get(fields.get("type", "function"), fields)
    return str(inner["name"])
