"""Paginated lists of items.

Source: `types/responses/response_item_list.py` of openai-python 3.54.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from streamtool.core.errors import RequestError
from streamtool.core.json_value import Json
from streamtool.protocols.responses.typed_calls import FORMATS_BY_ITEM
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.fields import shown

_PAGE: Final = 20
_LARGEST_PAGE: Final = 100
"""Default and maximum number of items per page."""
_PREFIXES: Final = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    **{kind: spelling.prefix for kind, spelling in FORMATS_BY_ITEM.items()},
}
"""Prefixes of item ids, by type."""


def write_list(given: Iterable[Json], owner: str, asked: Mapping[str, str]) -> bytes:
    """Return one page of the items in a response or a conversation, as selected by the query `asked`. Raises
    RequestError.
    """
    limit, order, after = asked.get("limit", str(_PAGE)), asked.get("order", "desc"), asked.get("after")
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:4]) <= _LARGEST_PAGE):
        raise RequestError(f"`limit` must be an integer from 1 to {_LARGEST_PAGE}.", param="limit")
    if order not in ("asc", "desc"):
        raise RequestError("`order` must be asc or desc.", param="order")
    items = [complete_item(item, owner, place) for place, item in enumerate(given) if isinstance(item, dict)]
    if order == "desc":
        items.reverse()
    if after is not None:
        place = next((place for place, item in enumerate(items) if item["id"] == after), None)
        if place is None:
            raise RequestError(f"This list has no item with id {shown(after)}.", param="after")
        items = items[place + 1 :]
    page = items[: int(limit)]
    first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
    fields = {"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": len(items) > len(page)}
    return wire.encode(fields)


def item_prefix(item: Mapping[str, Json]) -> str:
    """Return the prefix for the item's id."""
    return _PREFIXES.get(item.get("type") or "message", "item")


def complete_item(item: Mapping[str, Json], owner: str, place: int) -> dict[str, Json]:
    """Return the item with every field that clients expect in a list: type, id, and content as parts."""
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
