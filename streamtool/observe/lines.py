"""What happened in an exchange as lines of plain values: those of a recording, and those that the inspector reads.

The lines are objects with a `type`, most with the `seconds` since the request:

    exchange    what the client asked (`request`), the protocols, models, versions
    attempt     what the upstream was sent (`body`)
    answer      the status with which the upstream answered
    parser      a parser was made, of this choice; `made_with`: its options, where they are not those of the last one
    text        a piece of text that was fed to a parser, its state afterwards, what it holds, and its events
    close       a parser was closed, and its last events
    waits       something waits from here on that the parser has let go, and `why`; "": nothing does any more
    quotation   a call of the last events is a quotation, and text for the client: `why`
    sent        events that the client got, and the bytes in which it got them (`data`)
    record      the end, with what the log says of it
    cut         the end, because the recording reached its size

The lines of parsers suffice to do it all again. Headers never stand in a line, and fields of a request in which keys
travel are emptied.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from attrs import asdict

import statemachine
from streamtool.conversation import Json
from streamtool.exchange import Exchange, Fed, ParserOptions, Record, UpstreamRequest
from streamtool.observe.logs import fields
from streamtool.observe.parser_events import event_as_json, type_name
from streamtool.policy.rules import AnyName
from streamtool.protocols.wire import decode_tolerant
from streamtool.reply import ReplyEvent, ReplyFailure, ReplyFinish, ReplyTextDelta

VERSION: Final = 1
"""Of the lines."""
Line = dict[str, Json]
_SECRET = frozenset(
    ("authorization", "authorization_token", "api_key", "apikey", "access_token", "token", "x-api-key", "password")
)
"""Fields of a request, such as those of an MCP server that the upstream is to ask, in which keys travel."""


def exchange_line(exchange: Exchange, request: Json) -> Line:
    """What was asked; `request`: the client's body."""
    asked, model = exchange.conversation, exchange.asked.model
    return {
        "type": "exchange",
        "trace": VERSION,
        "streamtool": _version(),
        "request_id": exchange.request_id,
        "protocol": asked.protocol,
        "upstream_protocol": exchange.asked.upstream.NAME,
        "model": asked.model,
        "upstream_model": model.name,
        "mode": exchange.asked.mode,
        "format": model.format,
        "stream": asked.stream,
        "frame": model.prompt.results.frame,
        "request": request,
    }


def attempt_line(seconds: float, request: UpstreamRequest) -> Line:
    """What the upstream is sent."""
    try:
        body = without_secrets(decode_tolerant(request.body))
    except ValueError:
        body = None
    return {
        "type": "attempt",
        "seconds": seconds,
        "attempt": request.attempt,
        "upstream": request.upstream,
        "body": body,
    }


def answer_line(seconds: float, status: int) -> Line:
    """How the upstream answers."""
    return {"type": "answer", "seconds": seconds, "status": status}


class ParserLines:
    """The lines of parsers that are made: their numbers, and their options where they are others than the last ones."""

    __slots__ = ("_count", "_made_with")

    def __init__(self) -> None:
        self._count = 0
        self._made_with: ParserOptions | None = None

    def line(self, seconds: float, choice: int, options: ParserOptions | None) -> Line:
        """The line of the next parser."""
        number, self._count = self._count, self._count + 1
        line: Line = {"type": "parser", "seconds": seconds, "parser": number, "choice": choice}
        if number == 0 or options != self._made_with:
            self._made_with = options
            line["made_with"] = None if options is None else options_as_json(options)
        return line


def text_line(seconds: float, fed: Fed, events: Sequence[statemachine.Event], *, state: str, held: int) -> Line:
    """What a parser was fed, what came of it, its state and what it holds afterwards."""
    number, text = fed
    shown = [event_as_json(event) for event in events]
    return {"type": "text", "seconds": seconds, "parser": number, "text": text, "state": state, "held": held,
            "events": shown}  # fmt: skip


def close_line(
    seconds: float, number: int, reason: str | None, state: str, events: Sequence[statemachine.Event]
) -> Line:
    """A parser was closed."""
    shown = [event_as_json(event) for event in events]
    return {"type": "close", "seconds": seconds, "parser": number, "reason": reason, "state": state, "events": shown}


def waits_line(seconds: float, why: str) -> Line:
    """Something waits that the parser has let go."""
    return {"type": "waits", "seconds": seconds, "why": why}


def quotation_line(seconds: float, choice: int, why: str) -> Line:
    """A call is a quotation."""
    return {"type": "quotation", "seconds": seconds, "choice": choice, "why": why}


def sent_line(seconds: float, events: Sequence[ReplyEvent], data: bytes) -> Line:
    """What the client got."""
    shown = [reply_event_as_json(event) for event in events]
    return {"type": "sent", "seconds": seconds, "events": shown, "data": data.decode("utf-8", "replace")}


def record_line(record: Record, *, contents: bool = True) -> Line:
    """The end; without contents, nothing stands in it that may quote them."""
    return {"type": "record", **fields(record, contents=contents)}


def cut_line(seconds: float) -> Line:
    """The end, since there may be no more."""
    return {"type": "cut", "seconds": seconds}


# --- what stands in them ---------------------------------------------------------------------------------------------


def reply_event_as_json(event: ReplyEvent) -> dict[str, Json]:
    """An event of a reply."""
    match event:
        case ReplyFailure(error=error):
            return {"type": "failure", "status": error.status, "kind": error.kind, "message": error.message}
        case ReplyFinish(reason=reason):
            return {"type": "finish", **asdict(event), "reason": reason.value}
        case ReplyTextDelta():
            return {"type": "text_delta", "choice": event.choice, "text": event.text}
        case _:
            return {"type": type_name(type(event)), **asdict(event)}


def without_secrets(value: Json, depth: int = 8) -> Json:
    """A request's body in which fields that bear keys are emptied; a copy as far as that is needed."""
    if isinstance(value, Mapping):
        return {
            key: "(left out)" if _bears_key(str(key).lower(), item) else without_secrets(item, depth - 1)
            for key, item in value.items()
        } if depth else value  # fmt: skip
    if isinstance(value, list | tuple):
        return [without_secrets(item, depth - 1) for item in value] if depth else value
    return value


def _bears_key(key: str, value: Json) -> bool:
    if key in _SECRET:
        return isinstance(value, str)
    return key == "headers" and isinstance(value, Mapping) and all(isinstance(item, str) for item in value.values())


@cache
def _version() -> str:
    try:
        return version("streamtool")
    except PackageNotFoundError:  # used from a folder, not installed
        return "unknown"


def options_as_json(options: ParserOptions) -> dict[str, Json]:
    """What a parser was made with, as plain values."""
    made_with = asdict(options, recurse=False)
    made_with["tools"] = dict(options.tools)
    made_with["any_name"] = isinstance(options.tools, AnyName)
    made_with["limits"] = asdict(options.limits)
    return made_with


def options_from_json(made_with: Mapping[str, Json]) -> ParserOptions:
    """What `options_as_json` was given. Raises TypeError, KeyError or AttributeError for anything else."""
    given = dict(made_with)
    any_name = given.pop("any_name")
    given["tools"] = AnyName(given["tools"]) if any_name else given["tools"]
    given["formats"] = None if given["formats"] is None else tuple(given["formats"])
    given["limits"] = statemachine.Limits(**given["limits"])
    return ParserOptions(**given)
