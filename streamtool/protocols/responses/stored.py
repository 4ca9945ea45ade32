"""Functions that read and write stored responses.

`memory.store_entries` divides a response into two parts: its items, from which later requests continue, and its head,
which is the response object without its output. Source: `resources/responses` and
`types/responses/response_item_list.py` of openai-python 3.54.
"""

from collections.abc import Mapping

from attrs import frozen

from streamtool.core.errors import NotFoundError
from streamtool.core.json_value import Json
from streamtool.protocols.interfaces import Recall
from streamtool.protocols.responses.listing import write_list
from streamtool.protocols.responses.memory import head_key
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.fields import shown


@frozen
class StoredResponse:
    """Response in the store."""

    id: str
    head: dict[str, Json]
    """Response object without its output."""
    given: list[Json]
    """Input items of the request that produced the response."""
    output: list[Json]

    @property
    def background(self) -> bool:
        """Whether the response is, or was, generated in the background."""
        return self.head.get("background") is True

    @property
    def status(self) -> str:
        """Status of the response."""
        return str(self.head.get("status"))

    @property
    def keys(self) -> tuple[str, ...]:
        """All store keys that belong to the response."""
        items = (item.get("id") for item in self.output if isinstance(item, dict))
        return self.id, head_key(self.id), *(id for id in items if isinstance(id, str))

    @property
    def calls(self) -> tuple[str, ...]:
        """Ids of the response's calls. Results refer to the calls by these ids."""
        ids = (item.get("call_id") for item in self.output if isinstance(item, dict))
        return tuple(id for id in ids if isinstance(id, str))

    @property
    def whole(self) -> dict[str, Json]:
        """Complete response object."""
        return {**self.head, "output": self.output}

    def write(self) -> bytes:
        """Return the response object as JSON."""
        return wire.encode(self.whole)


def read_stored(id: str, recall: Recall) -> StoredResponse:
    """Return the response with this id. Raises NotFoundError if it is not stored, and any error from `recall`."""
    head, items = recall(head_key(id)), recall(id)
    if head is not None and items is not None:
        match wire.decode_tolerant(items):
            case {"input": [*given], "output": [*output]}:
                return StoredResponse(id, wire.decode_tolerant(head), given, output)
    raise NotFoundError(
        f"Response with id {shown(id)} not found: it was not stored, has expired, or belongs to another key.",
        param="response_id",
        code="response_not_found",
    )


def write_deleted(id: str) -> bytes:
    """Return the JSON body that confirms the deletion of a response."""
    return wire.encode({"id": id, "object": "response.deleted", "deleted": True})


def write_input_items(response: StoredResponse, asked: Mapping[str, str]) -> bytes:
    """Return one page of a response's input items, as selected by the query `asked`. Raises RequestError.

    An item that the client sent without an id gets an id that is derived from the item's position.
    """
    return write_list(response.given, response.id, asked)
