"""References in a request to an earlier response, or to single items of earlier replies.

A client of this protocol may omit items that the server has already seen: `previous_response_id` represents all items
of an earlier request and its reply, `conversation` represents the items of a stored conversation, and an
`item_reference` represents one item of an earlier reply. `all_items` inserts these items; `store_entries` returns the
entries that must be stored for this purpose. The caller decides where and for how long values are stored; this module
handles only ids and bytes. Stored items count toward the body's size limit, so that a short request cannot expand into
a huge one.
"""

from functools import partial
from typing import Final

from attrs import define, frozen

from streamtool.core.conversation import Conversation
from streamtool.core.errors import RequestError, TooLargeError
from streamtool.core.json_value import Fields, Json
from streamtool.protocols.interfaces import Recall
from streamtool.protocols.responses.conversations import StoredConversation, conversation_id, read_conversation
from streamtool.protocols.responses.typed_calls import FORMATS_BY_TOOL
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.fields import object_at, refused, shown, string
from streamtool.settings import LimitSettings

_CALLS: Final = ("fc_", "ctc_", "fco_", "ctco_", *(f"{spelling.prefix}_" for spelling in FORMATS_BY_TOOL.values()))
"""Id prefixes of calls and results. Omitting such an item would change the meaning of a conversation."""


@frozen
class StoredInput:
    """All items of a request."""

    items: tuple[tuple[str, Json], ...]
    """Items, each with its location in the request, for error messages."""
    dropped: tuple[str, ...]
    """Notes about items that are no longer stored, for the log."""
    size: int
    """Size in bytes of the body and of all stored values that it refers to."""
    has_stored_items: bool
    """Whether the items differ from the body's because the body refers to stored items."""
    conversation: StoredConversation | None = None
    """Conversation that the request and its reply belong to."""


@define(eq=False)
class _BoundedStore:
    """Reader for stored values, which count toward the body's size limit."""

    _recall: Recall
    size: int
    _limit: int

    def data(self, identity: str, place: str) -> bytes | None:
        """Return the value stored under the id, or None if it is missing. Raises TooLargeError."""
        data = self._recall(identity)
        self.size += len(data or b"")
        if self.size > self._limit:
            sentence = f"The request and the items it refers to exceed {self._limit} bytes (limits.body)."
            raise TooLargeError(sentence, param=place, code="request_too_large")
        return data

    def value(self, identity: str, place: str) -> Json:
        """Return the decoded value stored under the id, or None if the value is missing or not JSON."""
        data = self.data(identity, place)
        if data is None:
            return None
        try:
            return wire.repaired(wire.decode_tolerant(data))
        except ValueError:
            return None


def all_items(raw: Fields, recall: Recall, limits: LimitSettings, size: int) -> StoredInput:
    """Return all items of the request: first those of the previous response or conversation, and then the request's own
    items, with references resolved.
    """
    recalled = _BoundedStore(recall, size, limits.body)
    previous, conversation = _previous(raw, recalled), _conversation(raw, recalled)
    items = [("previous_response_id", item) for item in previous]
    if conversation is not None:
        previous = list(conversation.items)
        items = [("conversation", item) for item in previous]
    dropped: list[str] = []
    value = raw.get("input")
    if isinstance(value, str):
        value = [{"type": "message", "role": "user", "content": value}]
    elif value is None and previous:
        value = []
    elif not isinstance(value, list) or not (value or previous):
        raise refused("input", "`input` is required: a string, or a list of items.")
    changed = bool(previous) or conversation is not None
    for position, item in enumerate(value):
        place = f"input[{position}]"
        fields = object_at(item, place, "An input item must be an object.")
        if _is_reference(fields):
            changed = True
            found = _referenced(fields, place, recalled)
            if found is None:
                dropped.append("reference to an unknown item")
                continue
            fields = found
        items.append((place, fields))
    return StoredInput(tuple(items), tuple(dict.fromkeys(dropped)), recalled.size, changed, conversation)


def _previous(raw: Fields, recalled: _BoundedStore) -> list[Json]:
    if raw.get("previous_response_id") is None:
        return []
    identity = string(raw, "previous_response_id")
    match recalled.value(identity, "previous_response_id"):
        case {"status": str(status)}:
            raise refused(
                "previous_response_id",
                f"Response {shown(identity)} is {status.replace('_', ' ')}: only a complete response can be continued.",
                code="previous_response_not_complete",
            )
        case {"input": [*before], "output": [*after]}:
            return [item for item in (*before, *after) if isinstance(item, dict)]
    raise refused(
        "previous_response_id",
        f"Previous response with id {shown(identity)} not found: send all items in `input` instead.",
        code="previous_response_not_found",
    )


def _conversation(raw: Fields, recalled: _BoundedStore) -> StoredConversation | None:
    id = conversation_id(raw)
    return None if id is None else read_conversation(id, partial(recalled.data, place="conversation"))


def _is_reference(fields: Fields) -> bool:
    kind = fields.get("type")
    return kind == "item_reference" or (kind is None and "role" not in fields and isinstance(fields.get("id"), str))


def _referenced(fields: Fields, place: str, recalled: _BoundedStore) -> Fields | None:
    """Return the referenced item, or None if it is unknown but may be omitted. Raises RequestError if it must not be
    omitted.
    """
    identity = string(fields, "id", place)
    item = recalled.value(identity, place)
    if isinstance(item, dict):
        return item
    if identity.startswith(_CALLS):
        raise RequestError(f"Item with id '{identity[:80]}' not found.", param=f"{place}.id")
    return None


def store_entries(conversation: Conversation, response: bytes) -> list[tuple[str, bytes]]:
    """Return the entries to store for a reply, as keys and values.

    `response` is the final response object (`ReplyWriter.response`, or the result of `write_complete`).
    """
    fields = wire.decode_tolerant(response)
    id, output = fields["id"], fields.pop("output")
    kept = conversation.raw.get("conversation")
    return [
        *([(kept.id, kept.with_items([*items_of(conversation), *output]).encode())] if kept else []),
        (id, wire.encode({"input": items_of(conversation), "output": output})),
        (head_key(id), wire.encode(fields)),
        *((item["id"], wire.encode(item)) for item in output),
    ]


def items_of(conversation: Conversation) -> list[Json]:
    """Return all input items of the request."""
    items = conversation.raw.get("input") or []
    return [{"type": "message", "role": "user", "content": items}] if isinstance(items, str) else items


def head_key(id: str) -> str:
    """Return the store key of a response's head, which is the response object without its output."""
    return f"head {id}"
