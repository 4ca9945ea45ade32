"""Constraints that contain a JSON Schema: a schema for the entire reply, and a structural tag.

The JSON Schema describes a reply that is a single call, written as one JSON object. The keys are the taught format's
own if it writes a call as one object, and `name` and `arguments` if not. Several tools are alternatives, each with its
own arguments; the schemas that they refer to are in `$defs`.

The structural tag (vLLM, SGLang) allows free text until a trigger, then a call whose arguments conform to their schema.
Both servers pass it to xgrammar in the form `{"type": "structural_tag", "format": …}`; the older form, `structures` and
`triggers`, cannot require a call. Sources: xgrammar's documentation on structural tags, and the request models of both
servers. Not every server accepts an empty `end`, so in a format without a closer, a newline ends the call.
"""

from collections.abc import Sequence

from statemachine.formats import Envelope, find_format
from streamtool.core.conversation import Tool
from streamtool.core.json_value import Json
from streamtool.forcing.call_frames import frame
from streamtool.schemas.portable import arguments_part, arguments_schema


def call_schema(tools: Sequence[Tool], format: str) -> dict[str, Json]:
    """Return the JSON Schema of a call to one of the tools, written as a bare object."""
    definitions: dict[str, Json] = {}
    ways = [_call(tool, format, definitions) for tool in tools]
    schema = ways[0] if len(ways) == 1 else {"anyOf": ways}
    return {**schema, "$defs": definitions} if definitions else schema


def _envelope(format: str) -> Envelope:
    """Return the envelope, which defines the keys of a call's object."""
    body = find_format(format).variants[0].body
    return body if isinstance(body, Envelope) and not (body.keyed or body.calls) else Envelope()


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


def call_structural_tag(tools: Sequence[Tool], format: str, *, forced: bool, parallel: bool) -> dict[str, Json]:
    """Return the value for `response_format`.

    If `forced` is true, the reply must begin with a call; if `parallel` is false, only one call is allowed.
    """
    tags: list[Json] = []
    triggers: dict[str, None] = {}
    for tool in tools:
        around = frame(format, tool.name)
        triggers[around.trigger] = None
        content: Json = {"type": "any_text"}
        if around.inside == "json":
            content = {"type": "json_schema", "json_schema": arguments_schema(tool)}
        tags.append({"type": "tag", "begin": around.begin, "content": content, "end": around.end or "\n"})
    return {
        "type": "structural_tag",
        "format": {
            "type": "triggered_tags",
            "triggers": list(triggers),
            "tags": tags,
            "at_least_one": forced,
            "stop_after_first": not parallel,
        },
    }
