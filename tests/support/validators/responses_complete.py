"""The rules for a complete Responses reply (RW1, RW2), for its errors (E1, E3), and those shared with streams.

Replies and streams are judged by their content: the response object, its items and calls, and the request. Only items
of tools that the client runs are supported, not those of tools that the origin runs.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeGuard

from attrs import frozen
from support.validators.chat_complete import check_id, is_count, unique, validate_chat_error
from support.validators.framing import Headers, Problems, Violation, check_object, check_whole
from support.validators.responses_typed import TYPED, TYPED_PREFIXES, fits, typed

Json = Any  # a decoded JSON value

PREFIXES: Final = {
    "message": "msg_",
    "function_call": "fc_",
    "custom_tool_call": "ctc_",
    "reasoning": "rs_",
    **TYPED_PREFIXES,
}
VALUES: Final = {"function_call": "arguments", "custom_tool_call": "input"}
"""Types of calls whose arguments are text → the key of that text."""
CALLS: Final = frozenset({*VALUES, *TYPED})
PARTS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "message": {"content": ("output_text", "refusal")},
    "reasoning": {"summary": ("summary_text",), "content": ("reasoning_text",)},
    "function_call": {},
    "custom_tool_call": {},
    **{kind: {} for kind in TYPED},
}
"""Type of item → its lists of parts → the types of parts in them."""
_RESPONSE: Final[Mapping[str, type | tuple[type, ...]]] = {
    "id": str,
    "created_at": (int, float),
    "model": str,
    "output": list,
    "parallel_tool_calls": bool,
    "tool_choice": (str, dict),
    "tools": list,
}
_NULLABLE: Final = ("error", "incomplete_details")
_USUAL: Final[Mapping[str, type | tuple[type, ...]]] = {
    "instructions": (str, list),
    "max_output_tokens": int,
    "metadata": dict,
    "previous_response_id": str,
    "reasoning": dict,
    "store": bool,
    "temperature": (int, float),
    "text": dict,
    "top_p": (int, float),
    "truncation": str,
    "usage": dict,
    "user": str,
}
"""Any of these may be null."""
_ENDED: Final = ("completed", "incomplete", "failed")
_CODES: Final = (
    "server_error",
    "rate_limit_exceeded",
    "invalid_prompt",
    "context_length_exceeded",
    "insufficient_quota",
)


@frozen
class ResponsesCall:
    """A call in a reply, with the fields that the shared rules need."""

    namespace: Json
    name: Json
    custom: bool
    typed: str | None = None
    """The type of a tool without a name."""

    def __str__(self) -> str:
        if self.typed is not None:
            return self.typed
        name = f"{self.namespace}.{self.name}" if self.namespace else str(self.name)
        return f"{name} ({'custom' if self.custom else 'function'})"


def validate_responses_whole(
    data: bytes, request: Mapping[str, Json] | None = None, *, headers: Headers | None = None
) -> list[Violation]:
    """Return the violations of a complete reply. `request` is the body that it answers."""
    return check_whole(data, headers, "RW1", lambda body, problems: _whole(body, request, problems))


def _whole(body: dict[str, Json], request: Mapping[str, Json] | None, problems: Problems) -> None:
    status = body.get("status")
    if status not in _ENDED:
        problems.must("RW1", f"the status is {status!r}")
    check_response(body, status, "RW1", problems)
    check_ended(body, "RW1", problems)
    items = body.get("output") or []
    for position, item in enumerate(items):
        where = f"item {position}"
        if not check_item(item, where, "RW2", problems):
            continue
        check_status(item, where, "RW2", problems)
        if item.get("status") == "incomplete" and status == "completed":
            problems.must("RW2", f"{where} is incomplete in a completed reply")
        for key, kinds in PARTS[item["type"]].items():
            for part in item.get(key) or ():
                check_part(part, kinds, where, "RW2", problems)
        if item["type"] == "function_call" and isinstance(item.get("arguments"), str):
            cut = item.get("status") == "incomplete"
            check_object(item["arguments"], f"the arguments of {where}", "R8", problems, cut=cut)
    check_calls([item for item in items if isinstance(item, dict)], request, problems, cut=status != "completed")


def validate_responses_error(data: bytes) -> list[Violation]:
    """Return the violations of an error body, which has the format of Chat Completions."""
    return validate_chat_error(data)


# --- the response object ----------------------------------------------------------------------------------------------


def check_response(response: Json, status: Json, rule: str, problems: Problems) -> None:
    """Check the keys of a response object with this `status`; those that only typed clients need are SHOULD."""
    if not isinstance(response, dict):
        problems.must(rule, "`response` is not an object")
        return
    for key, wanted in (("object", "response"), ("status", status)):
        if response.get(key) != wanted:
            problems.must(rule, f"`{key}` of the response is {response.get(key)!r}, not {wanted!r}")
    for key, types in _RESPONSE.items():
        value = response.get(key)
        if not _fits(value, types) or value == "":
            problems.must(rule, f"`{key}` of the response is {value!r}")
    choice = response.get("tool_choice")
    if isinstance(choice, dict) and not isinstance(choice.get("type"), str):
        problems.must(rule, "`tool_choice` of the response has no type")
    for key in _NULLABLE:
        if key not in response:
            problems.must(rule, f"the response has no `{key}` key")
    for key, owner in (("error", "failed"), ("incomplete_details", "incomplete")):
        if response.get(key) is not None and status != owner:
            problems.must(rule, f"`{key}` of a response that is {status}")
    for key, types in _USUAL.items():
        if key not in response:
            problems.should(rule, f"the response has no `{key}` key")
        elif response[key] is not None and not _fits(response[key], types):
            problems.should(rule, f"`{key}` of the response is {response[key]!r}")


def _fits(value: Json, types: type | tuple[type, ...]) -> bool:
    return isinstance(value, types) and (types is bool or not isinstance(value, bool))


def check_ended(response: Mapping[str, Json], rule: str, problems: Problems) -> None:
    """Check what a finished response reports: usage, why it is incomplete, or why it failed (R11)."""
    status, usage = response.get("status"), response.get("usage")
    if status == "failed":
        error = response.get("error")
        if not isinstance(error, dict) or not all(
            isinstance(error.get(key), str) and error[key] for key in ("code", "message")
        ):
            problems.must("R11", f"a failed response has the error {error!r}")
        elif error["code"] not in _CODES:
            problems.should("R11", f"few clients know the code {error['code']!r}")
    if status == "incomplete":
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        if reason not in ("max_output_tokens", "content_filter"):
            problems.must(rule, f"the reason of an incomplete response is {reason!r}")
    if status not in ("failed", "cancelled") or usage is not None:
        _usage(usage, rule, problems)


def _usage(usage: Json, rule: str, problems: Problems) -> None:
    given = usage if isinstance(usage, dict) else {}
    counts: list[Json] = [given.get(key) for key in ("input_tokens", "output_tokens", "total_tokens")]
    for outer, inner in (("input_tokens_details", "cached_tokens"), ("output_tokens_details", "reasoning_tokens")):
        details = given.get(outer)
        counts.append(details.get(inner) if isinstance(details, dict) else None)
    if not all(is_count(each) for each in counts):
        problems.must(rule, f"usage is incomplete: {usage!r}")
    elif counts[2] != counts[0] + counts[1]:
        problems.should(rule, "the token total is not the sum")


# --- items ------------------------------------------------------------------------------------------------------------


def check_item(item: Json, where: str, rule: str, problems: Problems) -> TypeGuard[dict[str, Json]]:
    """Return whether `item` has a known type, after checking the fields that it has from the beginning."""
    kind = item.get("type") if isinstance(item, dict) else None
    if not isinstance(kind, str) or kind not in PREFIXES:
        problems.must(rule, f"{where} has an unknown type: {kind!r}")
        return False
    identity = item.get("id")
    if not isinstance(identity, str) or not identity:
        problems.must(rule, f"the id of {where} is {identity!r}")
    elif not identity.startswith(PREFIXES[kind]):
        problems.should(rule, f"the id {identity!r} of {where} does not begin with {PREFIXES[kind]}")
    if kind == "message" and item.get("role") != "assistant":
        problems.must(rule, f"the role of {where} is {item.get('role')!r}")
    for key in PARTS[kind]:
        optional = (kind, key) == ("reasoning", "content") and item.get(key) is None
        if not isinstance(item.get(key), list) and not optional:
            problems.must(rule, f"`{key}` of {where} is not a list")
    if kind in TYPED and not fits(item):
        problems.must(rule, f"{where} lacks fields of a {kind}: {item!r}")
    if kind in CALLS and item.get("call_id") == identity:
        problems.must(rule, f"the id of {where} is also its call_id")
    if kind in VALUES:
        if not isinstance(item.get("name"), str) or not item["name"]:
            problems.must(rule, f"the name of {where} is {item.get('name')!r}")
        if not isinstance(item.get(VALUES[kind]), str):
            problems.must(rule, f"`{VALUES[kind]}` of {where} is not a string")
        if not isinstance(item.get("namespace"), str | None) or item.get("namespace") == "":
            problems.must(rule, f"the namespace of {where} is {item['namespace']!r}")
    return True


def check_status(item: Mapping[str, Json], where: str, rule: str, problems: Problems) -> None:
    """Check that a finished item is completed or incomplete; the status is required for messages and functions."""
    status = item.get("status")
    if status is None and item.get("type") in ("reasoning", "custom_tool_call"):
        return
    if status not in ("completed", "incomplete"):
        problems.must(rule, f"the status of {where} is {status!r}")


def check_part(part: Json, kinds: Sequence[Json], where: str, rule: str, problems: Problems) -> None:
    """Check a part of an item: its type is one of `kinds`, it has a text, and an output text has its lists."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in kinds:
        problems.must(rule, f"a part of {where} has type {kind!r}")
        return
    if not isinstance(part.get(text_key(kind)), str):
        problems.must(rule, f"`{text_key(kind)}` of a part of {where} is not a string")
    if kind == "output_text":
        if not isinstance(part.get("annotations"), list):
            problems.must(rule, f"`annotations` of a part of {where} is not a list")
        check_logprobs(part, f"a part of {where}", problems)


