"""Compaction, which replaces a conversation with its user messages and a summary written by the model.

The summary is an item of type `compaction`, whose content is opaque to clients. The content written here is a marker
followed by the summary, so any process can read the summary without a store. Summaries from other servers cannot be
read here. Source: `types/responses/compacted_response.py` and `response_compact_params.py` of openai-python 3.54.
"""

from collections.abc import Iterable
from typing import Final

from attrs import frozen

from streamtool.core.errors import UpstreamError
from streamtool.core.json_value import Fields, Json
from streamtool.protocols.interfaces import Recall
from streamtool.protocols.responses.listing import complete_item
from streamtool.protocols.responses.memory import all_items
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.fields import body_fields, model_name
from streamtool.settings import LimitSettings

_MARK: Final = "streamtool summary\n"
_SHORT: Final = "[What was said before, in short]\n"
_ASKED: Final = """\
Sum up this conversation, for yourself: the summary takes the place of all that was said and done before. Say what the \
user wants and has decided, what you have done and found, with names, paths and values as they are, what has failed, \
and what remains to be done. Write the summary and nothing else."""


@frozen
class Compaction:
    """Conversation to compact."""

    request: bytes
    """Body of the request that makes the model write the summary."""
    user_messages: tuple[Json, ...]
    """The user's messages, which are retained as items."""


def read_compaction(body: bytes, limits: LimitSettings, recall: Recall) -> Compaction:
    """Return the conversation to compact. Raises `RequestError` or `TooLargeError`, whose `param` names the invalid
    field.
    """
    raw = body_fields(body, limits)
    given = [item for _, item in all_items(raw, recall, limits, len(body)).items]
    asked = {"type": "message", "role": "user", "content": _ASKED}
    request = {"model": model_name(raw), "input": [*given, asked], "store": False}
    if raw.get("instructions") is not None:
        request["instructions"] = raw["instructions"]
    said = (item for item in given if isinstance(item, dict) and item.get("role") == "user")
    return Compaction(wire.encode(request), tuple(said))


def write_compaction(compaction: Compaction, response: bytes, *, id: str, created: int) -> bytes:
    """Return the compacted conversation as JSON; `response` is the reply to the summary request.

    Raises UpstreamError if the reply contains no complete summary.
    """
    told = wire.decode_tolerant(response)
    summary = "\n".join(_words(told["output"])).strip()
    if told["status"] != "completed" or not summary:
        raise UpstreamError("The model wrote no complete summary; compact the conversation again.", code="no_summary")
    output = [complete_item(item, id, place) for place, item in enumerate(compaction.user_messages)]
    output.append({"id": f"cmp_{id.removeprefix('resp_')}", "type": "compaction", "encrypted_content": _MARK + summary})
    fields = {"id": id, "object": "response.compaction", "created_at": created, "output": output}
    return wire.encode({**fields, "usage": told["usage"]})


def summary_message(fields: Fields) -> Fields | None:
    """Return the summary in a compaction item as an assistant message, or None if another server wrote the summary."""
    content = fields.get("encrypted_content")
    if not isinstance(content, str) or not content.startswith(_MARK):
        return None
    return {"type": "message", "role": "assistant", "content": _SHORT + content.removeprefix(_MARK)}


def _words(output: Iterable[Json]) -> Iterable[str]:
    for item in output:
        for part in item.get("content") or () if item["type"] == "message" else ():
            if part["type"] == "output_text":
                yield part["text"]
