"""Conversations that are kept here: items to which each response that names the conversation adds its own.

A conversation is one value under its id, rewritten whenever something is added. So it is for one request at a time: of
two that go on from it at once, the later one decides what it holds.
Source: `resources/conversations` and `types/conversations` of openai-python 3.54.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve, frozen

from streamtool.errors import NotFoundError, RequestError
from streamtool.protocols import wire
from streamtool.protocols.fields import Fields, body_fields, list_of, object_at, refused, shown
from streamtool.protocols.responses.listing import item_prefix, listed, write_list
from streamtool.settings import LimitSettings

Json = Any  # a decoded JSON value
Recall = Callable[[str], bytes | None]

CONVERSATION_ID: Final = "conv_"
"""How the id of a conversation begins."""
_MOST: Final = 20
"""Items that are added at once, as at the origin."""


@frozen
class StoredConversation:
    """A conversation that is kept."""

    id: str
    created: int
    metadata: Json
    items: tuple[Fields, ...] = ()
    """Each with its id."""
    named: int = 0
    """Items that were given an id."""

    def adding(self, items: Sequence[Fields]) -> "StoredConversation":
        """The conversation with these items behind its own."""
        added, named = list(self.items), self.named
        known = {item["id"] for item in self.items}
        for item in items:
            if item.get("id") in known:
                continue
            if not isinstance(item.get("id"), str):
                core = self.id.removeprefix(CONVERSATION_ID)
                item = {**item, "id": f"{item_prefix(item)}_{core}_{named}"}  # noqa: PLW2901
                named += 1
            added.append(item)
        return evolve(self, items=tuple(added), named=named)

    def without(self, item: str) -> "StoredConversation":
        """The conversation without the item of this id. Raises NotFoundError."""
        self.item(item)
        return evolve(self, items=tuple(one for one in self.items if one["id"] != item))

    def item(self, id: str) -> Fields:
        """The item with this id. Raises NotFoundError."""
        for place, item in enumerate(self.items):
            if item["id"] == id:
                return listed(item, self.id, place)
        raise NotFoundError(f"Item with id {shown(id)} not found in this conversation.", code="item_not_found")

    def write(self) -> bytes:
        """The conversation object as JSON."""
        return wire.encode(
            {"id": self.id, "object": "conversation", "created_at": self.created, "metadata": self.metadata}
        )

    def write_items(self, asked: Mapping[str, str]) -> bytes:
        """The list of its items; `asked` is the query. Raises RequestError."""
        return write_list(self.items, self.id, asked)

    def memory(self) -> bytes:
        """What is to be remembered under its id."""
        value = {"created": self.created, "metadata": self.metadata, "items": self.items, "named": self.named}
        return wire.encode(value)


def recalled(id: str, data: bytes | None) -> StoredConversation:
    """The conversation that was remembered under this id as `data`. Raises NotFoundError."""
    match None if data is None else wire.decode_tolerant(data):
        case {"created": int(created), "metadata": metadata, "items": [*items], "named": int(named)}:
            return StoredConversation(id, created, metadata, tuple(items), named)
    raise NotFoundError(
        f"Conversation with id {shown(id)} not found: it was deleted, is too old, or belongs to another key.",
        param="conversation",
        code="conversation_not_found",
    )


def read_conversation(id: str, recall: Recall) -> StoredConversation:
    """The conversation with this id. Raises NotFoundError, and what `recall` raises."""
    return recalled(id, recall(id))


def new_conversation(id: str, created: int, body: bytes, limits: LimitSettings) -> StoredConversation:
    """The conversation that a client asks for. Raises RequestError, TooLargeError."""
    raw = body_fields(body, limits) if body.strip() else {}
    made = StoredConversation(id, created, _metadata(raw))
    return made.adding(_items(raw)) if raw.get("items") is not None else made


def updated(conversation: StoredConversation, body: bytes, limits: LimitSettings) -> StoredConversation:
    """The conversation with other metadata. Raises RequestError, TooLargeError."""
    return evolve(conversation, metadata=_metadata(body_fields(body, limits)))


def extended(conversation: StoredConversation, body: bytes, limits: LimitSettings) -> StoredConversation:
    """The conversation with the items of the body behind its own. Raises RequestError, TooLargeError."""
    return conversation.adding(_items(body_fields(body, limits)))


def write_conversation_deleted(id: str) -> bytes:
    """The answer to who has deleted a conversation."""
    return wire.encode({"id": id, "object": "conversation.deleted", "deleted": True})


def conversation_id(raw: Fields) -> str | None:
    """The conversation that a request names. Raises RequestError."""
    match raw.get("conversation"):
        case None:
            return None
        case str(id) | {"id": str(id)}:
            if raw.get("previous_response_id") is not None:
                raise refused("conversation", "Give either `conversation` or `previous_response_id`.")
            return id
        case _:
            raise refused("conversation", "`conversation` is the id of a conversation, or an object with its `id`.")


def _metadata(raw: Fields) -> Json:
    metadata = raw.get("metadata")
    return {} if metadata is None else object_at(metadata, "metadata")


def _items(raw: Fields) -> list[Fields]:
    items = list_of(raw, "items")
    if len(items) > _MOST:
        raise RequestError(f"At most {_MOST} items are added at once.", param="items")
    return [object_at(item, f"items[{place}]", "An item is an object.") for place, item in enumerate(items)]
