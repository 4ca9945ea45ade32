"""Incremental parser and writer for tool calls in model text. Does no I/O, and depends on no protocol or vendor.

    parser = Parser({"get_weather": {"type": "object", "properties": {"city": {"type": "string"}}}})
    for piece in pieces:
        for event in parser.feed(piece):
            ...
    events = parser.close()

`STREAMTOOL` lets `streamtool` verify that it imported this package and not another distribution with the same import
name.
"""

from typing import NoReturn

from statemachine.call import Call
from statemachine.events import ArgumentsDelta, CallEnd, CallStart, Discarded, Event, ReasoningDelta, TextDelta
from statemachine.formats.compile import precompile
from statemachine.formats.format import Format
from statemachine.formats.table import FORMATS, OPT_IN
from statemachine.machine.machine import Limits
from statemachine.machine.states import State
from statemachine.parser import Parser, parse
from statemachine.stream.emitter import Span
from statemachine.tools import tools_of
from statemachine.writing.writer import write

STREAMTOOL = "streamtool.statemachine/1"

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


def __getattr__(name: str) -> NoReturn:
    """Raise an error that explains the import-name collision to a program that expects python-statemachine.

    Names that begin with a capital letter raise ImportError, because `from statemachine import StateMachine` would
    replace an AttributeError with an ImportError that carries no explanation. Other names raise AttributeError, on
    which submodule imports rely.
    """
    if not name[:1].isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise ImportError(
        f"cannot import name {name!r} from 'statemachine': this package belongs to streamtool. The distribution "
        "python-statemachine has the same import name, so the two cannot share an environment. Install streamtool in a "
        "separate environment (with `python -m venv`, `uv tool install` or `pipx install`), then reinstall "
        "python-statemachine in this one.",
        name=__name__,
        path=__file__,
    )
