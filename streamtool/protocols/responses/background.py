"""Stored state of a background response, including the part that clients can read before the response is complete.

In addition to the head and the items, which are stored for every response (`memory`), the store contains up to four
kinds of entries for a background response: the time until which the response's server is assumed to be alive; whether a
client has cancelled the response; if the client requested a stream, the response's events in pieces; and, until the
response ends, the journal from which another process can continue it. Any process can therefore handle requests about a
response that another process is generating. New requests can continue a response only once it is complete; until then,
the entry with its items includes its status. Source:
`resources/responses/responses.py` of openai-python 3.54 (`retrieve` with `starting_after`, `cancel`).
"""

from collections.abc import Mapping
from typing import Final

from streamtool.core.conversation import Conversation
from streamtool.core.json_value import Json
from streamtool.protocols.responses.memory import head_key, items_of
from streamtool.protocols.shared import wire

UNFINISHED: Final = frozenset({"queued", "in_progress"})
"""Statuses of a response that is still being generated."""
ENDED_EARLY: Final = frozenset({"failed", "cancelled"})
"""Statuses of a response that ended before it was complete."""
BREAK: Final = b"\n\n"
"""Terminator of an event."""
_LOST: Final = {
    "code": "server_error",
    "message": "The server that was generating this response has stopped; create the response again.",
}
_LOST_WITH_TOOLS: Final = {
    "code": "server_error",
    "message": "The server that was generating this response has stopped. It may have executed tools, so the response "
    "is not continued: check their effects, then create the response again.",
}


def lease_key(id: str) -> str:
    """Return the store key of a response's lease, which is the Unix time until which its server is assumed to be
    alive.
    """
    return f"lease {id}"


def journal_key(id: str, piece: int | None = None) -> str:
    """Return the store key of one piece of the journal, or of the request that it begins with."""
    return f"journal {id}" if piece is None else f"journal {id} {piece}"


def cancel_key(id: str) -> str:
    """Return the store key that records a client's cancellation of a response."""
    return f"cancel {id}"


def events_key(id: str, piece: int | None = None) -> str:
    """Return the store key of one piece of the events. If `piece` is None, return the key of the entry that records how
    many pieces there are and whether the events are complete.
    """
    return f"events {id}" if piece is None else f"events {id} {piece}"


def last_response(events: bytes) -> dict[str, Json]:
    """Return the response object in the last event."""
    _, _, data = events.rstrip().rpartition(b"\ndata: ")
    response: dict[str, Json] = wire.decode_tolerant(data)["response"]
    return response


def unfinished_entries(conversation: Conversation, response: Mapping[str, Json]) -> list[tuple[str, bytes]]:
    """Return the store entries of an unfinished, failed or cancelled response, as keys and values."""
    head = dict(response)
    items = {"input": items_of(conversation), "output": head.pop("output"), "status": head["status"]}
    return [(head["id"], wire.encode(items)), (head_key(head["id"]), wire.encode(head))]


def failed_response(response: Mapping[str, Json], *, hosted: bool = False) -> dict[str, Json]:
    """Return the response with the status `failed` and an error stating that its server has stopped. `hosted` means
    that the server has executed its tools.
    """
    return {**response, "status": "failed", "error": _LOST_WITH_TOOLS if hosted else _LOST}


def failed_events(response: Mapping[str, Json], number: int) -> bytes:
    """Return the events that end the stream of a response from `failed_response`. `number` is the first event's
    sequence number.
    """
    why = response["error"] if isinstance(response["error"], Mapping) else _LOST
    error = {"type": "error", "sequence_number": number, **why, "param": None}
    failed = {"type": "response.failed", "sequence_number": number + 1, "response": response}
    return b"event: error\ndata: %b\n\nevent: response.failed\ndata: %b\n\n" % (wire.encode(error), wire.encode(failed))


def skip_events(events: bytes, count: int) -> tuple[bytes, int]:
    """Return the events without the first `count` events, and the number of further events to skip."""
    begin = 0
    while count and begin < len(events):
        begin = events.index(BREAK, begin) + len(BREAK)
        count -= 1
    return events[begin:], count
