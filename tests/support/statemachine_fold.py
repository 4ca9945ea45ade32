"""Folds of a parser's events, to compare results of differently split texts.

Adjacent pieces of the same kind are merged; calls keep their order among text, reasoning and discards. Two parsers
agree if their folds are equal: that is the meaning of "the same outcome" in every test of `statemachine`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, assert_never

from attrs import evolve, frozen

from statemachine import Parser
from statemachine.events import ArgumentsDelta, CallEnd, CallStart, Discarded, Event, ReasoningDelta, TextDelta


@frozen
class Text:
    """Visible text."""

    text: str


@frozen
class Reasoning:
    """Reasoning."""

    text: str


@frozen
class Discard:
    """Discarded text, and the reason."""

    text: str
    reason: str


@frozen
class FoldedCall:
    """A complete or truncated call."""

    name: str
    id: str | None
    format: str
    arguments: str = ""
    complete: bool | None = None
    """None without a `CallEnd`."""
    repairs: tuple[str, ...] = ()


Item = Text | Reasoning | Discard | FoldedCall


def fold(events: Iterable[Event]) -> list[Item]:
    """Return the outcome of a sequence of events."""
    items: list[Item] = []
    pieces: list[str] = []  # of the last item

    def goes_on(item: Item, *, same: bool) -> None:
        if not same:
            finish()
            items.append(item)

    def finish() -> None:
        if pieces:
            last, text = items[-1], "".join(pieces)
            items[-1] = evolve(last, **{"arguments" if isinstance(last, FoldedCall) else "text": text})
            pieces.clear()

    for event in events:
        last = items[-1] if items else None
        match event:
            case TextDelta(text=text):
                goes_on(Text(""), same=isinstance(last, Text))
                pieces.append(text)
            case ReasoningDelta(text=text):
                goes_on(Reasoning(""), same=isinstance(last, Reasoning))
                pieces.append(text)
            case Discarded(text=text, reason=reason):
                goes_on(Discard("", reason), same=isinstance(last, Discard) and last.reason == reason)
                pieces.append(text)
            case CallStart(name=name, id=id_, format=form):
                goes_on(FoldedCall(name, id_, form), same=False)
            case ArgumentsDelta(text=text):
                assert isinstance(last, FoldedCall), f"arguments outside a call: {text!r}"
                pieces.append(text)
            case CallEnd(complete=complete, repairs=repairs):
                assert isinstance(last, FoldedCall), "the end of a call that has not started"
                finish()
                items[-1] = evolve(last, arguments=items[-1].arguments, complete=complete, repairs=repairs)
            case _:
                assert_never(event)
    finish()
    return items


def text_of(items: Iterable[Item]) -> str:
    """Return the visible text of an outcome."""
    return "".join(item.text for item in items if isinstance(item, Text))


def calls_of(items: Iterable[Item]) -> list[FoldedCall]:
    """Return the calls of an outcome."""
    return [item for item in items if isinstance(item, FoldedCall)]


def pieces(text: str, size: int) -> Iterator[str]:
    """Split the text into pieces of `size` characters; 0 keeps it whole."""
    step = size or max(1, len(text))
    for start in range(0, len(text), step):
        yield text[start : start + step]


def events_of(cut: Iterable[str], tools: Any, reason: str | None = None, **options: Any) -> list[Event]:
    """Return the events of these pieces, including those of `close`."""
    parser = Parser(tools, **options)
    events: list[Event] = []
    for piece in cut:
        events += parser.feed(piece)
    return events + parser.close(reason)


def outcome(cut: Iterable[str], tools: Any, reason: str | None = None, **options: Any) -> list[Item]:
    """Return the outcome of these pieces."""
    return fold(events_of(cut, tools, reason, **options))


def cuts(text: str, places: Sequence[int]) -> list[str]:
    """Split the text at these places."""
    ends = [*sorted(set(places)), len(text)]
    return [text[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
