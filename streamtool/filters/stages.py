"""Stages that text and reasoning pass through on their way to the client, in this order:

    TextBuffer (forced call) ─▶ OpeningFilter ─▶ TextBuffer (answer) ─▶ FabricatedResultFilter ─▶ VisibleText

Each stage has `feed` and `close` and passes events on to the next one. `close` flushes what is buffered, in order; more
events may follow. Text that no stage needs to inspect bypasses them: the choice filter emits it directly while
`TextFilter.idle` is true.
"""

from typing import Protocol

from streamtool.core.reply import ReplyEvent, ReplyReasoningDelta, ReplyTextDelta

Content = ReplyTextDelta | ReplyReasoningDelta
"""Event that a stage accepts."""


class Stage(Protocol):
    """Interface of a stage."""

    def feed(self, event: Content, out: list[ReplyEvent], /) -> None: ...
    def close(self, out: list[ReplyEvent], /) -> None: ...


class BufferingStage(Protocol):
    """Interface of a stage that may buffer events."""

    @property
    def holds(self) -> bool: ...
