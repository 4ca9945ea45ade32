"""A structural tag (vLLM, SGLang): free text until a trigger, then a call whose arguments keep to their schema.

Both servers hand it to xgrammar, in the shape `{"type": "structural_tag", "format": …}`; the older shape, `structures`
and `triggers`, cannot demand a call. Source: xgrammar's documentation of structural tags, and the request models of
both servers. `end` may not be empty everywhere, so a format without a closer ends its call with a line end.
"""

from collections.abc import Sequence

from streamtool.constraints.call_frames import frame
from streamtool.constraints.portable_schema import arguments_schema
from streamtool.conversation import Json, Tool


def structural_tag(tools: Sequence[Tool], format: str, *, forced: bool, parallel: bool) -> dict[str, Json]:
    """The value of `response_format`; `forced` demands a call at the beginning, `parallel` False allows one only."""
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
