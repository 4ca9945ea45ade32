"""What is remembered of a response that is made in the background, and what a client reads of it meanwhile.

Beside the head and the items of every response (`memory`) there are under its id: until when its server is believed to
be at work, whether a client has cancelled it, and its events, in pieces, if the client has asked for a stream. So any
process can answer for a response that another one makes. Requests go on from a response only when it is complete;
until then its items say how it stands.
Source: `resources/responses/responses.py` of openai-python 3.54 (`retrieve` with `starting_after`, `cancel`).
"""

from collections.abc import Mapping
from typing import Any, Final

from streamtool.conversation import Conversation
from streamtool.protocols import wire
from streamtool.protocols.responses.memory import head_key, items_of

Json = Any  # a decoded JSON value

UNFINISHED: Final = frozenset({"queued", "in_progress"})
"""How a response stands that is still made."""
ENDED_EARLY: Final = frozenset({"failed", "cancelled"})
"""How it stands if it was never whole."""
BREAK: Final = b"\n\n"
"""What ends an event."""
_LOST: Final = {"code": "server_error", "message": "The server that made this response has stopped; create it again."}


def lease_key(id: str) -> str:
    """Under which it is remembered until when the server is believed to be at work: a time in seconds."""
    return f"lease {id}"


def cancel_key(id: str) -> str:
    """Under which it is remembered that a client has cancelled the response."""
    return f"cancel {id}"


def events_key(id: str, piece: int | None = None) -> str:
    """Under which a piece of the events is remembered; without a number: how many there are, and whether all."""
    return f"events {id}" if piece is None else f"events {id} {piece}"


def last_response(events: bytes) -> dict[str, Json]:
    """The response as the last of these events tells it."""
    _, _, data = events.rstrip().rpartition(b"\ndata: ")
    response: dict[str, Json] = wire.decode_tolerant(data)["response"]
    return response


def unfinished_memories(conversation: Conversation, response: Mapping[str, Json]) -> list[tuple[str, bytes]]:
    """What is to be remembered of a response that is not complete, or never will be, as ids and values."""
    head = dict(response)
    items = {"input": items_of(conversation), "output": head.pop("output"), "status": head["status"]}
    return [(head["id"], wire.encode(items)), (head_key(head["id"]), wire.encode(head))]


def lost(response: Mapping[str, Json]) -> dict[str, Json]:
    """The response, failed because nobody makes it any more."""
    return {**response, "status": "failed", "error": _LOST}


def lost_events(response: Mapping[str, Json], number: int) -> bytes:
    """The events that say so of a response that `lost` gave; `number` is that of the first one."""
    error = {"type": "error", "sequence_number": number, **_LOST, "param": None}
    failed = {"type": "response.failed", "sequence_number": number + 1, "response": response}
    return b"event: error\ndata: %b\n\nevent: response.failed\ndata: %b\n\n" % (wire.encode(error), wire.encode(failed))


def skip(events: bytes, count: int) -> tuple[bytes, int]:
    """The events without the first `count`, and how many of these are still to be skipped."""
    begin = 0
    while count and begin < len(events):
        begin = events.index(BREAK, begin) + len(BREAK)
        count -= 1
    return events[begin:], count
