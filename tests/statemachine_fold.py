"""What a reply came to: the events of a parser, folded, so that two ways of cutting the same text can be compared.

Adjacent pieces of the same kind are one; calls keep their order among text, reasoning and discards. Two parsers agree
when their folds are equal: that is what "the same outcome" means in every test of `statemachine`.
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
    """Text that nobody sees, and why."""

    text: str
    reason: str


@frozen
class FoldedCall:
    """A whole call."""

    name: str
    id: str | None
    format: str
    arguments: str = ""
    complete: bool | None = None
    """None while no `CallEnd` came."""
    repairs: tuple[str, ...] = ()


Item = Text | Reasoning | Discard | FoldedCall


def fold(events: Iterable[Event]) -> list[Item]:
    """The outcome of a sequence of events."""
    items: list[Item] = []
    for event in events:
        last = items[-1] if items else None
        match event:
            case TextDelta(text=text):
                if isinstance(last, Text):
                    items[-1] = Text(last.text + text)
                else:
                    items.append(Text(text))
            case ReasoningDelta(text=text):
                if isinstance(last, Reasoning):
                    items[-1] = Reasoning(last.text + text)
                else:
                    items.append(Reasoning(text))
            case Discarded(text=text, reason=reason):
                if isinstance(last, Discard) and last.reason == reason:
                    items[-1] = Discard(last.text + text, reason)
                else:
                    items.append(Discard(text, reason))
            case CallStart(name=name, id=id_, format=form):
                items.append(FoldedCall(name, id_, form))
            case ArgumentsDelta(text=text):
                assert isinstance(last, FoldedCall), f"arguments outside of a call: {text!r}"
                items[-1] = evolve(last, arguments=last.arguments + text)
            case CallEnd(complete=complete, repairs=repairs):
                assert isinstance(last, FoldedCall), "the end of no call"
                items[-1] = evolve(last, complete=complete, repairs=repairs)
            case _:
                assert_never(event)
    return items


def text_of(items: Iterable[Item]) -> str:
    """The visible text of an outcome."""
    return "".join(item.text for item in items if isinstance(item, Text))


def calls_of(items: Iterable[Item]) -> list[FoldedCall]:
    """The calls of an outcome."""
    return [item for item in items if isinstance(item, FoldedCall)]


def pieces(text: str, size: int) -> Iterator[str]:
    """The text in pieces of `size` characters; 0 means whole."""
    step = size or max(1, len(text))
    for start in range(0, len(text), step):
        yield text[start : start + step]


def events_of(cut: Iterable[str], tools: Any, reason: str | None = None, **options: Any) -> list[Event]:
    """The events that these pieces bring, `close` included."""
    parser = Parser(tools, **options)
    events: list[Event] = []
    for piece in cut:
        events += parser.feed(piece)
    return events + parser.close(reason)


def outcome(cut: Iterable[str], tools: Any, reason: str | None = None, **options: Any) -> list[Item]:
    """What these pieces come to."""
    return fold(events_of(cut, tools, reason, **options))


def cuts(text: str, places: Sequence[int]) -> list[str]:
    """The text cut at these places."""
    ends = [*sorted(set(places)), len(text)]
    return [text[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
