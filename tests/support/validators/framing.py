"""Shared by all validators: collecting violations, and the framing of an event stream (rules F1–F11).

The parser here is deliberately strict and simple, and shares nothing with `streamtool.core.sse`: a validator built on our
own reader would tolerate the mistakes of our own writer.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NoReturn

from attrs import Factory, define, frozen

Json = Any  # a decoded JSON value
Severity = Literal["MUST", "SHOULD"]
Headers = Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]]

UNREPAIRABLE = '"]]]]"]]]]:'
"""The end of an incomplete call's arguments: nothing can close what precedes it."""
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBER_BEGUN = re.compile(r"-?((0|[1-9][0-9]*)((\.[0-9]+)?[eE][+-]?[0-9]*|(\.[0-9]*)?))?")
_STRING = re.compile(r'"([^"\\\x00-\x1f]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))*+"')
_STRING_BEGUN = re.compile(r'"([^"\\\x00-\x1f]|\\(["\\/bfnrt]|u[0-9a-fA-F]{4}))*+(\\(u[0-9a-fA-F]{0,3})?)?')


@frozen
class Violation:
    """A violation of a rule."""

    rule: str
    """Identifier of the rule, such as `C7`."""
    severity: Severity
    """MUST: a client in use breaks. SHOULD: stricter clients may break."""
    message: str

    def __str__(self) -> str:
        return f"{self.rule} {self.severity}: {self.message}"


@define
class Problems:
    """A collector of violations."""

    found: list[Violation] = Factory(list)

    def must(self, rule: str, message: str) -> None:
        """Add a violation that breaks a client in use."""
        self.found.append(Violation(rule, "MUST", message))

    def should(self, rule: str, message: str) -> None:
        """Add a violation that may break a client."""
        self.found.append(Violation(rule, "SHOULD", message))


@frozen
class SseFrame:
    """One event of a stream: its name, and its data lines joined with LF."""

    number: int
    name: str | None
    data: str

    def __str__(self) -> str:
        shown = self.data if len(self.data) <= 120 else self.data[:120] + "…"
        return f"event {self.number} ({shown})"


def assert_valid(problems: Iterable[Violation], *, strict: bool = False) -> None:
    """Raise an AssertionError that lists the violations, if any of them is a MUST or, with `strict`, if there are
    any.
    """
    counted = [problem for problem in problems if strict or problem.severity == "MUST"]
    if counted:
        raise AssertionError("\n".join(map(str, counted)))


def frames(data: bytes, headers: Headers | None, problems: Problems) -> list[SseFrame]:
    """Return the events of a stream, checked against the framing rules."""
    if headers is not None:
        content_type(headers, "text/event-stream", problems)
    text = _decoded(data, problems)
    if "\r" in text:
        bare = text.replace("\r\n", "")
        if "\r" in bare or "\n" in bare:
            problems.must("F3", "line breaks are mixed, or bare CR")
        else:
            problems.should("F3", "line breaks are CRLF")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text and not text.endswith("\n\n"):
        problems.must("F4", "the last event is not closed by a blank line")
    found: list[SseFrame] = []
    block: list[str] = []
    for line in [*text.split("\n"), ""]:
        if line:
            block.append(line)
            continue
        frame = _frame(block, len(found), problems)
        if frame is not None:
            found.append(frame)
        block = []
    if not found:
        problems.must("F6", "the stream has no event")
    return found


