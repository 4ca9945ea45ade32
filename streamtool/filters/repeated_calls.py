"""Comparison of a reply's calls with each other: calls that were sent twice, and calls that the model keeps repeating.

- An upstream may send a call as text and natively, and a model may write a call in its reasoning and again after it.
  Both are the same call, so only the first of them is delivered. Two equal calls from the same source are two calls.
- A model may write the same call, or the same sequence of calls, until its tokens run out. Equal calls may be intended,
  so the first repetitions are delivered; the reply ends at the one that completes the setting's number.

A call is withheld only while its name and the arguments so far equal those of such an earlier call. Whitespace, the
order of an object's members and types make no difference: `"1"` is `1`, `1.0` is `1`, and a string is the same with
whitespace around it.
"""

import re
from collections.abc import Iterator
from typing import Final, Literal

from attrs import define, field

from streamtool.core.json_value import Json
from streamtool.protocols.shared import wire

Source = Literal["text", "native", "reasoning"]
"""Where a call comes from: the text, the upstream's own calls, or the reasoning in the text."""
SOURCES: Final[tuple[Source, ...]] = ("text", "native", "reasoning")
_MAX_PERIOD: Final = 8
"""Maximum number of calls in a sequence that is recognized when the model repeats it."""
_MAX_TIMES: Final = 1000
"""Maximum number of repetitions to count. With a higher limit, the reply never ends because of them."""
_MAX_COMPARED: Final = 32
"""Maximum number of calls from other sources to compare a call with, beginning with the oldest."""
_LONGEST_SCALAR: Final = 64
"""Number of characters that a string may have where a number, `true`, `false` or `null` is expected."""
_token = re.compile(r"""[{}\[\]"]|[^\s{}\[\]",:]+""").search
_whole_characters = re.compile(
    r"(?:[^\\]+|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB]..\\u[0-9a-fA-F]{4})*+"
).match
"""Finds the part of a string that ends with a complete escape sequence, or with the second of two surrogates."""
_string_mark = re.compile(r'["\\]').search


@define(eq=False)
class DeliveredCall:
    """A complete call that the client has seen."""

    name: str
    arguments: str
    source: Source
    _value: Json = field(default=None, init=False)

    @property
    def value(self) -> Json:
        """The arguments as an object, or their text if they are not an object."""
        if self._value is None:
            value = _object(self.arguments)
            self._value = self.arguments if value is None else value
        return self._value

    def equals(self, other: "DeliveredCall") -> bool:
        """Return whether both are the same call."""
        return self.name == other.name and is_same(self.value, other.value)


