"""What a request refers to without sending it: an earlier response, or single items of earlier replies.

A client of this protocol may leave out what the server has already seen: `previous_response_id` stands for all items of
an earlier request and its reply, `conversation` for those that it holds, an `item_reference` for one item that an
earlier reply made. `all_items` puts the items back; `memories` says what has to be kept so that it can. Where and for
how long is the caller's business: here are only ids and bytes. What is recalled counts as if it stood in the body, so a
short request cannot become a huge one.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from attrs import frozen

from streamtool.conversation import Conversation
from streamtool.errors import RequestError, TooLargeError
from streamtool.protocols import wire
from streamtool.protocols.fields import Fields, object_at, refused, shown, string
from streamtool.protocols.responses.conversations import StoredConversation, conversation_id, read_conversation
from streamtool.protocols.responses.typed_calls import SPELLINGS
from streamtool.settings import LimitSettings

Json = Any  # a decoded JSON value
Recall = Callable[[str], bytes | None]
"""Gives what was remembered under an id; None: nothing, or no more."""

_CALLS: Final = ("fc_", "ctc_", "fco_", "ctco_", *(f"{spelling.prefix}_" for spelling in SPELLINGS.values()))
"""How the ids of calls and results begin: without them a conversation has another meaning."""


@frozen
class StoredInput:
    """All items of a request."""

    items: tuple[tuple[str, Json], ...]
    """Each with its place in the request, which errors name."""
    dropped: tuple[str, ...]
    """What is not known any more, for the log."""
    size: int
    """Bytes of the body and of all that was recalled."""
    changed: bool
    """Not all of it stood in the body."""
    conversation: StoredConversation | None = None
    """The one to which the request and its reply belong."""


class _Recalled:
    """Recalls values within the limit of a body."""

    __slots__ = ("_limit", "_recall", "size")

    def __init__(self, recall: Recall, size: int, limit: int) -> None:
        self._recall = recall
        self._limit = limit
        self.size = size

    def data(self, identity: str, place: str) -> bytes | None:
        """What was remembered under the id; None if nothing was."""
        data = self._recall(identity)
        self.size += len(data or b"")
        if self.size > self._limit:
            sentence = f"The request and what it refers to are together larger than {self._limit} bytes (limits.body)."
            raise TooLargeError(sentence, param=place, code="request_too_large")
        return data

    def value(self, identity: str, place: str) -> Json:
        """The same, decoded."""
        data = self.data(identity, place)
        if data is None:
            return None
        try:
            return wire.repaired(wire.decode_tolerant(data))
        except ValueError:
            return None


def all_items(raw: Fields, recall: Recall, limits: LimitSettings, size: int) -> StoredInput:
    """The items that the request means: those of the earlier response, then its own, references replaced by items."""
    recalled = _Recalled(recall, size, limits.body)
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
        raise refused("input", "Give `input`: a string, or a list of items.")
    changed = bool(previous) or conversation is not None
    for position, item in enumerate(value):
        place = f"input[{position}]"
        fields = object_at(item, place, "An input item is an object.")
        if _is_reference(fields):
            changed = True
            found = _referenced(fields, place, recalled)
            if found is None:
                dropped.append("reference to an item that is not known")
                continue
            fields = found
        items.append((place, fields))
    return StoredInput(tuple(items), tuple(dict.fromkeys(dropped)), recalled.size, changed, conversation)


def _previous(raw: Fields, recalled: _Recalled) -> list[Json]:
    if raw.get("previous_response_id") is None:
        return []
    identity = string(raw, "previous_response_id")
    match recalled.value(identity, "previous_response_id"):
        case {"status": str(status)}:
            raise refused(
                "previous_response_id",
                f"Response {shown(identity)} is {status.replace('_', ' ')}: only what is complete can be gone on from.",
                code="previous_response_not_complete",
            )
        case {"input": [*before], "output": [*after]}:
            return [item for item in (*before, *after) if isinstance(item, dict)]
    raise refused(
        "previous_response_id",
        f"Previous response with id {shown(identity)} not found: send all items in `input` instead.",
        code="previous_response_not_found",
    )


def _conversation(raw: Fields, recalled: _Recalled) -> StoredConversation | None:
    id = conversation_id(raw)
    return None if id is None else read_conversation(id, partial(recalled.data, place="conversation"))


def _is_reference(fields: Fields) -> bool:
    kind = fields.get("type")
    return kind == "item_reference" or (kind is None and "role" not in fields and isinstance(fields.get("id"), str))


def _referenced(fields: Fields, place: str, recalled: _Recalled) -> Fields | None:
    """The item; None if it is not known and may be missing."""
    identity = string(fields, "id", place)
    item = recalled.value(identity, place)
    if isinstance(item, dict):
        return item
    if identity.startswith(_CALLS):
        raise RequestError(f"Item with id '{identity[:80]}' not found.", param=f"{place}.id")
    return None


def memories(conversation: Conversation, response: bytes) -> list[tuple[str, bytes]]:
    """What is to be remembered of a reply, as ids and values.

    `response` is the final response object (`ReplyWriter.response`, or what `write_complete` gave).
    """
    fields = wire.decode_tolerant(response)
    id, output = fields["id"], fields.pop("output")
    kept = conversation.raw.get("conversation")
    return [
        *([(kept.id, kept.adding([*items_of(conversation), *output]).memory())] if kept else []),
        (id, wire.encode({"input": items_of(conversation), "output": output})),
        (head_key(id), wire.encode(fields)),
        *((item["id"], wire.encode(item)) for item in output),
    ]


def items_of(conversation: Conversation) -> list[Json]:
    """All items of the request."""
    items = conversation.raw.get("input") or []
    return [{"type": "message", "role": "user", "content": items}] if isinstance(items, str) else items


def head_key(id: str) -> str:
    """Under which a response is kept without its items, for those who ask for it again."""
    return f"head {id}"
