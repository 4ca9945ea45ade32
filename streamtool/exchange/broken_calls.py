"""The place where a call in a reply has become unreadable, so that another attempt can continue the call there.

Nothing is recorded while a reply arrives, because few calls break. The text is read again instead, a few times, with
parsers that record how each character was classified. The last good character is the one before the first that the
parser has discarded; if the reply ended inside the call, it is the last one of the text.
"""

import json
from collections.abc import Callable
from typing import Final

from attrs import define, field, frozen

from statemachine import ArgumentsDelta, CallEnd, CallStart, Event, Parser
from streamtool.filters import TextParser

_STEPS: Final = (4096, 64, 1)
"""Numbers of characters that are read at once, in each of the readings that locate the break."""
_PIECE: Final = 64 * 1024
_UNIT: Final = 64
"""Arguments that are this close to their limit have reached it: another attempt would reach it, too."""

Reread = Callable[[list[Parser] | None], TextParser]
"""A function that returns a new parser for the reply. With a list, the parsers inside it record how they classify the
text, and are added to the list.
"""


@frozen
class BrokenCall:
    """A call in a reply, up to its last good character."""

    text: str = field(repr=False)
    """The text of the reply up to that character."""
    name: str
    format: str
    arguments: str = field(repr=False)
    """The arguments that the client has received."""
    ahead: str = field(repr=False)
    """The end of these arguments, as far as the parser has not read it in the text."""


@define
class _Calls:
    """The calls in the events of a parser."""

    start: CallStart | None = None
    """The start of the last call."""
    count: int = 0
    pieces: list[str] = field(factory=list)
    """The arguments of the last call."""
    open: bool = False
    broken: bool = False
    """Whether the last call has ended as incomplete."""

    def add(self, events: list[Event]) -> bool:
        """Add events up to the end of a broken call. Return whether a call is broken."""
        for event in events:
            match event:
                case CallStart():
                    self.start, self.open, self.pieces = event, True, []
                    self.count += 1
                case ArgumentsDelta(text=text):
                    self.pieces.append(text)
                case CallEnd(complete=complete):
                    self.open = False
                    if not complete:
                        self.broken = True
                        break
                case _:
                    pass
        return self.broken

    def read(self, parser: TextParser, text: str) -> None:
        """Read text with this parser. It is fed in pieces: near their limit, arguments are read by the character."""
        for at in range(0, len(text), _PIECE):
            self.add(parser.feed(text[at : at + _PIECE]))

    @property
    def arguments(self) -> str:
        """The arguments of the last call, as one string."""
        return "".join(self.pieces)


def find_broken_call(reread: Reread, text: str, *, ended: bool, limit: int) -> tuple[BrokenCall, TextParser] | None:
    """Return the call that breaks in this text of a reply, and a parser that has read the text up to its last good
    character. Return None if the call cannot be continued there.

    `ended` means that the model has ended the reply after this text. `limit` is the maximum length of arguments.
    """
    begin = end = 0
    for step in _STEPS:
        inner: list[Parser] = []
        parser, calls, held = reread(inner), _Calls(), 0
        calls.read(parser, text[:begin])
        for at in range(begin, len(text), step):
            held = inner[-1].held if inner else 0
            held = inner[-1].held if inner else 0
            if calls.add(parser.feed(text[at : at + step])):
                begin, end = at, at + step
                break
        else:
            begin = end = len(text)
            held = inner[-1].held if inner else 0
            if not ended or not calls.add(parser.close("stop")):
                return None
            break
    arguments = calls.arguments
    if calls.start is None or not inner or len(arguments) > limit - _UNIT or _is_complete(arguments):
        return None
    # The piece is classified up to the text that the parser buffers, and is discarded from the break on.
    discarded = (span.start for span in inner[-1].ledger if span.kind == "discard" and span.start >= begin - held)
    text = text[: next(discarded, end - inner[-1].held)]
    # Without the whitespace at the end, if it makes no difference: models write it together with the next word.
    for begun in dict.fromkeys((text.rstrip(), text)):
        parser, before = reread(None), _Calls()
        before.read(parser, begun)
        if before.broken or not before.open or before.count != calls.count:
            continue
        ahead = arguments[len(before.arguments) :]
        if before.arguments + ahead == arguments and (begun is text or not ahead):
            return BrokenCall(begun, calls.start.name, calls.start.format, arguments, ahead), parser
    return None


def parser_after(reread: Reread, text: str) -> TextParser:
    """Return a parser that has read this text of a reply."""
    parser = reread(None)
    _Calls().read(parser, text)
    return parser


def find_open_call(reread: Reread, text: str) -> BrokenCall | None:
    """Return the call that is open at the end of this text of a reply, or None if none is."""
    calls = _Calls()
    calls.read(reread([]), text)
    if calls.start is None or not calls.open:
        return None
    return BrokenCall(text, calls.start.name, calls.start.format, calls.arguments, "")


def _is_complete(arguments: str) -> bool:
    """Return whether the arguments are a complete object, although their call is incomplete."""
    if not arguments.rstrip().endswith("}"):
        return False
    try:
        json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    return True
