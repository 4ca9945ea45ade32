"""Stored conversations: lists of items. A list grows with every response to a request that names its conversation.

A conversation is stored as one value under its id and is rewritten with every addition. It therefore supports one
request at a time: if two requests continue it concurrently, the one that finishes last overwrites the other's items.
Source: `resources/conversations` and `types/conversations` of openai-python 3.54.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import evolve, frozen

from streamtool.core.errors import NotFoundError, RequestError
from streamtool.core.json_value import Fields, Json
from streamtool.protocols.interfaces import Recall
from streamtool.protocols.responses.listing import complete_item, item_prefix, write_list
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.fields import body_fields, list_of, object_at, refused, shown
from streamtool.settings import LimitSettings

CONVERSATION_ID: Final = "conv_"
"""Prefix of a conversation's id."""
_MOST: Final = 20
"""Maximum number of items that one request may add; the origin has the same limit."""


@frozen
class StoredConversation:
    """Conversation in the store."""

    id: str
    created: int
    metadata: Json
    items: tuple[Fields, ...] = ()
    """Items of the conversation, each with an id."""
    ids_given: int = 0
    """Number of items whose id was assigned here."""

    def with_items(self, items: Sequence[Fields]) -> "StoredConversation":
        """Return the conversation with these items appended."""
        added, named = list(self.items), self.ids_given
        known = {item["id"] for item in self.items}
        for item in items:
            if item.get("id") in known:
                continue
            if not isinstance(item.get("id"), str):
                core = self.id.removeprefix(CONVERSATION_ID)
                item = {**item, "id": f"{item_prefix(item)}_{core}_{named}"}  # noqa: PLW2901
                named += 1
            added.append(item)
        return evolve(self, items=tuple(added), ids_given=named)

    def without(self, item: str) -> "StoredConversation":
        """Return the conversation without the item with this id. Raises NotFoundError."""
        self.item(item)
        return evolve(self, items=tuple(one for one in self.items if one["id"] != item))

    def item(self, id: str) -> Fields:
        """Return the item with this id. Raises NotFoundError."""
        for place, item in enumerate(self.items):
            if item["id"] == id:
                return complete_item(item, self.id, place)
        raise NotFoundError(f"Item with id {shown(id)} not found in this conversation.", code="item_not_found")

    def write(self) -> bytes:
        """Return the conversation object as JSON."""
        return wire.encode(
            {"id": self.id, "object": "conversation", "created_at": self.created, "metadata": self.metadata}
        )

    def write_items(self, asked: Mapping[str, str]) -> bytes:
        """Return the list of the conversation's items as JSON; `asked` is the query. Raises RequestError."""
        return write_list(self.items, self.id, asked)

    def encode(self) -> bytes:
        """Return the value to store under the conversation's id."""
        value = {"created": self.created, "metadata": self.metadata, "items": self.items, "named": self.ids_given}
        return wire.encode(value)


def decode_conversation(id: str, data: bytes | None) -> StoredConversation:
    """Return the conversation that was stored under this id as `data`. Raises NotFoundError."""
    match None if data is None else wire.decode_tolerant(data):
        case {"created": int(created), "metadata": metadata, "items": [*items], "named": int(named)}:
            return StoredConversation(id, created, metadata, tuple(items), named)
    raise NotFoundError(
        f"Conversation with id {shown(id)} not found: it was deleted, has expired, or belongs to another key.",
        param="conversation",
        code="conversation_not_found",
    )


def read_conversation(id: str, recall: Recall) -> StoredConversation:
    """Return the conversation with this id. Raises NotFoundError, and any error from `recall`."""
    return decode_conversation(id, recall(id))


def new_conversation(id: str, created: int, body: bytes, limits: LimitSettings) -> StoredConversation:
    """Return the new conversation that the body describes. Raises RequestError and TooLargeError."""
    raw = body_fields(body, limits) if body.strip() else {}
    made = StoredConversation(id, created, _metadata(raw))
    return made.with_items(_items(raw)) if raw.get("items") is not None else made


def update_conversation(conversation: StoredConversation, body: bytes, limits: LimitSettings) -> StoredConversation:
    """Return the conversation with new metadata. Raises RequestError and TooLargeError."""
    return evolve(conversation, metadata=_metadata(body_fields(body, limits)))


def extend_conversation(conversation: StoredConversation, body: bytes, limits: LimitSettings) -> StoredConversation:
    """Return the conversation with the body's items appended. Raises RequestError and TooLargeError."""
    return conversation.with_items(_items(body_fields(body, limits)))


def write_conversation_deleted(id: str) -> bytes:
    """Return the JSON body that confirms the deletion of a conversation."""
    return wire.encode({"id": id, "object": "conversation.deleted", "deleted": True})


def conversation_id(raw: Fields) -> str | None:
    """Return the id of the conversation named by a request. Raises RequestError."""
    match raw.get("conversation"):
        case None:
            return None
        case str(id) | {"id": str(id)}:
            if raw.get("previous_response_id") is not None:
                raise refused("conversation", "Use either `conversation` or `previous_response_id`, not both.")
            return id
        case _:
            raise refused("conversation", "`conversation` must be a conversation id, or an object with an `id`.")


def _metadata(raw: Fields) -> Json:
    metadata = raw.get("metadata")
    return {} if metadata is None else object_at(metadata, "metadata")


def _items(raw: Fields) -> list[Fields]:
    items = list_of(raw, "items")
    if len(items) > _MOST:
        raise RequestError(f"At most {_MOST} items can be added per request.", param="items")
    return [object_at(item, f"items[{place}]", "An item must be an object.") for place, item in enumerate(items)]
