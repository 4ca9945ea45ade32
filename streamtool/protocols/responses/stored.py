"""Writes what is remembered of a response for whoever asks for it again, and says what to forget of it.

`memory.memories` keeps a response in two parts: its items, which later requests go on from, and its head, the object
without its output.
Source: `resources/responses` and `types/responses/response_item_list.py` of openai-python 3.54.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from attrs import frozen

from streamtool.errors import NotFoundError, RequestError
from streamtool.protocols import wire
from streamtool.protocols.fields import shown
from streamtool.protocols.responses.memory import head_key
from streamtool.protocols.responses.typed_calls import TYPED_CALLS

Json = Any  # a decoded JSON value
Recall = Callable[[str], bytes | None]

_PAGE: Final = 20
_LARGEST_PAGE: Final = 100
"""Items of a list, if the client does not say how many, and at most."""
_PREFIXES: Final = {
    "message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco",
    "custom_tool_call": "ctc", "custom_tool_call_output": "ctco",
    **{kind: spelling.prefix for kind, spelling in TYPED_CALLS.items()},
}  # fmt: skip
"""How the id of an item begins, by its type."""


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
    limit, order, after = asked.get("limit", str(_PAGE)), asked.get("order", "desc"), asked.get("after")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:4]) <= _LARGEST_PAGE):
        raise RequestError(f"`limit` is a number from 1 to {_LARGEST_PAGE}.", param="limit")
    if order not in ("asc", "desc"):
        raise RequestError("`order` is asc or desc.", param="order")
    items = [listed(item, response.id, place) for place, item in enumerate(response.given) if isinstance(item, dict)]
    if order == "desc":
        items.reverse()
    if after is not None:
        place = next((place for place, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise RequestError(f"No item of this response has the id {shown(after)}.", param="after")
        items = items[place + 1 :]
    page = items[: int(limit)]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    fields = {"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": len(items) > len(page)}
    return wire.encode(fields)


def listed(item: dict[str, Json], response: str, place: int) -> dict[str, Json]:
    """The item with all that a listed one has: type, id, and content in parts."""
    kind = item.get("type") or "message"
    made = f"{_PREFIXES.get(kind, 'item')}_{response.removeprefix('resp_')}_in{place}"
    listed = {**item, "type": kind, "id": item.get("id") or made}
    if kind == "message" and isinstance(item.get("content"), str):
        said = item.get("role") == "assistant"
        part = {"type": "output_text" if said else "input_text", "text": item["content"]}
        listed["content"] = [{**part, "annotations": []} if said else part]
    if kind == "message":
        listed.setdefault("status", "completed")
    return listed
