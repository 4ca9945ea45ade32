"""Checks a format, for distributions that add one: the laws that every format in the table obeys."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from statemachine import (
    FORMATS,
    ArgumentsDelta,
    Call,
    CallEnd,
    CallStart,
    Discarded,
    Event,
    Format,
    Parser,
    ReasoningDelta,
    TextDelta,
    write,
)
from statemachine.formats import DEFAULT, rivals_of

_PROPERTIES: Final = {
    "text": {"type": "string"},
    "whole": {"type": "integer"},
    "number": {"type": "number"},
    "flag": {"type": "boolean"},
    "nothing": {"type": "null"},
    "items": {"type": "array"},
    "object": {"type": "object"},
}
_TOOLS: Final = {name: {"type": "object", "properties": _PROPERTIES} for name in ("first_tool", "other_tool")}
_EVERY_TYPE: Final = {
    "text": "Zürich, 東京 🌦",
    "whole": 3,
    "number": -0.5,
    "flag": True,
    "nothing": None,
    "items": [1, "a", {"b": []}],
    "object": {"c": {"d": "e"}},
}
_SPLITS: Final = 400
"""Maximum number of splits of a reply in two."""

ReadReply = tuple[str, tuple[tuple[str, str, bool], ...]]
"""The visible text, and the name, the arguments and the completeness of each call."""


def check_format(form: Format, *, known: Iterable[str] = DEFAULT) -> None:
    """Check that a format's calls are found, whole and in pieces, alone and together with the `known` formats.

    Each call that `write` makes must be read back, however the text is split; text before and after calls, and text
    that contains no call, must be delivered unchanged; a call that is cut off must not be complete. Raises
    AssertionError, which names the law and the text.
    """
    together = [name for name in known if name not in rivals_of(form) and name != form.name]
    one: str | Format = form.name if FORMATS.get(form.name) == form else form
    sets: tuple[Sequence[str | Format], ...] = ([one], [*together, one])
    for formats in sets:
        for title, text, calls in _replies(form):
            for cut in _cuts(text):
                visible, found = _outcome(cut, formats)
                said = [(call.name, json.loads(call.arguments)) for call in calls]
                read = [(name, json.loads(arguments)) for name, arguments, complete in found if complete]
                _require(read == said, f"{title}: expected {said}, found {found} in {cut!r}")
                _require(len(found) == len(said), f"{title}: an incomplete call in {cut!r}")
                _require(visible.strip() == "", f"{title}: text {visible!r} remains of {cut!r}")
        _check_text(form, formats)
        _check_unfinished(form, formats)


def _replies(form: Format) -> Iterator[tuple[str, str, Sequence[Call]]]:
    """Yield a title, a reply, and its calls."""
    one = Call("first_tool", json.dumps(_EVERY_TYPE, ensure_ascii=False))
    other = Call("other_tool", json.dumps({"text": "b", "whole": 0}))
    listed = {
        "one call": [other],
        "every JSON type": [one],
        "no arguments": [Call("first_tool", "{}")],
        "a long value": [Call("first_tool", json.dumps({"text": "word " * 2000 + "end"}))],
        "escapes": [Call("first_tool", json.dumps({"text": 'a "quoted" \\ line\n\tand a tab'}))],
    }
    for title, calls in listed.items():
        yield title, write(calls, form), calls
    yield "several calls", write([other, one], form), [other, one]


def _check_text(form: Format, formats: Sequence[str | Format]) -> None:
    call = write([Call("other_tool", '{"text": "b"}')], form)
    for text in ("Nothing is called here.", "A < B, [1], {2} and `code`."):
        for cut in _cuts(text):
            _require(_outcome(cut, formats) == (text, ()), f"text without a call: {cut!r}")
    visible, found = _outcome([f"Let me look.\n{call}"], formats)
    if len(found) == 1:  # not for formats whose calls are only at the start of a reply
        _require(visible.strip() == "Let me look.", f"text before a call: {visible!r}")


def _check_unfinished(form: Format, formats: Sequence[str | Format]) -> None:
    text = write([Call("other_tool", '{"text": "the value ends here"}')], form)
    at = text.index("value")
    _, found = _outcome([text[:at]], formats)
    _require(not any(complete for _, _, complete in found), f"a call that is cut off is complete: {text[:at]!r}")


def _require(holds: bool, law: str) -> None:
    if not holds:
        raise AssertionError(law)


def _cuts(text: str) -> Iterator[Sequence[str]]:
    """Yield the text whole, in characters, and split in two at many places."""
    yield [text]
    yield list(text)
    step = len(text) // _SPLITS + 1
    yield from ([text[:at], text[at:]] for at in range(1, len(text), step))


def _outcome(cut: Iterable[str], formats: Sequence[str | Format]) -> ReadReply:
    parser = Parser(_TOOLS, formats=formats)
    events: list[Event] = [event for piece in cut for event in parser.feed(piece)]
    events += parser.close()
    visible: list[str] = []
    calls: list[tuple[str, str, bool]] = []
    for event in events:
        match event:
            case TextDelta(text=text):
                visible.append(text)
            case CallStart(name=name):
                calls.append((name, "", False))
            case ArgumentsDelta(text=text):
                name, before, _ = calls[-1]
                calls[-1] = (name, before + text, False)
            case CallEnd(complete=complete):
                name, before, _ = calls[-1]
                calls[-1] = (name, before, complete)
            case Discarded(text=text):
                visible.append(text)
            case ReasoningDelta():
                pass
    return "".join(visible), tuple(calls)
