"""Complete replies, made from their events."""

from collections.abc import Iterable

from streamtool.core.reply import Reply, ReplyAccumulator, ReplyEvent


def accumulate(events: Iterable[ReplyEvent]) -> Reply:
    """Return the reply that the events form."""
    machine = ReplyAccumulator()
    machine.feed(events)
    return machine.close()
