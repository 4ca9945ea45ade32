"""Writes what is remembered of a response for whoever asks for it again, and says what to forget of it.

`memory.memories` keeps a response in two parts: its items, which later requests go on from, and its head, the object
without its output.
Source: `resources/responses` and `types/responses/response_item_list.py` of openai-python 3.54.
"""

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from streamtool.errors import NotFoundError
from streamtool.protocols import wire
from streamtool.protocols.fields import shown
from streamtool.protocols.responses.listing import write_list
from streamtool.protocols.responses.memory import head_key

Json = Any  # a decoded JSON value
Recall = Callable[[str], bytes | None]


@frozen
class StoredResponse:
    """A response that is remembered."""

    id: str
    head: dict[str, Json]
    """The object without its output."""
    given: list[Json]
    """The items of its request."""
    output: list[Json]

    @property
    def background(self) -> bool:
        """It is, or was, made in the background."""
        return self.head.get("background") is True

    @property
    def status(self) -> str:
        """How it stands."""
        return str(self.head.get("status"))

    @property
    def keys(self) -> tuple[str, ...]:
        """All under which something of it is remembered."""
        items = (item.get("id") for item in self.output if isinstance(item, dict))
        return self.id, head_key(self.id), *(id for id in items if isinstance(id, str))

    @property
    def calls(self) -> tuple[str, ...]:
        """The ids of its calls, by which their results name them."""
        ids = (item.get("call_id") for item in self.output if isinstance(item, dict))
        return tuple(id for id in ids if isinstance(id, str))

    @property
    def whole(self) -> dict[str, Json]:
        """The response object."""
        return {**self.head, "output": self.output}

    def write(self) -> bytes:
        """The response object as JSON."""
        return wire.encode(self.whole)


def read_stored(id: str, recall: Recall) -> StoredResponse:
    """The response with this id. Raises NotFoundError when it is not remembered, and what `recall` raises."""
    head, items = recall(head_key(id)), recall(id)
    if head is not None and items is not None:
        match wire.decode_tolerant(items):
            case {"input": [*given], "output": [*output]}:
                return StoredResponse(id, wire.decode_tolerant(head), given, output)
    raise NotFoundError(
        f"Response with id {shown(id)} not found: it was not stored, is too old, or belongs to another key.",
        param="response_id",
        code="response_not_found",
    )


def write_deleted(id: str) -> bytes:
    """The answer to who has deleted a response."""
    return wire.encode({"id": id, "object": "response.deleted", "deleted": True})


def write_input_items(response: StoredResponse, asked: Mapping[str, str]) -> bytes:
    """The list of the items of a response's request; `asked` is the query. Raises RequestError.

    An item that the client sent without an id has one that tells its place.
    """
    return write_list(response.given, response.id, asked)
