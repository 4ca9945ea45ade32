"""Compaction: a conversation becomes its user's messages and a summary that the model writes.

The summary stands in an item of the type `compaction`, whose content is opaque to clients. Ours is the summary behind a
mark, so that it is read back by any process and needs no store; what another server has written cannot be read here.
Source: `types/responses/compacted_response.py` and `response_compact_params.py` of openai-python 3.54.
"""

from collections.abc import Iterable
from typing import Any, Final

from attrs import frozen

from streamtool.errors import UpstreamError
from streamtool.protocols import wire
from streamtool.protocols.fields import Fields, body_fields, model_name
from streamtool.protocols.responses.listing import listed
from streamtool.protocols.responses.memory import Recall, all_items
from streamtool.settings import LimitSettings

Json = Any  # a decoded JSON value

_MARK: Final = "streamtool summary\n"
_SHORT: Final = "[What was said before, in short]\n"
_ASKED: Final = """\
Sum up this conversation, for yourself: the summary takes the place of all that was said and done before. Say what the \
user wants and has decided, what you have done and found, with names, paths and values as they are, what has failed, \
and what remains to be done. Write the summary and nothing else."""


@frozen
class Compaction:
    """A conversation that is to be compacted."""

    request: bytes
    """The body of the request that has the model write the summary."""
    kept: tuple[Json, ...]
    """The messages of the user."""


def read_compaction(body: bytes, limits: LimitSettings, recall: Recall) -> Compaction:
    """What the client wants compacted; raises `RequestError` or `TooLargeError`, `param` naming the place."""
    raw = body_fields(body, limits)
    given = [item for _, item in all_items(raw, recall, limits, len(body)).items]
    asked = {"type": "message", "role": "user", "content": _ASKED}
    request = {"model": model_name(raw), "input": [*given, asked], "store": False}
    if raw.get("instructions") is not None:
        request["instructions"] = raw["instructions"]
    said = (item for item in given if isinstance(item, dict) and item.get("role") == "user")
    return Compaction(wire.encode(request), tuple(said))


def write_compaction(compaction: Compaction, response: bytes, *, id: str, created: int) -> bytes:
    """The compacted conversation as JSON; `response` is what the request was answered with.

    Raises UpstreamError if it holds no whole summary.
    """
    told = wire.decode_tolerant(response)
    summary = "\n".join(_words(told["output"])).strip()
    if told["status"] != "completed" or not summary:
        raise UpstreamError("the model wrote no whole summary; compact the conversation again", code="no_summary")
    output = [listed(item, id, place) for place, item in enumerate(compaction.kept)]
    output.append({"id": f"cmp_{id.removeprefix('resp_')}", "type": "compaction", "encrypted_content": _MARK + summary})
    fields = {"id": id, "object": "response.compaction", "created_at": created, "output": output}
    return wire.encode({**fields, "usage": told["usage"]})


def summary(fields: Fields) -> Fields | None:
    """What a compaction item says, as a message of the assistant; None if another server has written it."""
    content = fields.get("encrypted_content")
    if not isinstance(content, str) or not content.startswith(_MARK):
        return None
    return {"type": "message", "role": "assistant", "content": _SHORT + content.removeprefix(_MARK)}


def _words(output: Iterable[Json]) -> Iterable[str]:
    for item in output:
        for part in item.get("content") or () if item["type"] == "message" else ():
            if part["type"] == "output_text":
                yield part["text"]
