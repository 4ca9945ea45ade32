"""Lists of items, as clients page through them.

Source: `types/responses/response_item_list.py` of openai-python 3.54.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from streamtool.errors import RequestError
from streamtool.protocols import wire
from streamtool.protocols.fields import shown
from streamtool.protocols.responses.typed_calls import TYPED_CALLS

Json = Any  # a decoded JSON value

_PAGE: Final = 20
_LARGEST_PAGE: Final = 100
"""Items of a list, if the client does not say how many, and at most."""
_PREFIXES: Final = {
    "message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco",
    "custom_tool_call": "ctc", "custom_tool_call_output": "ctco",
    **{kind: spelling.prefix for kind, spelling in TYPED_CALLS.items()},
}  # fmt: skip
"""How the id of an item begins, by its type."""


def write_list(given: Iterable[Json], owner: str, asked: Mapping[str, str]) -> bytes:
    """A page of the items of a response or a conversation; `asked` is the query. Raises RequestError."""
    limit, order, after = asked.get("limit", str(_PAGE)), asked.get("order", "desc"), asked.get("after")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:4]) <= _LARGEST_PAGE):
        raise RequestError(f"`limit` is a number from 1 to {_LARGEST_PAGE}.", param="limit")
    if order not in ("asc", "desc"):
        raise RequestError("`order` is asc or desc.", param="order")
    items = [listed(item, owner, place) for place, item in enumerate(given) if isinstance(item, dict)]
    if order == "desc":
        items.reverse()
    if after is not None:
        place = next((place for place, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise RequestError(f"No item of this list has the id {shown(after)}.", param="after")
        items = items[place + 1 :]
    page = items[: int(limit)]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    fields = {"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": len(items) > len(page)}
    return wire.encode(fields)


def item_prefix(item: Mapping[str, Json]) -> str:
    """How the id of the item begins."""
    return _PREFIXES.get(item.get("type") or "message", "item")


def listed(item: Mapping[str, Json], owner: str, place: int) -> dict[str, Json]:
    """The item with all that a listed one has: type, id, and content in parts."""
    kind = item.get("type") or "message"
    made = f"{item_prefix(item)}_{owner.removeprefix('resp_')}_in{place}"
    listed = {**item, "type": kind, "id": item.get("id") or made}
    if kind == "message" and isinstance(item.get("content"), str):
        said = item.get("role") == "assistant"
        part = {"type": "output_text" if said else "input_text", "text": item["content"]}
        listed["content"] = [{**part, "annotations": []} if said else part]
    if kind == "message":
        listed.setdefault("status", "completed")
    return listed
