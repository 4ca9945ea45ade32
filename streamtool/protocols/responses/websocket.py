"""Messages of the Responses protocol over a websocket.

The client sends `response.create`, which consists of a request body and additional fields: `stream_id` names a lane,
whose requests are handled one after another, and `generate: false` marks a request that only prepares for the next
request. The client receives the events of the stream, one per message, each with its request's `stream_id`. An error is
a single event, whether the request was rejected or the reply had already begun. If the request was rejected, the event
contains the HTTP status. `response.steer` is always rejected. Sources: `responses_client_event.py` and
`responses_server_event.py` of openai-python 3.54; the API guide to websocket mode.
"""

import json
from typing import Final

from attrs import field, frozen

from streamtool.core.errors import RequestError
from streamtool.core.json_value import Fields, Json
from streamtool.core.sse import ServerSentEvent
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.fields import body_fields, refused, shown, string
from streamtool.settings import LimitSettings

LANE: Final = "stream_id"
_LONGEST_LANE: Final = 256
"""Maximum length of a lane's name in characters."""
_ENVELOPE: Final = frozenset(("type", LANE, "generate", "background"))
"""Fields that exist only in websocket messages, or that have no meaning in such messages."""


@frozen
class SocketRequest:
    """Request in a client's message."""

    body: bytes = field(repr=False)
    """Body of the equivalent HTTP request."""
    lane: str | None
    """Name of the lane; None for the unnamed lane."""
    stored: bool
    generates: bool
    """Whether to send the request to the upstream. If false, the request only prepares for the next request."""


class SteerRejected(Exception):
    """Raised when a client tries to steer a response in progress. `message` is the message that rejects the attempt."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def read_message(data: bytes, limits: LimitSettings) -> SocketRequest:
    """Return the request in a client's message. Raises RequestError and SteerRejected."""
    raw = body_fields(data, limits)
    match raw.get("type"):
        case "response.create":
            pass
        case "response.steer":
            raise SteerRejected(_steer_failed(raw))
        case other:
            raise RequestError(f"Unknown event {shown(str(other))}: send `response.create`.", param="type")
    lane = None if raw.get(LANE) is None else string(raw, LANE)
    if lane is not None and not 0 < len(lane) <= _LONGEST_LANE:
        raise refused(LANE, f"`{LANE}` must have 1 to {_LONGEST_LANE} characters.")
    if raw.get("background"):
        raise refused("background", "Background responses are not available over a websocket: use a POST request.")
    prewarms = isinstance(cache := raw.get("prompt_cache_options"), dict) and cache.get("prewarm") is True
    body = {name: value for name, value in raw.items() if name not in _ENVELOPE}
    return SocketRequest(
        wire.encode({**body, "stream": True}),
        lane,
        stored=raw.get("store") is not False,
        generates=raw.get("generate") is not False and not prewarms,
    )


def lane_of(data: bytes) -> str | None:
    """Return the lane named by a message that is otherwise invalid, or None if it does not name a lane."""
    try:
        found = wire.decode_tolerant(data)
    except ValueError:
        return None
    lane = found.get(LANE) if isinstance(found, dict) else None
    return lane if isinstance(lane, str) and len(lane) <= _LONGEST_LANE else None


def write_event(event: ServerSentEvent, lane: str | None) -> str:
    """Return the message for an event in a stream."""
    if event.name == "error":
        told = wire.decode_tolerant(event.data)
        number = told.get("sequence_number")
        error = {"type": "server_error", "code": None, "param": None, **_without(told, "type", "sequence_number")}
        return _message({"type": "error", "error": error, "sequence_number": number}, lane)
    if lane is None:
        return event.data.decode("utf-8", "replace")
    return f'{{"{LANE}":{json.dumps(lane)},{event.data.decode("utf-8", "replace")[1:]}'


def write_rejection(status: int, body: bytes, lane: str | None, retry_after: str = "") -> str:
    """Return the message for a request that failed with this HTTP status."""
    try:
        error = wire.decode_tolerant(body)["error"]
        error = {"type": error["type"], "message": error["message"], **_without(error, "type", "message")}
    except (ValueError, KeyError, TypeError):
        error = {"type": "server_error", "code": None, "message": f"The upstream returned status {status}."}
    if retry_after:
        error["headers"] = {"retry-after": retry_after}
    return _message({"type": "error", "status": status, "error": error}, lane)


def write_whole(body: bytes, lane: str | None) -> str:
    """Return the message for a response that was not streamed."""
    return _message({"type": "response.completed", "sequence_number": 0, "response": wire.decode_tolerant(body)}, lane)


def _steer_failed(raw: Fields) -> str:
    steer = {name: raw.get(name) for name in ("input", "previous_response_id")}
    error = {
        "type": "invalid_request_error",
        "code": "steering_not_supported",
        "message": "A response in progress cannot be steered: send the input with the next `response.create`.",
    }
    return _message({"type": "response.steer.failed", "sequence_number": 0, "error": error, "steer": steer}, None)


def _without(fields: dict[str, Json], *names: str) -> dict[str, Json]:
    return {name: value for name, value in fields.items() if name not in names}


def _message(fields: dict[str, Json], lane: str | None) -> str:
    return wire.encode(fields if lane is None else {**fields, LANE: lane}).decode("utf-8", "replace")
