"""Recognition of cumulative streams, in which each delta repeats all text so far.

A delta that begins with the whole text so far is either the next one of such a stream, or the model repeats itself. It
is buffered until this is decided:

- The stream is cumulative if at least three deltas have repeated all text before them (at the end of the text, two) and
  have added text that did not occur before, and the repeated text is not very short.
- Any delta that does not begin with the text so far shows that the stream is ordinary. Then, the buffered deltas follow
  unchanged.

In nearly all replies, the second delta or a native call decides, and the reader is no longer wrapped
(`UpstreamResponse.reader`).
"""

from collections.abc import Callable, Iterable
from typing import Final

from attrs import define, field

from streamtool.core.reply import ReplyCallStart, ReplyEvent, ReplyReasoningDelta, ReplyTextDelta, Usage
from streamtool.protocols.interfaces import UpstreamReader

_REPETITIONS: Final = 3
"""Number of deltas that must repeat all text before them and add new text."""
_REPEATED: Final = 12
"""Minimum length in characters of the text that the last of them repeats."""
_AT_END: Final = (2, 8)
"""The same two numbers at the end of the text."""
_MAX_HELD: Final = 16
"""Maximum number of deltas to buffer."""

_Delta = ReplyTextDelta | ReplyReasoningDelta


@define(eq=False)
class _Text:
    """The text or the reasoning of one choice."""

    whole: str
    """The last delta of a cumulative stream, or what the last delta would be."""
    emitted: int
    """Number of characters of `whole` that have been emitted."""
    cumulative: bool = False
    held: list[_Delta] = field(factory=list)
    repetitions: int = 0
    """Number of deltas that have repeated all text before them and added new text."""
    repeated: int = 0
    """Length of the text that the last delta repeated."""

    def proves(self, repetitions: int, repeated: int) -> bool:
        """Return whether the deltas so far show that the stream is cumulative."""
        return self.repetitions >= repetitions and self.repeated >= repeated


class CumulativeReader:
    """A reader that turns a cumulative stream into deltas. `on_ordinary` is called when the stream turns out to be
    ordinary; from then on, the wrapped reader can be used directly.
    """

    __slots__ = ("_on_ordinary", "_ordinary", "_reader", "_texts", "tool_names")

    def __init__(self, reader: UpstreamReader, on_ordinary: Callable[[], None]) -> None:
        self._reader = reader
        self.tool_names = reader.tool_names
        self._on_ordinary = on_ordinary
        self._ordinary = False
        self._texts: dict[tuple[int, type[_Delta]], _Text] = {}

    @property
    def usage(self) -> Usage | None:
        """Usage as last reported by the upstream."""
        return self._reader.usage

    def feed(self, data: bytes, /) -> list[ReplyEvent]:
        """Return the reply events that `data` completes."""
        return self._read(self._reader.feed(data))

    def close(self) -> list[ReplyEvent]:
        """Return the events at the end of the reply."""
        out = self._read(self._reader.close())
        self._end_texts(out)
        return out

    def _read(self, events: Iterable[ReplyEvent]) -> list[ReplyEvent]:
        out: list[ReplyEvent] = []
        for event in events:
            if self._ordinary:
                out.append(event)
            elif isinstance(event, _Delta) and event.text:
                self._delta(event, out)
            else:
                self._end_texts(out)
                if type(event) is ReplyCallStart and not any(known.cumulative for known in self._texts.values()):
                    self._reject(out)
                out.append(event)
        return out

    def _delta(self, event: _Delta, out: list[ReplyEvent]) -> None:
        text, known = event.text, self._texts.get((event.choice, type(event)))
        if known is None:
            self._texts[event.choice, type(event)] = _Text(text, len(text))
            out.append(event)
        elif known.cumulative:
            # Another text may begin, such as the next block; it is cumulative as well.
            known.emitted = len(known.whole) if text.startswith(known.whole) else 0
            known.whole = text
            self._emit_new(known, event, out)
        elif text.startswith(known.whole) and (len(text) > len(known.whole) or known.held):
            added = text[len(known.whole) :]
            if added and added not in known.whole:
                known.repetitions += 1
                known.repeated = len(known.whole)
            known.whole = text
            known.held.append(event)
            if known.proves(_REPETITIONS, _REPEATED):
                self._recognize(known, out)
            elif len(known.held) > _MAX_HELD:
                self._reject(out)
        else:
            self._reject(out)
            out.append(event)

    def _end_texts(self, out: list[ReplyEvent]) -> None:
        """Decide about the buffered deltas, because something else follows."""
        for known in self._texts.values():
            if known.held and known.proves(*_AT_END):
                self._recognize(known, out)
        if any(known.held for known in self._texts.values()):
            self._reject(out)

    def _recognize(self, known: _Text, out: list[ReplyEvent]) -> None:
        known.cumulative = True
        last = known.held[-1]
        known.held.clear()
        self._emit_new(known, last, out)

    def _emit_new(self, known: _Text, event: _Delta, out: list[ReplyEvent]) -> None:
        """Emit the part of the text that has not been emitted."""
        text = known.whole[known.emitted :]
        known.emitted = len(known.whole)
        if text:
            out.append(type(event)(event.choice, text))

    def _reject(self, out: list[ReplyEvent]) -> None:
        """Emit the buffered deltas unchanged, because the stream is ordinary."""
        for known in self._texts.values():
            out += known.held
        self._texts.clear()
        self._ordinary = True
        self._on_ordinary()
