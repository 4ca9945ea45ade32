"""Responses over a websocket: what its messages say.

The client sends `response.create`, the body of a request with a few fields more: `stream_id` names a lane, within which
one request follows the other, and `generate: false` only prepares for the next one. It receives the events of the
stream, one in each message, with the `stream_id` of their request. An error is told in one event, whether its request
was refused (with the status that it would have had) or had begun. `response.steer` is always refused.
Sources: `responses_client_event.py` and `responses_server_event.py` of openai-python 3.54; the guide of the API to its
websocket mode.
"""

import json
from typing import Any, Final

from attrs import field, frozen

from streamtool.errors import RequestError
from streamtool.protocols import wire
from streamtool.protocols.fields import Fields, body_fields, refused, shown, string
from streamtool.settings import LimitSettings
from streamtool.sse import Event

Json = Any  # a decoded JSON value

LANE: Final = "stream_id"
_LONGEST_LANE: Final = 256
"""Characters of a lane's name."""
_ENVELOPE: Final = frozenset(("type", LANE, "generate", "background"))
"""Fields that only a message has, or that mean nothing in one."""


@frozen
class SocketRequest:
    """A request that came as a message."""

    body: bytes = field(repr=False)
    """As it would come over HTTP."""
    lane: str | None
    """None: the lane without a name."""
    stored: bool
    generates: bool
    """The upstream is asked; else the request only prepares for the next one."""


class SteerRefused(Exception):
    """A client wants to add to a response while it is made; `message` tells it that this cannot be done."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def read_message(data: bytes, limits: LimitSettings) -> SocketRequest:
    """The request in a client's message. Raises RequestError, SteerRefused."""
    raw = body_fields(data, limits)
    match raw.get("type"):
        case "response.create":
            pass
        case "response.steer":
            raise SteerRefused(_steer_failed(raw))
        case other:
            raise RequestError(f"Send `response.create`: there is no event {shown(str(other))} here.", param="type")
    lane = None if raw.get(LANE) is None else string(raw, LANE)
    if lane is not None and not 0 < len(lane) <= _LONGEST_LANE:
        raise refused(LANE, f"`{LANE}` has 1 to {_LONGEST_LANE} characters.")
    if raw.get("background"):
        raise refused("background", "No response is made in the background over a websocket: ask for it with a POST.")
    prewarms = isinstance(cache := raw.get("prompt_cache_options"), dict) and cache.get("prewarm") is True
    body = {name: value for name, value in raw.items() if name not in _ENVELOPE}
    return SocketRequest(
        wire.encode({**body, "stream": True}),
        lane,
        stored=raw.get("store") is not False,
        generates=raw.get("generate") is not False and not prewarms,
    )


def lane_of(data: bytes) -> str | None:
    """The lane that a message names which could not be read as a whole."""
    try:
        found = wire.decode_tolerant(data)
    except ValueError:
        return None
    lane = found.get(LANE) if isinstance(found, dict) else None
    return lane if isinstance(lane, str) and len(lane) <= _LONGEST_LANE else None


def write_event(event: Event, lane: str | None) -> str:
    """The message that tells of an event of the stream."""
    if event.name == "error":
        told = wire.decode_tolerant(event.data)
        number = told.get("sequence_number")
        error = {"type": "server_error", "code": None, "param": None, **_without(told, "type", "sequence_number")}
        return _message({"type": "error", "error": error, "sequence_number": number}, lane)
    if lane is None:
        return event.data.decode("utf-8", "replace")
    return f'{{"{LANE}":{json.dumps(lane)},{event.data.decode("utf-8", "replace")[1:]}'


def write_refusal(status: int, body: bytes, lane: str | None, retry_after: str = "") -> str:
    """The message that tells of a request which was answered with an error of this status."""
    try:
        error = wire.decode_tolerant(body)["error"]
        error = {"type": error["type"], "message": error["message"], **_without(error, "type", "message")}
    except (ValueError, KeyError, TypeError):
        error = {"type": "server_error", "code": None, "message": f"The upstream answered with status {status}."}
    if retry_after:
        error["headers"] = {"retry-after": retry_after}
    return _message({"type": "error", "status": status, "error": error}, lane)


def write_whole(body: bytes, lane: str | None) -> str:
    """The message that tells of a response which did not come as a stream."""
    return _message({"type": "response.completed", "sequence_number": 0, "response": wire.decode_tolerant(body)}, lane)


def _steer_failed(raw: Fields) -> str:
    steer = {name: raw.get(name) for name in ("input", "previous_response_id")}
    error = {
        "type": "invalid_request_error",
        "code": "steering_not_supported",
        "message": "A response cannot be added to while it is made: send the input with the next `response.create`.",
    }
    return _message({"type": "response.steer.failed", "sequence_number": 0, "error": error, "steer": steer}, None)


def _without(fields: dict[str, Json], *names: str) -> dict[str, Json]:
    return {name: value for name, value in fields.items() if name not in names}


def _message(fields: dict[str, Json], lane: str | None) -> str:
    return wire.encode(fields if lane is None else {**fields, LANE: lane}).decode("utf-8", "replace")