def text_key(kind: Json) -> str:
    """Return the key of the text in a part of this type."""
    return "refusal" if kind == "refusal" else "text"


def check_logprobs(fields: Mapping[str, Json], where: str, problems: Problems) -> None:
    """Check that `logprobs` is a list, even if it is empty (R13)."""
    if not isinstance(fields.get("logprobs"), list):
        problems.should("R13", f"`logprobs` of {where} is not a list")


# --- calls and the request --------------------------------------------------------------------------------------------


def check_calls(
    items: Sequence[Mapping[str, Json]], request: Mapping[str, Json] | None, problems: Problems, *, cut: bool
) -> None:
    """Check that ids are unique (R5), call ids well-formed (R10), and calls as the request allows and requires (R14).

    If `cut`, a required call may be missing.
    """
    unique([item["id"] for item in items if isinstance(item.get("id"), str)], "R5", problems)
    calls = [item for item in items if item.get("type") in CALLS]
    for call in calls:
        check_id(call.get("call_id"), "R10", problems)
    ids = [call["call_id"] for call in calls if isinstance(call.get("call_id"), str)]
    unique(ids, "R10", problems)
    if request is None:
        return
    for earlier in _input(request):
        if earlier.get("type") in CALLS and earlier.get("call_id") in ids:
            problems.must("R10", f"the call_id {earlier['call_id']!r} is already in the history")
    _check_request([_called(call) for call in calls], request, problems, cut=cut)


