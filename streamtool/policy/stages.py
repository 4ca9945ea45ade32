"""The stages that text and reasoning pass on their way to the client, in this order:

    TextHold (a forced call) ─▶ OpeningFilter ─▶ TextHold (an answer) ─▶ FabricatedResultFilter ─▶ VisibleText

Each stage has `feed` and `close` and hands on what passes to the next one. `close` says that what waits has to go out
now, in order; more may follow. Text that no stage has to look at never comes here: the choice filter sends it out
directly while `TextFilter.idle` is true.
"""

from typing import Protocol

from streamtool.reply import ReplyEvent, ReplyReasoningDelta, ReplyTextDelta

Content = ReplyTextDelta | ReplyReasoningDelta
"""What a stage takes."""


class Stage(Protocol):
    """One stage."""

    def feed(self, event: Content, out: list[ReplyEvent], /) -> None: ...
    def close(self, out: list[ReplyEvent], /) -> None: ...


class Holding(Protocol):
    """A stage in which something may wait."""

    @property
    def holds(self) -> bool: ...
