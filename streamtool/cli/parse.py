"""`streamtool parse`: read model text and print parser events as they occur.

The text is decoded as it arrives, even if a read stops in the middle of a character. Each event is printed before more
text is read.
"""

import codecs
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, assert_never

from statemachine import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Discarded,
    Event,
    Parser,
    ReasoningDelta,
    TextDelta,
)
from streamtool.cli.common import Screen, open_source, print_error, quoted, read_tools
from streamtool.cli.garbage import gc_disabled
from streamtool.core.json_value import json_line
from streamtool.exchange.near_calls import EXAMINED
from streamtool.observe.parser_events import event_as_json
from streamtool.observe.printable import printable
from streamtool.observe.verdicts import verdict_of_text

RECORDS = (".jsonl", ".ndjson", ".json")
"""Extensions of files that usually contain records."""
_READ = 65536  # maximum bytes per read
VERDICT = 1000
"""Maximum number of characters of the verdict."""


def run(
    file: str, tools: str | None, formats: Sequence[str] | None, delta: int | None, prefix: str, *, as_json: bool
) -> None:
    """Parse `file` and print the events. Raises SettingsError for invalid or unreadable input."""
    offered = None if tools is None else read_tools(tools)
    with gc_disabled():
        parser = Parser(offered, formats=formats, prefix=prefix)
    screen = Screen()
    kept = _VerdictInput()
    hinted = not file.endswith(RECORDS)
    with open_source(file) as source:
        for piece in pieces(source, delta):
            if not hinted and piece.lstrip().startswith(("{", "[")):
                print_error(f"{file} is parsed as a single reply; if it contains records, use --field PATH")
            hinted = True
            show(kept.add(piece, parser.feed(piece)), screen, as_json=as_json)
    show(kept.add("", parser.close()), screen, as_json=as_json)
    if kept.text and not as_json:
        found = verdict_of_text(kept.text, kept.events, offered, formats)
        screen.line(("verdict    ", "dim"), (printable(str(found), VERDICT), "bold"))


class _VerdictInput:
    """The beginning of the text, and the events that the verdict depends on."""

    def __init__(self) -> None:
        self.text = ""
        self.events: list[Event] = []

    def add(self, piece: str, events: Sequence[Event]) -> Sequence[Event]:
        """Add a piece of the text and its events, and return the events."""
        if len(self.text) < EXAMINED:
            self.text += piece[: EXAMINED - len(self.text)]
        self.events += (event for event in events if isinstance(event, CallStart | CallEnd | Discarded))
        return events


def wants_records(names: Sequence[str]) -> bool:
    """Return whether the names can only refer to records: several files, a folder, or a compressed file."""
    return len(names) > 1 or Path(names[0]).is_dir() or names[0].endswith((".gz", ".zst"))


def show(events: Sequence[Event], screen: Screen, *, as_json: bool) -> None:
    """Print the events, one per line."""
    if as_json:
        for event in events:
            sys.stdout.write(json_line(event_as_json(event)) + "\n")
        sys.stdout.flush()
    else:
        for event in events:
            screen.line(*as_line(event))


def pieces(source: BinaryIO, delta: int | None) -> Iterator[str]:
    """Yield the text as it arrives, in pieces of at most `delta` characters. Replace invalid UTF-8 with U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    read = getattr(source, "read1", source.read)
    while data := read(_READ):
        yield from cut(decoder.decode(data), delta)
    yield from cut(decoder.decode(b"", True), delta)


def cut(text: str, size: int | None) -> Iterator[str]:
    """Yield the text in pieces of `size` characters, or as a single piece if `size` is None. Yield nothing if the text
    is empty.
    """
    if size is None:
        if text:
            yield text
        return
    for at in range(0, len(text), size):
        yield text[at : at + size]


def as_line(event: Event) -> list[str | tuple[str, str]]:
    """Return the event as the styled pieces of a line."""
    match event:
        case TextDelta(text=text):
            return [("text       ", "dim"), quoted(text)]
        case ReasoningDelta(text=text):
            return [("reasoning  ", "dim"), (quoted(text), "italic")]
        case CallStart():
            told = f"  id {event.id}" if event.id is not None else ""
            return [("call       ", "dim"), (event.name, "bold green"), (f"  format {event.format}{told}", "dim")]
        case ArgumentsDelta(text=text):
            return [("arguments  ", "dim"), (quoted(text), "green")]
        case CallEnd():
            word = "complete" if event.complete else "incomplete"
            coerced = f"  repaired: {', '.join(event.repairs)}" if event.repairs else ""
            return [("end        ", "dim"), (word, "green" if event.complete else "bold red"), (coerced, "yellow")]
        case Discarded(text=text, reason=reason):
            return [("discarded  ", "dim"), (quoted(text), "red"), (f"  {reason}", "dim")]
        case _:
            assert_never(event)
