"""The rules for a stream of the Ollama API (O1–O7).

ollama-python 0.6.3 reads `response.iter_lines()` and ollama-js 0.6.4 splits at LF; both parse each line as one document
and stop at the first one with an `error`. A blank line makes ollama-python raise an exception.
"""

from collections.abc import Mapping
from typing import Any

from support.validators.framing import Headers, Problems, Violation, content_type, reading, strict_json
from support.validators.ollama_complete import check_calls, check_end, check_error, envelope, message

Json = Any  # a decoded JSON value


def validate_ollama_stream(
    data: bytes, request: Mapping[str, Json] | None = None, *, headers: Headers | None = None
) -> list[Violation]:
    """Return the violations of a streamed reply. `request` is the body that it answers."""
    problems = Problems()
    if headers is not None:
        content_type(headers, "application/x-ndjson", problems)
    lines = _lines(data, problems)
    calls: list[Json] = []
    with reading("a value has an unexpected type", problems):
        for number, body in enumerate(lines):
            last = number == len(lines) - 1
            if "error" in body:
                check_error(body, "O6", problems)
                if not last:
                    problems.must("O6", "something follows an error")
                break
            _line(body, f"line {number}", calls, problems, last=last)
        check_calls(calls, request, "O4", problems)
    return problems.found


def _lines(data: bytes, problems: Problems) -> list[dict[str, Json]]:
    """Return the objects of the stream."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        problems.must("F1", f"not UTF-8 at byte {error.start}")
        text = data.decode("utf-8", "replace")
    if not text.endswith("\n"):
        problems.must("O1", "the last line is not closed")
    if "\r" in text:
        problems.must("O1", "a line contains CR")
    found: list[dict[str, Json]] = []
    for number, line in enumerate(text.removesuffix("\n").split("\n")):
        try:
            value = strict_json(line)
        except ValueError as error:
            problems.must("O2", f"line {number} is not valid JSON: {error}")
            continue
        if isinstance(value, dict):
            found.append(value)
        else:
            problems.must("O2", f"line {number} is not an object")
    return found


def _line(body: dict[str, Json], where: str, calls: list[Json], problems: Problems, *, last: bool) -> None:
    envelope(body, "O3", where, problems)
    said, made = message(body, "O3", where, problems)
    calls += made
    if body.get("done") is not last:
        problems.must("O5", f"`done` of {where} is {body.get('done')!r}")
    if last:
        check_end(body, "O7", problems)
        if said or made:
            problems.should("O5", "the last line has content")
    elif not said and not made:
        problems.should("O3", f"{where} has no content")
