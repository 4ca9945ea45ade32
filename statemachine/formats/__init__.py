"""Formats: the ways in which models write calls.

format     the parts of a format, and the check that a declaration is unambiguous
table      the formats themselves, one row each
markers    search for literals in text that arrives in pieces, and for text that must be buffered in the meantime
openers    the tree of openers, and the keys of envelopes
unmarked   calls without a marker
scanner    search for everything that may open or close in text
plugins    formats of other distributions
described  formats that are not in the table, but are known by name
compile    the tables compiled from a set of formats, made once and shared by all parsers
"""

from statemachine.formats.compile import rivals_of
from statemachine.formats.described import add_format, find_format, is_format
from statemachine.formats.format import (
    Anchor,
    Body,
    Envelope,
    Expression,
    Format,
    FormatError,
    JsonBody,
    MessageBody,
    NameRule,
    Parameters,
    Section,
    Variant,
)
from statemachine.formats.plugins import objects_of, plugged_formats
from statemachine.formats.table import DEFAULT, FORMATS, OPT_IN, REASONING

__all__ = [
    "DEFAULT",
    "FORMATS",
    "OPT_IN",
    "REASONING",
    "Anchor",
    "Body",
    "Envelope",
    "Expression",
    "Format",
    "FormatError",
    "JsonBody",
    "MessageBody",
    "NameRule",
    "Parameters",
    "Section",
    "Variant",
    "add_format",
    "find_format",
    "is_format",
    "objects_of",
    "plugged_formats",
    "rivals_of",
]
