"""The rules for a complete reply of the Gemini API (GW1–GW5), for its errors (GE1), and those shared with streams.

Based on the types of google-genai 3.4.0 (`GenerateContentResponse`, `Candidate`, `Part`, `FunctionCall`,
`FinishReason`, `GenerateContentResponseUsageMetadata`) and @google/genai 3.1.0, and on what their chats consider a
valid reply: content with at least one part, and no empty parts.
"""

from collections.abc import Mapping
from typing import Any, Final

from support.validators.chat_complete import is_count, unique
from support.validators.framing import Headers, Problems, Violation, check_whole, lone_surrogates, strict_json

Json = Any  # a decoded JSON value

REASONS: Final = frozenset(
    {"STOP", "MAX_TOKENS", "SAFETY", "RECITATION", "LANGUAGE", "OTHER", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"}
    | {"MALFORMED_FUNCTION_CALL"}
)
_COUNTS: Final = ("promptTokenCount", "candidatesTokenCount", "totalTokenCount")
_PART: Final = frozenset({"text", "thought", "functionCall", "thoughtSignature"})
_CALL: Final = frozenset({"id", "name", "args"})


def validate_gemini_whole(
    data: bytes, request: Mapping[str, Json] | None = None, *, headers: Headers | None = None
) -> list[Violation]:
    """Return the violations of a complete reply. `request` is the body that it answers."""

    def check(body: dict[str, Json], problems: Problems) -> None:
        if "error" in body:
            problems.must("GW1", "a reply has an `error` key")
        ids: list[str] = []
        candidates = envelope(body, "GW1", "the body", problems)
        for candidate in candidates:
            parts(candidate, request, ids, "GW2", problems)
            check_reason(candidate, "GW3", problems)
        if [candidate.get("index") for candidate in candidates] != list(range(wanted(request))):
            problems.must("GW4", f"the candidates are not the {wanted(request)} requested ones, in order")
        unique(ids, "GW2", problems)
        check_usage(body.get("usageMetadata"), "GW5", problems)

    return check_whole(data, headers, "GW1", check)


def validate_gemini_error(data: bytes) -> list[Violation]:
    """Return the violations of an error body."""
    problems = Problems()
    try:
        body = strict_json(data)
    except ValueError as error:
        problems.must("GE1", f"not JSON: {error}")
        return problems.found
    check_error(body, "GE1", problems)
    return problems.found


# --- shared with streams ----------------------------------------------------------------------------------------------


def check_error(body: Json, rule: str, problems: Problems) -> None:
    """Check an error: it has a code, which is an HTTP status, a message and a status word."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict) or next(iter(body)) != "error":  # google-genai looks for `{"error":` in a stream
        problems.must(rule, "the first key is not `error`, or its value is not an object")
        return
    code = error.get("code")
    if not is_count(code) or not 400 <= code < 600:
        problems.must(rule, f"the code is {code!r}")
    for key in ("message", "status"):
        if not isinstance(error.get(key), str) or not error[key]:
            problems.must(rule, f"`error.{key}` is not a string")


def wanted(request: Mapping[str, Json] | None) -> int:
    """Return how many candidates were requested."""
    config = (request or {}).get("generationConfig") or {}
    return int(config.get("candidateCount") or 1)


def envelope(body: Mapping[str, Json], rule: str, where: str, problems: Problems) -> list[dict[str, Json]]:
    """Check the fields that every reply and every chunk has, and return its candidates."""
    if lone_surrogates(body):
        problems.must("F10", f"{where} contains an unpaired surrogate")
    for key in ("modelVersion", "responseId"):
        if not isinstance(body.get(key), str):
            problems.must(rule, f"`{key}` of {where} is not a string")
    found = body.get("candidates")
    if not isinstance(found, list) or not found or not all(isinstance(item, dict) for item in found):
        problems.must(rule, f"the candidates of {where} are not a list of objects, or empty")
        return []
    return found


def parts(
    candidate: Mapping[str, Json], request: Mapping[str, Json] | None, ids: list[str], rule: str, problems: Problems
) -> list[Json]:
    """Check and return the parts of a candidate; the ids of its calls are added to `ids`."""
    content = candidate.get("content")
    if not isinstance(content, dict) or content.get("role") != "model":
        problems.must(rule, "a candidate has no content of the role model")
        return []
    said = content.get("parts")
    if not isinstance(said, list) or not said:
        problems.must(rule, "the content has no part; chats would forget the turn")
        return []
    for part in said:
        if not isinstance(part, dict) or not part or not _PART.issuperset(part):
            problems.must(rule, f"a part is {part!r}")
        elif "functionCall" in part:
            _call(part["functionCall"], request, ids, rule, problems)
        elif not isinstance(part.get("text"), str):
            problems.must(rule, f"the text of a part is {part.get('text')!r}")
    return said


def _call(call: Json, request: Mapping[str, Json] | None, ids: list[str], rule: str, problems: Problems) -> None:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        problems.must(rule, f"a call has no name: {call!r}")
        return
    if not _CALL.issuperset(call):
        problems.must(rule, f"a call has fields that google-genai does not know: {sorted(call.keys() - _CALL)}")
    if not isinstance(call.get("args"), dict):
        problems.must(rule, f"the arguments of {call['name']!r} are not an object")
    if not isinstance(call.get("id"), str) or not call["id"]:
        problems.should(rule, f"the id of {call['name']!r} is {call.get('id')!r}")
    else:
        ids.append(call["id"])
    if request is not None and call["name"] not in _offered(request):
        problems.must(rule, f"{call['name']!r} was not offered")


def _offered(request: Mapping[str, Json]) -> set[str]:
    groups = (group.get("functionDeclarations") or () for group in request.get("tools") or ())
    names = {declared["name"] for group in groups for declared in group}
    said = (part for content in request.get("contents") or () for part in content["parts"])
    return names or {part["functionCall"]["name"] for part in said if "functionCall" in part}


def check_reason(candidate: Mapping[str, Json], rule: str, problems: Problems) -> None:
    """Check the finish reason of a candidate."""
    if candidate.get("finishReason") not in REASONS:
        problems.must(rule, f"the finish reason is {candidate.get('finishReason')!r}")


def check_usage(usage: Json, rule: str, problems: Problems) -> None:
    """Check usage: the counts are integers, and the total is their sum."""
    if not isinstance(usage, dict) or not all(is_count(usage.get(key)) for key in _COUNTS):
        problems.must(rule, f"the counts are {usage!r}")
        return
    total = usage["promptTokenCount"] + usage["candidatesTokenCount"] + usage.get("thoughtsTokenCount", 0)
    if usage["totalTokenCount"] != total:
        problems.should(rule, "the total is not the sum")