class CallHistory:
    """The calls of one reply. The reply ends at the `limit`th repetition of the same calls; below 2, never."""

    __slots__ = ("_last", "_limit", "_unmatched")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._last: list[DeliveredCall] = []
        """The last calls, as many as repetitions may consist of. An empty deque would take 700 bytes."""
        self._unmatched: dict[tuple[str, Source], list[DeliveredCall]] = {}
        """Calls whose counterpart from another source has not been found, by name and source."""

    def add(self, call: DeliveredCall) -> None:
        """Add a call that has been delivered."""
        self._last.append(call)
        most = min(max(0, self._limit - 1), _MAX_TIMES) * _MAX_PERIOD
        del self._last[: max(0, len(self._last) - most)]
        self._unmatched.setdefault((call.name, call.source), []).append(call)

    def move_to_reasoning(self) -> None:
        """Note that the calls in the text so far were part of reasoning."""
        for name, source in [key for key in self._unmatched if key[1] == "text"]:
            calls = self._unmatched.pop((name, source))
            for call in calls:
                call.source = "reasoning"
            self._unmatched.setdefault((name, "reasoning"), []).extend(calls)

    def match(self, call: DeliveredCall) -> None:
        """Note that the counterpart of this call has been found."""
        self._unmatched[call.name, call.source].remove(call)

    def suspects(self, name: str, source: Source) -> "list[Suspect]":
        """Return comparisons with the earlier calls that a call with this name would repeat if its arguments were
        equal.
        """
        sent = [call for other in SOURCES if other != source for call in self._unmatched.get((name, other), ())]
        found = [Suspect(call, twice=True) for call in sent[:_MAX_COMPARED]]
        found += [Suspect(call, twice=False) for call in self._continued(name)]
        return found

    def _continued(self, name: str) -> Iterator[DeliveredCall]:
        """Yield the calls with this name that would begin the last repetition of the calls before them."""
        calls, times = self._last, self._limit - 1
        for period in range(1, min(_MAX_PERIOD, len(calls) // times) + 1) if times > 0 else ():
            block = calls[-times * period :]
            if block[0].name == name and all(map(DeliveredCall.equals, block, block[period:])):
                yield block[0]


class Suspect:
    """A comparison of a call, as its arguments arrive, with an earlier call."""

    __slots__ = ("_matcher", "earlier", "twice")

    def __init__(self, earlier: DeliveredCall, *, twice: bool) -> None:
        self.earlier = earlier
        self.twice = twice
        """Whether one call came from two sources, rather than the model repeating it."""
        self._matcher = ArgumentsMatcher(earlier.arguments)

    def feed(self, text: str) -> bool:
        """Process a piece of the arguments, and return whether they may still equal those of the earlier call."""
        return self._matcher.feed(text)


@define(eq=False)
class _Container:
    """An object or a list of the earlier arguments whose counterpart is being read."""

    value: "dict[str, Json] | list[Json]"
    seen: set[str] = field(factory=set)
    """The keys that have been read."""
    key: str | None = None
    """The key whose value follows, or None."""
    index: int = 0

    @property
    def finished(self) -> bool:
        """Whether all members have been read."""
        return (len(self.seen) if isinstance(self.value, dict) else self.index) == len(self.value)


class ArgumentsMatcher:
    """An incremental comparison of arguments, which are strict JSON, with earlier ones. Its cost is linear.

    Earlier arguments that are not an object (the raw text of a custom tool) are compared as text.
    """

    __slots__ = (
        "_differs",
        "_escape",
        "_escaped",
        "_expected",
        "_limit",
        "_other",
        "_position",
        "_raw",
        "_reads_key",
        "_root",
        "_scalar",
        "_stack",
        "_string",
    )

    def __init__(self, earlier: str) -> None:
        value = _object(earlier)
        self._raw = earlier if value is None else None
        self._root: Json = value
        self._stack: list[_Container] = []
        self._differs = False
        self._scalar = ""
        """The beginning of a number, `true`, `false` or `null`."""
        self._string: list[str] | None = None
        """The pieces of the open string if it is a key or another type is expected, [] for another open string, or None
        if no string is open.
        """
        self._escape = ""
        """The incomplete escape sequence at the end of the open string."""
        self._escaped = False
        """Whether the last character of the open string is a backslash that escapes the next one."""
        self._expected: str | None = None
        """The expected string without whitespace around it, or None if the open string is a key or another type is
        expected.
        """
        self._reads_key = False
        """Whether the open string is the key of an object."""
        self._other: Json = None
        """The expected value of another type."""
        self._limit = 2 * len(earlier) + _LONGEST_SCALAR
        """Maximum length of a string where another type is expected."""
        self._position = 0
        """Number of characters in `_expected`, or in `_raw`, that have been found."""

    def feed(self, text: str) -> bool:
        """Process a piece of the arguments, and return whether they may still equal the earlier ones."""
        if self._raw is not None:
            self._differs = self._differs or not self._raw.startswith(text, self._position)
            self._position += len(text)
            return not self._differs
        position = 0
        while position < len(text) and not self._differs:
            if self._string is not None:
                position = self._read_string(text, position)
                continue
            found = _token(text, position)
            begin = len(text) if found is None else found.start()
            if self._scalar and (begin > position or (found is not None and found[0] in '{}[]"')):
                self._end_scalar()
            if found is None or self._differs:
                break
            position = found.end()
            self._read_token(found[0])
        return not self._differs

    def _read_token(self, mark: str) -> None:
        match mark:
            case '"':
                self._open_string()
            case "{" | "[":
                value = self._next()
                if isinstance(value, str) and value.lstrip().startswith(mark):
                    value = _decoded(value)
                if isinstance(value, dict if mark == "{" else list):
                    self._stack.append(_Container(value))
                else:
                    self._differs = True
            case "}" | "]":
                self._differs = not self._stack or not self._stack.pop().finished
            case _:
                self._scalar += mark

    def _next(self) -> Json:
        """Return the earlier value in the position of the value that begins now, and move on."""
        if not self._stack:
            value, self._root = self._root, None
            return value
        top = self._stack[-1]
        if isinstance(top.value, dict):
            key, top.key = top.key, None
            return top.value.get(key or "")
        top.index += 1
        if top.index > len(top.value):
            self._differs = True
            return None
        return top.value[top.index - 1]

    def _end_scalar(self) -> None:
        text, self._scalar = self._scalar, ""
        expected = self._next()
        self._differs = self._differs or not is_same(_decoded(text), expected)

    def _open_string(self) -> None:
        self._string, self._escape, self._position = [], "", 0
        top = self._stack[-1] if self._stack else None
        self._reads_key = top is not None and isinstance(top.value, dict) and top.key is None
        if self._reads_key:
            self._expected = None
            return
        value = self._next()
        self._expected, self._other = (value.strip(), None) if isinstance(value, str) else (None, value)

    def _read_string(self, text: str, begin: int) -> int:
        """Read the open string up to its end or the end of the text, and return the position reached."""
        assert self._string is not None  # noqa: S101  checked by the caller
        position = begin
        if self._escaped:
            self._escaped = False
            position += 1
        while (found := _string_mark(text, position)) is not None:
            if found[0] == '"':
                self._compare(text[begin : found.start()])
                self._end_string(self._string)
                return found.end()
            position = found.end() + 1
        self._escaped = position > len(text)
        self._compare(text[begin:])
        return len(text)

    def _compare(self, piece: str) -> None:
        """Compare a piece of the open string, without an incomplete escape sequence at its end."""
        piece = self._escape + piece
        complete = _whole_characters(piece)
        end = 0 if complete is None else complete.end()
        self._escape = piece[end:]
        piece = str(_decoded(f'"{piece[:end]}"'))
        if self._expected is None:
            assert self._string is not None  # noqa: S101  a string is open
            self._string.append(piece)
            self._position += len(piece)
            self._differs = not self._reads_key and self._position > self._limit
        else:
            piece = piece if self._position else piece.lstrip()
            room = len(self._expected) - self._position
            same = self._expected.startswith(piece[:room], self._position)
            self._differs = not same or not (len(piece) <= room or piece[room:].isspace())
            self._position = min(self._position + len(piece), len(self._expected))

    def _end_string(self, pieces: list[str]) -> None:
        self._string = None
        if self._expected is not None:
            self._differs = self._differs or self._escape != "" or self._position != len(self._expected)
            return
        if not self._reads_key:
            self._differs = self._differs or not is_same("".join(pieces), self._other)
            return
        top, key = self._stack[-1], "".join(pieces)
        if key in top.value and key not in top.seen:
            top.seen.add(key)
            top.key = key
        else:
            self._differs = True


def is_same(one: Json, other: Json) -> bool:
    """Return whether two values differ at most in types, and in whitespace around strings."""
    if isinstance(other, str) and not isinstance(one, str):
        one, other = other, one
    match one:
        case str():
            if isinstance(other, str):
                return one.strip() == other.strip()
            value = _decoded(one.strip())
            return not isinstance(value, str) and is_same(value, other)
        case dict():
            same_keys = isinstance(other, dict) and one.keys() == other.keys()
            return (
                same_keys and isinstance(other, dict) and all(is_same(value, other[key]) for key, value in one.items())
            )
        case list():
            return isinstance(other, list) and len(one) == len(other) and all(map(is_same, one, other))
        case _:
            return isinstance(one, bool) == isinstance(other, bool) and one == other


def _object(arguments: str) -> "dict[str, Json] | None":
    """Return the object that the arguments describe, or None if they are not an object. No arguments are an empty
    object.
    """
    if not arguments.strip():
        return {}
    value = _decoded(arguments)
    return value if isinstance(value, dict) else None


def _decoded(text: str) -> Json:
    """Return the value of strict JSON, or other text unchanged."""
    try:
        value: Json = wire.decode(text)
    except (*wire.UNREADABLE, UnicodeEncodeError):
        return text
    return value
