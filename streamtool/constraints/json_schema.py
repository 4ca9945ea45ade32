"""A call as one JSON object: the JSON Schema of a whole reply that is a call and nothing else.

The keys are those of the format that is taught, as far as it writes a call as one object; else `name` and `arguments`.
Several tools are alternatives, each with its own arguments; what their schemas refer to stands in `$defs`.
"""

from collections.abc import Sequence

from statemachine import FORMATS
from statemachine.formats import Envelope
from streamtool.constraints.portable_schema import arguments_part
from streamtool.conversation import Json, Tool


def call_schema(tools: Sequence[Tool], format: str) -> dict[str, Json]:
    """JSON Schema of a call of one of the tools, as a bare object."""
    definitions: dict[str, Json] = {}
    ways = [_call(tool, format, definitions) for tool in tools]
    schema = ways[0] if len(ways) == 1 else {"anyOf": ways}
    return {**schema, "$defs": definitions} if definitions else schema


def _envelope(format: str) -> Envelope:
    """The keys under which a call stands in its object."""
    body = FORMATS[format].variants[0].body
    plain = isinstance(body, Envelope) and not (body.keyed or body.calls)
    return body if plain and isinstance(body, Envelope) else Envelope()


def _call(tool: Tool, format: str, definitions: dict[str, Json]) -> dict[str, Json]:
    envelope = _envelope(format)
    name, arguments = envelope.name[0], envelope.arguments[0]
    call = _object({name: {"type": "string", "enum": [tool.name]}, arguments: arguments_part(tool, definitions)})
    if not envelope.written_nest:
        return call
    members = {envelope.thought: {"type": "string"}} if envelope.thought else {}
    return _object({**members, envelope.written_nest: call})


def _object(properties: dict[str, Json]) -> dict[str, Json]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
