"""A call that was read, or is to be written."""

from attrs import field, frozen


@frozen
class Call:
    """A call, as `parse` returns it and `write` takes it."""

    name: str
    arguments: str
    """JSON text of one object."""
    id: str | None = None
    complete: bool = True
    """False when the text ended, or broke, inside the arguments: they are the beginning of an object."""
    repairs: tuple[str, ...] = field(default=(), eq=False)
    """What had to be mended, by name. Not compared: it says how the call was read, and not which call it is."""
