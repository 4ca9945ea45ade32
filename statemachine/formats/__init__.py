"""The ways in which models write calls: what a format is made of, the table of them, and what a set compiles into.

format     what a row is made of, and the check that a declaration is unambiguous
table      the rows
markers    finding literals in text that arrives in pieces, and what must be held back
openers    what may follow an opener, as a tree; the keys by which an envelope is read
compile    what a set of formats compiles into; made once, shared by all parsers
"""

from statemachine.formats.format import (
    Anchor,
    Body,
    Envelope,
    Expression,
    Format,
    FormatError,
    Json,
    MessageBody,
    NameRule,
    Parameters,
    Section,
    Variant,
)
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
    "Json",
    "MessageBody",
    "NameRule",
    "Parameters",
    "Section",
    "Variant",
]
