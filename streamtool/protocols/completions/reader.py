"""Tolerant reader for an upstream's legacy completions reply.

Theory of operation. `ChoicesReader` handles everything common to replies with choices. In this protocol, a choice
consists only of text. A piece of text may end in the middle of a character, which `wire.Joiner` handles.
"""

from typing import ClassVar, Final

from attrs import Factory, define

from streamtool.core.json_value import JsonObject
from streamtool.core.reply import Reason, ReplyTextDelta
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.choices import ChoicesReader
from streamtool.protocols.shared.stream import Events

_MOST_WITHHELD: Final = 16
"""Maximum number of tokens that a server withholds at a time; stop sequences are shorter."""


@define
class ChoiceReader:
    """State of one choice while the reply is being received."""

    index: int
    reason: Reason | None = None
    finished: bool = False
    buffered: int = 0
    """Always 0, because text is never buffered."""
    _text: wire.Joiner = Factory(wire.Joiner)
    _withheld: int = 0
    """Number of empty pieces before the next text, which contains their tokens: a server withholds a token that may
    begin a stop sequence (`process_token` in llama.cpp's server).
    """

    def read(self, fields: JsonObject, events: Events) -> None:
        """Read one entry of `choices`, from a chunk or a whole reply."""
        text = fields.get("text")
        if type(text) is not str:
            return
        if text:
            text = self._text.feed(text)
        if text:
            # One event for each token: a reply that is continued has to be counted.
            events += [ReplyTextDelta(self.index, "")] * self._withheld
            self._withheld = 0
            events.append(ReplyTextDelta(self.index, text))
        elif fields.get("finish_reason") is None and self._withheld < _MOST_WITHHELD:
            self._withheld += 1

    def close(self, events: Events, *, cut: bool) -> None:  # noqa: ARG002  truncated text is not treated differently
        """End the choice."""
        self.finished = True
        if rest := self._text.close():
            events.append(ReplyTextDelta(self.index, rest))


class ReplyReader(ChoicesReader[ChoiceReader]):
    """Reader for one reply with `n` choices."""

    __slots__ = ()

    REASONS: ClassVar = {"length": Reason.LENGTH, "max_tokens": Reason.LENGTH, "content_filter": Reason.FILTER}
    """All other reasons (`stop`, `eos_token`, …) count as a plain stop."""

    def _new_choice(self, index: int) -> ChoiceReader:
        return ChoiceReader(index)
