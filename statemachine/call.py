"""A tool call that was parsed from text or is to be written as text."""

from attrs import field, frozen


@frozen
class Call:
    """Tool call, as returned by `parse` and accepted by `write`."""

    name: str
    arguments: str
    """JSON text of one object; for an incomplete call, the beginning of that text."""
    id: str | None = None
    complete: bool = True
    """False if the text ended or became unreadable inside the arguments."""
    repairs: tuple[str, ...] = field(default=(), eq=False)
    """Names of the repairs made. Ignored in comparisons: they describe how the call was read, not its content."""
