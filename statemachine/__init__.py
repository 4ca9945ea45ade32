"""Reads tool calls out of model text that arrives in pieces, and writes them. No I/O, no protocol, no vendor.

    parser = Parser({"get_weather": {"type": "object", "properties": {"city": {"type": "string"}}}})
    for piece in pieces:
        for event in parser.feed(piece):
            ...
    events = parser.close()

`STREAMTOOL` tells `streamtool` that this package is the one it needs: another distribution has the same import name.
"""

from statemachine.call import Call
from statemachine.emitter import Span
from statemachine.events import ArgumentsDelta, CallEnd, CallStart, Discarded, Event, ReasoningDelta, TextDelta
from statemachine.formats.compile import precompile
from statemachine.formats.format import Format
from statemachine.formats.table import FORMATS, OPT_IN
from statemachine.machine import Limits
from statemachine.parser import Parser, parse
from statemachine.states import State
from statemachine.tools import tools_of
from statemachine.writer import write

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
