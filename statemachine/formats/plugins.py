"""Objects that other distributions add by entry points: formats, and model families (`streamtool.models.families`).

An entry point names an object, or a sequence of objects, in a module:

    [project.entry-points."streamtool.formats"]
    angles = "my_package.formats:FORMAT"

A format is loaded when a name is asked for that is not in the table, a family when the first model is looked up.
"""

from functools import cache
from typing import Final, TypeVar

from statemachine.formats.format import Format, FormatError

GROUP: Final = "streamtool.formats"

T = TypeVar("T")


def objects_of(group: str, kind: type[T]) -> tuple[T, ...]:
    """Return the objects that distributions register in a group.

    Raises:
        FormatError: an entry point cannot be loaded, or leads to something else.
    """
    from importlib.metadata import entry_points  # noqa: PLC0415  it takes a sixth of the time to import this package

    found: list[T] = []
    for point in sorted(entry_points(group=group), key=lambda point: point.name):
        owner = "" if point.dist is None else f" of {point.dist.name}"
        try:
            loaded = point.load()
        except Exception as error:
            raise FormatError(f"the entry point {point.name}{owner} ({group}) cannot be loaded: {error!r}") from error
        for one in loaded if isinstance(loaded, list | tuple) else (loaded,):
            if not isinstance(one, kind):
                raise FormatError(f"the entry point {point.name}{owner} ({group}) is not a {kind.__name__}: {one!r}")
            found.append(one)
    return tuple(found)


@cache
def plugged_formats() -> tuple[Format, ...]:
    """Return the formats of other distributions. Raises FormatError."""
    return objects_of(GROUP, Format)