def _check_request(
    calls: Sequence[ResponsesCall], request: Mapping[str, Json], problems: Problems, *, cut: bool
) -> None:
    known = _offered(request)
    if known is None:  # the history is not known
        known = set(calls)
    allowed, demanded = _allowed(request.get("tool_choice"), known)
    for call in calls:
        if call not in known:
            problems.must("R14", f"{call} is not among the tools")
        elif call not in allowed:
            problems.must("R14", f"the tool choice does not allow {call}")
    if request.get("parallel_tool_calls") is False and len(calls) > 1:
        problems.must("R14", f"{len(calls)} calls where only one is allowed")
    if demanded and not calls and not cut:
        problems.must("R14", "the tool choice requires a call, but the reply has none")


def _input(request: Mapping[str, Json]) -> list[dict[str, Json]]:
    given = request.get("input")
    return [item for item in given if isinstance(item, dict)] if isinstance(given, list) else []


def _called(item: Mapping[str, Json]) -> ResponsesCall:
    if item.get("type") in TYPED:
        return ResponsesCall(None, None, custom=False, typed=TYPED[item["type"]])
    return ResponsesCall(item.get("namespace"), item.get("name"), custom=item.get("type") == "custom_tool_call")


def _offered(request: Mapping[str, Json]) -> set[ResponsesCall] | None:
    """Return the tools that the request offers or, without any, those that its history calls; None if that is
    unknown.
    """
    items = _input(request)
    tools = list(request.get("tools") or ())
    for item in items:
        if item.get("type") in ("additional_tools", "tool_search_output"):
            tools.extend(item.get("tools") or ())
    found: set[ResponsesCall] = set()
    for tool in tools:
        if tool.get("type") == "namespace":
            found.update(_tools(tool.get("tools") or (), tool["name"]))
        else:
            found.update(_tools((tool,), None))
    if found:
        return found
    if request.get("previous_response_id") or request.get("conversation"):
        return None
    return {_called(item) for item in items if item.get("type") in CALLS}


def _tools(tools: Iterable[Mapping[str, Json]], namespace: str | None) -> set[ResponsesCall]:
    """Return the tools that the client runs."""
    found: set[ResponsesCall] = set()
    for tool in tools:
        kind = tool.get("type", "function")
        if kind in ("function", "custom"):
            found.add(ResponsesCall(namespace, tool["name"], custom=kind == "custom"))
        elif typed(kind) is not None:
            found.add(ResponsesCall(None, None, custom=False, typed=typed(kind)))
    return found


def _allowed(choice: Json, known: set[ResponsesCall]) -> tuple[set[ResponsesCall], bool]:
    """Return the tools that a choice allows, and whether it requires a call."""
    if choice == "none":
        return set(), False
    if isinstance(choice, dict):
        if choice.get("type") == "allowed_tools":
            return {each for tool in choice["tools"] for each in _meant(tool, known)}, choice["mode"] == "required"
        if choice.get("type") in ("function", "custom", "namespace") or typed(choice.get("type")) is not None:
            return _meant(choice, known), True
    return known, choice in ("required", "any")


def _meant(choice: Mapping[str, Json], known: set[ResponsesCall]) -> set[ResponsesCall]:
    """Return the tools that the choice names."""
    kind, name, namespace = choice.get("type"), choice.get("name"), choice.get("namespace")
    if typed(kind) is not None:
        return {each for each in known if each.typed == typed(kind)}
    if kind == "namespace":
        return {each for each in known if each.namespace == name}
    return {each for each in known if name and each.name == name and namespace in (None, each.namespace)}
