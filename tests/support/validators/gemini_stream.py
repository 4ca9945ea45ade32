"""The rules for a stream of the Gemini API (G1–G6): an event stream (`alt=sse`) or an array.

google-genai 3.4.0 and @google/genai 3.1.0 request events. They accept every line that begins with `data: `, join those
of an event, and read an error from a chunk that begins with `{"error":`.
"""

from collections.abc import Mapping
from typing import Any

from support.validators.chat_complete import unique
from support.validators.framing import Headers, Problems, Violation, content_type, frames, reading, strict_json
from support.validators.gemini_complete import check_error, check_reason, check_usage, envelope, parts, wanted

Json = Any  # a decoded JSON value


def validate_gemini_stream(
    data: bytes, request: Mapping[str, Json] | None = None, *, headers: Headers | None = None
) -> list[Violation]:
    """Return the violations of a streamed reply. `request` is the body that it answers."""
    problems = Problems()
    chunks = _elements(data, headers, problems) if data[:1] == b"[" else _events(data, headers, problems)
    ended: set[Json] = set()
    ids: list[str] = []
    with reading("a value has an unexpected type", problems):
        for number, chunk in enumerate(chunks):
            last = number == len(chunks) - 1
            if "error" in chunk:
                check_error(chunk, "G5", problems)
                if not last:
                    problems.must("G5", "something follows an error")
                return problems.found
            candidates = envelope(chunk, "G2", f"chunk {number}", problems)
            ids += _chunk(candidates, request, ended, problems)
            if last:
                check_usage(chunk.get("usageMetadata"), "G6", problems)
        if ended != set(range(wanted(request))):
            problems.must("G4", f"the candidates {sorted(ended)} have ended, of {wanted(request)}")
    unique(ids, "G3", problems)
    return problems.found


def _events(data: bytes, headers: Headers | None, problems: Problems) -> list[dict[str, Json]]:
    found: list[dict[str, Json]] = []
    data, bare, error = data.rpartition(b'{"error":') if not data.endswith(b"\n\n") else (data, b"", b"")
    if bare and data[-2:] not in (b"", b"\n\n"):
        problems.must("G5", "a bare error is part of an event")
    if data.startswith(b":") or b"\n:" in data:
        problems.must("G1", "there is a comment, which google-genai parses as JSON")
    for frame in frames(data, headers, problems) if data or not bare else ():
        if frame.name is not None:
            problems.must("G1", f"{frame} has a name")
        try:
            value = strict_json(frame.data)
        except ValueError as error:
            problems.must("G1", f"{frame} is not valid JSON: {error}")
            continue
        if isinstance(value, dict):
            found.append(value)
        else:
            problems.must("G1", f"{frame} is not an object")
    if bare:
        found.append(strict_json((bare + error).decode()))
    return found


def _elements(data: bytes, headers: Headers | None, problems: Problems) -> list[dict[str, Json]]:
    if headers is not None:
        content_type(headers, "application/json", problems)
    try:
        value = strict_json(data)
    except ValueError as error:
        problems.must("G1", f"not JSON: {error}")
        return []
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        problems.must("G1", "the reply is not an array of objects, or is empty")
        return []
    return value


def _chunk(
    candidates: list[dict[str, Json]], request: Mapping[str, Json] | None, ended: set[Json], problems: Problems
) -> list[str]:
    """Check the candidates of one chunk, and return the ids of their calls."""
    ids: list[str] = []
    for candidate in candidates:
        index = candidate.get("index")
        if index in ended:
            problems.must("G4", f"candidate {index} continues after its end")
        parts(candidate, request, ids, "G3", problems)
        if "finishReason" in candidate:
            check_reason(candidate, "G4", problems)
            ended.add(index)
    return ids
