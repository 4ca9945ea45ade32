"""Notations for arguments, with one module for each kind of body.

Each `read(machine, …)` is a generator over the text: it reads the name if the body contains it, commits the call, emits
its arguments, and returns at the end of the body, before the closers. The opposite direction, from arguments to text,
is implemented in `statemachine/writing`.

    name          the name of a call whose body does not contain it; then its body
    json_object   the arguments as one JSON object
    envelope      JSON that contains both the name and the arguments
    parameters    marked keys and raw values, typed by the tool's schema (XML and key–value formats are one kind);
                  `raw_value` decides where a value ends and which type it has, `elements` reads values made of
                  elements, `parameter_markers` compiles the markers
    expression    names and bracketed arguments, as Python and other languages write calls
    message       messages whose header decides what they are: reasoning, text, or a call

A module is loaded when the first call of its kind begins, because most processes read few kinds.
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from statemachine.bodies import expression, message, name, parameters

__all__ = ["expression", "load", "message", "name", "parameters"]
_ON_DEMAND: Final = ("expression", "message", "name", "parameters")


def load() -> None:
    """Load all modules now, so that no reply has to wait for them."""
    for kind in _ON_DEMAND:
        import_module(f"{__name__}.{kind}")


def __getattr__(kind: str) -> ModuleType:
    if kind not in _ON_DEMAND:
        raise AttributeError(f"module {__name__!r} has no attribute {kind!r}")
    return import_module(f"{__name__}.{kind}")
