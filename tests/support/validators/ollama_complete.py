"""The rules for a complete reply of the Ollama API (OW1–OW5), for its errors (OE1), and those shared with streams.

Based on the response types of ollama-python 0.6.3 (`ChatResponse`, `GenerateResponse`) and ollama-js 0.6.4, and on how
both process a line.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from support.validators.chat_complete import is_count
from support.validators.framing import Headers, Problems, Violation, check_whole, lone_surrogates, strict_json

Json = Any  # a decoded JSON value

REASONS: Final = ("stop", "length", "load", "unload")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_COUNTS: Final = ("prompt_eval_count", "eval_count")
_DURATIONS: Final = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


def validate_ollama_whole(
    data: bytes, request: Mapping[str, Json] | None = None, *, headers: Headers | None = None
) -> list[Violation]:
    """Return the violations of a complete reply. `request` is the body that it answers."""

    def check(body: dict[str, Json], problems: Problems) -> None:
        if "error" in body:
            problems.must("OW1", "a reply has an `error` key")
        envelope(body, "OW1", "the body", problems)
        if body.get("done") is not True:
            problems.must("OW1", "a complete reply is not done")
        _, calls = message(body, "OW2", "the body", problems)
        check_calls(calls, request, "OW3", problems)
        check_end(body, "OW4", problems)

    return check_whole(data, headers, "OW1", check)


def validate_ollama_error(data: bytes) -> list[Violation]:
    """Return the violations of an error body."""
    problems = Problems()
    try:
        body = strict_json(data)
    except ValueError as error:
        problems.must("OE1", f"not JSON: {error}")
        return problems.found
    check_error(body, "OE1", problems)
    return problems.found


# --- shared with streams ----------------------------------------------------------------------------------------------


def check_error(body: Json, rule: str, problems: Problems) -> None:
    """Check an error: an object with one string, which clients show."""
    if not isinstance(body, dict) or not isinstance(body.get("error"), str) or not body["error"]:
        problems.must(rule, "`error` is not a non-empty string")
    elif "done" in body or "message" in body:
        problems.must(rule, "an error is also a reply")


def envelope(body: Mapping[str, Json], rule: str, where: str, problems: Problems) -> None:
    """Check the fields that every line has."""
    if lone_surrogates(body):
        problems.must("F10", f"{where} contains an unpaired surrogate")
    if not isinstance(body.get("model"), str):
        problems.must(rule, f"{where} has no model")
    created = body.get("created_at")
    if not isinstance(created, str) or not _TIME.fullmatch(created):
        problems.must(rule, f"the time of {where} is {created!r}, not an RFC 3339 time")
    if not isinstance(body.get("done"), bool):
        problems.must(rule, f"`done` of {where} is not a boolean")


def message(body: Mapping[str, Json], rule: str, where: str, problems: Problems) -> tuple[str, list[Json]]:
    """Check the message of a line; return its text, including reasoning, and its calls."""
    if "response" in body:
        said: Mapping[str, Json] = {"role": "assistant", "content": body["response"], **body}
    else:
        found = body.get("message")
        if not isinstance(found, dict):
            problems.must(rule, f"{where} has no message")
            return "", []
        said = found
    if said.get("role") != "assistant":
        problems.must(rule, f"the role of {where} is {said.get('role')!r}")
    if not isinstance(said.get("content"), str):
        problems.must(rule, f"the content of {where} is not a string")
    thinking = said.get("thinking", "")
    if not isinstance(thinking, str):
        problems.must(rule, f"the thinking of {where} is not a string")
    calls = said.get("tool_calls", [])
    if not isinstance(calls, list) or ("tool_calls" in said and not calls):
        problems.must(rule, f"`tool_calls` of {where} is not a list, or is empty instead of absent")
    return f"{thinking}{said.get('content')}", list(calls)


def check_calls(calls: Sequence[Json], request: Mapping[str, Json] | None, rule: str, problems: Problems) -> None:
    """Check that each call has an offered name and an object of arguments, that indexes count up, and that ids
    differ.
    """
    ids: list[str] = []
    for number, call in enumerate(calls):
        function = call.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            problems.must(rule, f"call {number} has no name")
            continue
        if not isinstance(function.get("arguments"), dict):
            problems.must(rule, f"the arguments of call {number} are not an object")
        if function.get("index", number) != number:
            problems.should(rule, f"call {number} has the index {function['index']!r}")
        if "id" in call:
            ids.append(call["id"])
            if not isinstance(call["id"], str) or not call["id"]:
                problems.must(rule, f"the id of call {number} is {call['id']!r}")
        if request is not None and function["name"] not in _offered(request):
            problems.must(rule, f"{function['name']!r} was not offered")
    if len(set(map(str, ids))) != len(ids):
        problems.must(rule, "an id occurs more than once")


def _offered(request: Mapping[str, Json]) -> set[str]:
    names = {tool["function"]["name"] for tool in request.get("tools") or ()}
    said = (call for message in request.get("messages") or () for call in message.get("tool_calls") or ())
    return names or {call["function"]["name"] for call in said}


def check_end(body: Mapping[str, Json], rule: str, problems: Problems) -> None:
    """Check the reason and the counts of the last object."""
    if body.get("done_reason") not in REASONS:
        problems.must(rule, f"the reason is {body.get('done_reason')!r}")
    for key in _COUNTS:
        if not is_count(body.get(key)):
            problems.must(rule, f"`{key}` is {body.get(key)!r}")
    for key in _DURATIONS:
        if key in body and not is_count(body[key]):
            problems.must(rule, f"`{key}` is {body[key]!r}")
