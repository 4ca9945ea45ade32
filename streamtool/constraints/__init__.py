"""What a model can be held to, from the table of formats and the tools: a schema, a structural tag, a grammar.

Nothing here is written per format. How a call looks around its arguments is asked of `statemachine.write` (`frames`),
and what stands inside is the tool's JSON Schema, in the part of it that engines honour (`portable_schema`). Every
sentence of a constraint is one that the parser reads.
"""

from streamtool.constraints.call_frames import CallFrame, frame
from streamtool.constraints.grammar import grammar
from streamtool.constraints.json_schema import call_schema
from streamtool.constraints.portable_schema import arguments_schema, plain
from streamtool.constraints.structural_tag import structural_tag

__all__ = ["CallFrame", "arguments_schema", "call_schema", "frame", "grammar", "plain", "structural_tag"]
