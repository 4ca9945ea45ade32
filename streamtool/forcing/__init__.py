"""The calls that a request allows, and how a call is forced: by a schema, a structural tag, a grammar or a prefill.

This package is independent of the formats. It obtains the text around a call's arguments from `statemachine.write`
(`call_frames`); the arguments follow the tool's JSON Schema, reduced to the subset that engines enforce
(`schemas.portable`). The parser can read every output that a constraint allows.
"""

from streamtool.forcing.call_frames import CallFrame, frame
from streamtool.forcing.continuation import ANY_TEXT, repeated_text_grammar, rest_grammar
from streamtool.forcing.gbnf import schema_grammar
from streamtool.forcing.grammar import call_grammar
from streamtool.forcing.methods import (
    CLIENT_CONSTRAINTS,
    can_force,
    continuation_grammar,
    forcing_for,
    forcing_method_for,
)
from streamtool.forcing.rules import AnyName, Rules, rules_for
from streamtool.forcing.schemas import call_schema, call_structural_tag
from streamtool.schemas.portable import arguments_schema, without_schema

__all__ = [
    "ANY_TEXT",
    "CLIENT_CONSTRAINTS",
    "AnyName",
    "CallFrame",
    "Rules",
    "arguments_schema",
    "call_grammar",
    "call_schema",
    "call_structural_tag",
    "can_force",
    "continuation_grammar",
    "forcing_for",
    "forcing_method_for",
    "frame",
    "repeated_text_grammar",
    "rest_grammar",
    "rules_for",
    "schema_grammar",
    "without_schema",
]