def content_type(headers: Headers, wanted: str, problems: Problems) -> None:
    """Check the content type of a response (F11)."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    named = {_latin(name).lower(): _latin(value) for name, value in pairs}
    kind = named.get("content-type", "")
    if kind.partition(";")[0].strip().lower() != wanted:
        problems.must("F11", f"the content type is {kind!r}, not {wanted}")


def _latin(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _decoded(data: bytes, problems: Problems) -> str:
    if data.startswith(b"\xef\xbb\xbf"):
        problems.must("F2", "the stream begins with a BOM")
        data = data[3:]
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        problems.must("F1", f"not UTF-8 at byte {error.start}")
        text = data.decode("utf-8", "replace")
    else:
        if "\ufffd" in text:
            problems.should("F10", "the stream contains U+FFFD")
    return text


def _frame(lines: list[str], number: int, problems: Problems) -> SseFrame | None:
    """Return the event of a block of lines; None if the block consists of comments."""
    name: str | None = None
    data: list[str] = []
    fields = 0
    for line in lines:
        if line.startswith(":"):
            continue
        fields += 1
        field, colon, value = line.partition(":")
        if colon and not value.startswith(" "):
            problems.should("F8", f"no space after the colon of `{field}` in event {number}")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            if data:
                problems.should("F7", f"`event` after `data` in event {number}")
            name = value
        elif field in ("id", "retry"):
            problems.should("F9", f"`{field}` in event {number}")
        else:
            problems.must("F9", f"unknown field {field!r} in event {number}")
    if not fields:
        return None
    if not data:
        problems.must("F6", f"event {number} has no data")
    if len(data) > 1:
        problems.should("F5", f"event {number} has {len(data)} data lines")
    return SseFrame(number, name, "\n".join(data))


def event(frame: SseFrame, rule: str, problems: Problems) -> dict[str, Json] | None:
    """Return the JSON object of an event in a protocol that names events by their `type`; None if it cannot be read."""
    try:
        value = strict_json(frame.data)
    except ValueError as error:
        problems.must(rule, f"{frame} is not valid JSON: {error}")
        return None
    if not isinstance(value, dict):
        problems.must(rule, f"{frame} is not an object")
        return None
    if lone_surrogates(value):
        problems.must("F10", f"{frame} contains an unpaired surrogate")
    if frame.name != value.get("type"):
        problems.must(rule, f"{frame} is named {frame.name!r}, not by its type")
    return value


def check_whole(
    data: bytes, headers: Headers | None, rule: str, check: Callable[[dict[str, Json], Problems], None]
) -> list[Violation]:
    """Return the violations of a complete reply: it must be a JSON object (`rule`) that `check` accepts."""
    problems = Problems()
    if headers is not None:
        content_type(headers, "application/json", problems)
    try:
        body = strict_json(data)
    except ValueError as error:
        problems.must(rule, f"not JSON: {error}")
        return problems.found
    if lone_surrogates(body):
        problems.must("F10", "a string contains an unpaired surrogate")
    if not isinstance(body, dict):
        problems.must(rule, "the body is not an object")
        return problems.found
    with reading("a value has an unexpected type", problems):
        check(body, problems)
    return problems.found


@contextmanager
def reading(broken: str, problems: Problems) -> Iterator[None]:
    """Report errors in the block as a violation with the message `broken`: the values read in it may have any type."""
    try:
        yield
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        problems.must("X1", f"{broken}: {error!r}")


# --- JSON -------------------------------------------------------------------------------------------------------------


def strict_json(text: str | bytes) -> Json:
    """Return the value of `text`. Raises ValueError for anything that RFC 8259 does not allow, including NaN and
    Infinity.
    """

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is not valid JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def lone_surrogates(value: Json) -> bool:
    """Return whether a string in `value` contains an unpaired surrogate."""
    pending = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, str):
            if any("\ud800" <= character <= "\udfff" for character in node):
                return True
        elif isinstance(node, dict):
            pending.extend(node)
            pending.extend(node.values())
        elif isinstance(node, list):
            pending.extend(node)
    return False


def without_end(text: str) -> tuple[str, bool]:
    """Return the arguments without the end that makes those of an incomplete call unreadable, and whether they had
    it.
    """
    return text.removesuffix(UNREPAIRABLE), text.endswith(UNREPAIRABLE)


def check_object(text: str, what: str, rule: str, problems: Problems, *, cut: bool) -> None:
    """Check that `text` is a JSON object or, if it was `cut`, the beginning of one."""
    try:
        if isinstance(strict_json(text), dict):
            return
    except ValueError:
        pass
    text, ended = without_end(text)
    if not (cut or ended):
        problems.must(rule, f"{what} are not a JSON object: {text[:80]!r}")
    elif not is_object_prefix(text):
        problems.must(rule, f"{what} do not begin a JSON object: {text[:80]!r}")


def is_object_prefix(text: str) -> bool:
    """Return whether `text` can be completed to one JSON object. Strict: no trailing commas, no single quotes."""
    stack: list[str] = []  # open brackets
    state = "start"  # the expected token
    position, end = 0, len(text)
    while True:
        while position < end and text[position] in " \t\n\r":
            position += 1
        if position == end:
            return True
        character = text[position]
        if state == "end":
            return False
        if state == "start":
            if character != "{":
                return False
            stack.append("}")
            state, position = "key or close", position + 1
        elif state in ("key", "key or close"):
            if character == "}" and state == "key or close":
                stack.pop()
                state, position = ("after" if stack else "end"), position + 1
                continue
            found = _STRING.match(text, position)
            if found is None:
                begun = _STRING_BEGUN.match(text, position)
                return begun is not None and begun.end() == end
            state, position = "colon", found.end()
        elif state == "colon":
            if character != ":":
                return False
            state, position = "value", position + 1
        elif state in ("value", "value or close"):
            if character == "]" and state == "value or close":
                stack.pop()
                state, position = "after", position + 1
            elif character in "{[":
                stack.append("}" if character == "{" else "]")
                state = "key or close" if character == "{" else "value or close"
                position += 1
            else:
                after = _scalar(text, position)
                if after is None:
                    return False
                if after == end:
                    return True
                state, position = "after", after
        elif character == ",":
            state, position = ("key" if stack[-1] == "}" else "value"), position + 1
        elif character == stack[-1]:
            stack.pop()
            state, position = ("after" if stack else "end"), position + 1
        else:
            return False


def _scalar(text: str, position: int) -> int | None:
    """Return where the string, number or word at `position` ends; None if there cannot be one."""
    for word in ("true", "false", "null"):
        if text.startswith(word, position):
            return position + len(word)
        if word.startswith(text[position:]):
            return len(text)
    for whole, begun in ((_STRING, _STRING_BEGUN), (_NUMBER, _NUMBER_BEGUN)):
        started = begun.match(text, position)
        if started is not None and started.end() == len(text):
            return len(text)
        found = whole.match(text, position)
        if found is not None:
            return found.end()
    return None
