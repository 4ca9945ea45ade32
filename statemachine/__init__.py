"""Incremental parser and writer for tool calls in model text. Does no I/O, and depends on no protocol or vendor.

    parser = Parser({"get_weather": {"type": "object", "properties": {"city": {"type": "string"}}}})
    for piece in pieces:
        for event in parser.feed(piece):
            ...
    events = parser.close()

`STREAMTOOL` lets `streamtool` verify that it imported this package and not another distribution with the same import
name.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from statemachine.call import Call
    from statemachine.events import ArgumentsDelta, CallEnd, CallStart, Discarded, Event, ReasoningDelta, TextDelta
    from statemachine.formats.format import Format
    from statemachine.formats.table import FORMATS, OPT_IN
    from statemachine.machine.machine import Limits
    from statemachine.machine.states import State
    from statemachine.parser import Parser, parse, precompile
    from statemachine.stream.emitter import Span
    from statemachine.tools import tools_of
    from statemachine.writing.writer import write

STREAMTOOL = "streamtool.statemachine/1"

HOMES: Final = {
    "Call": "statemachine.call",
    "ArgumentsDelta": "statemachine.events",
    "CallEnd": "statemachine.events",
    "CallStart": "statemachine.events",
    "Discarded": "statemachine.events",
    "Event": "statemachine.events",
    "ReasoningDelta": "statemachine.events",
    "TextDelta": "statemachine.events",
    "Format": "statemachine.formats.format",
    "FORMATS": "statemachine.formats.table",
    "OPT_IN": "statemachine.formats.table",
    "Limits": "statemachine.machine.machine",
    "State": "statemachine.machine.states",
    "Parser": "statemachine.parser",
    "parse": "statemachine.parser",
    "precompile": "statemachine.parser",
    "Span": "statemachine.stream.emitter",
    "tools_of": "statemachine.tools",
    "write": "statemachine.writing.writer",
}
"""The home module of each public name. It is loaded on first use: `streamtool` imports this package even if
a command never parses.
"""

__all__ = [
    "FORMATS",
    "OPT_IN",
    "ArgumentsDelta",
    "Call",
    "CallEnd",
    "CallStart",
    "Discarded",
    "Event",
    "Format",
    "Limits",
    "Parser",
    "ReasoningDelta",
    "Span",
    "State",
    "TextDelta",
    "parse",
    "precompile",
    "tools_of",
    "write",
]


def __getattr__(name: str) -> Any:
    """Return a public name from its home module, or a module of this package. For any other name, raise an error that
    explains the import-name collision to a program that expects python-statemachine.

    Names that begin with a capital letter raise ImportError, because `from statemachine import StateMachine` would
    replace an AttributeError with an ImportError that carries no explanation. The remaining names raise AttributeError,
    on which submodule imports rely.
    """
    if name in HOMES:
        value = globals()[name] = getattr(import_module(HOMES[name]), name)
        return value
    if not name[:1].isupper():
        if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise ImportError(
        f"cannot import name {name!r} from 'statemachine': this package belongs to streamtool. The distribution "
        "python-statemachine has the same import name, so the two cannot share an environment. Install streamtool in a "
        "separate environment (with `python -m venv`, `uv tool install` or `pipx install`), then reinstall "
        "python-statemachine in this one.",
        name=__name__,
        path=__file__,
    )


def __dir__() -> list[str]:
    """Return the public names, including those not loaded yet."""
    return sorted({*globals(), *__all__})
