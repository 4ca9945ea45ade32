"""The stages that text and reasoning pass through on their way to the client, in this order:

    TextBuffer (forced call) ─▶ OpeningFilter ─▶ TextBuffer (answer) ─▶ FabricatedResultFilter ─▶ VisibleText

Each stage has the methods `feed` and `close`, and passes events on to the next one. `close` flushes buffered events in
order; more events may follow. Text that no stage has to inspect bypasses the stages: the choice filter emits it
directly while `TextFilter.idle` is true.
"""

from typing import Protocol

from streamtool.core.reply import ReplyEvent, ReplyReasoningDelta, ReplyTextDelta

Content = ReplyTextDelta | ReplyReasoningDelta
"""An event that a stage accepts."""


class Stage(Protocol):
    """The interface of a stage."""

    def feed(self, event: Content, out: list[ReplyEvent], /) -> None: ...
    def close(self, out: list[ReplyEvent], /) -> None: ...


class BufferingStage(Protocol):
    """The interface of a stage that may buffer events."""

    @property
    def holds(self) -> bool: ...
