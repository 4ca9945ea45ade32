"""Reads the reply of a legacy completions upstream, in whatever shape it really comes, into reply events.

Theory of operation. `ChoicesReader` does what all replies of choices need. Here a choice has nothing but text, whose
last character may be cut in half at the end of a piece (`wire.Joiner`).
"""

from typing import ClassVar

from attrs import Factory, define

from streamtool.protocols import wire
from streamtool.protocols.choices import ChoicesReader
from streamtool.protocols.stream import Events, Fields
from streamtool.reply import Reason, ReplyTextDelta


@define
class ChoiceReader:
    """One of the replies, as far as it came."""

    index: int
    reason: Reason | None = None
    finished: bool = False
    kept: int = 0
    """Always 0: text is never kept."""
    _text: wire.Joiner = Factory(wire.Joiner)

    def read(self, fields: Fields, events: Events) -> None:
        """One entry of a chunk's `choices`, or of a whole reply's."""
        text = fields.get("text")
        if type(text) is str and text:
            text = self._text.feed(text)
            if text:
                events.append(ReplyTextDelta(self.index, text))

    def close(self, events: Events, *, cut: bool) -> None:  # noqa: ARG002  text that was cut is text
        """The choice is over."""
        self.finished = True
        if rest := self._text.close():
            events.append(ReplyTextDelta(self.index, rest))


class ReplyReader(ChoicesReader[ChoiceReader]):
    """Reads one reply with `n` choices."""

    __slots__ = ()

    REASONS: ClassVar = {"length": Reason.LENGTH, "max_tokens": Reason.LENGTH, "content_filter": Reason.FILTER}
    """Everything else (`stop`, `eos_token`, …) is a stop."""

    def _new_choice(self, index: int) -> ChoiceReader:
        return ChoiceReader(index)
