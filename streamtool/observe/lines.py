"""The events of an exchange as lines of plain values, for recordings and for the inspector.

Each line is an object with a `type`; most include `seconds`, the time since the request:

    exchange    the client's request (`request`), the last user's text (`asked`), the protocols, models and versions
    attempt     a request to the upstream (`body`)
    answer      the status of the upstream's response
    parser      a new parser for a choice; `made_with` contains its options if they differ from the previous parser's
    text        text that was fed to a parser, its events, its state afterwards, and the number of buffered characters
    close       the end of a parser, and its last events
    waits       from here on, output from a parser is buffered for the reason `why`, or is not buffered if `why` is ""
    quotation   a call in the latest events is a quotation, and is therefore sent as text, for the reason `why`
    sent        events that the client received, and their bytes (`data`)
    record      the end of the exchange, with the fields of the log
    cut         the end of the recording, because it has reached its maximum size
    differs     the exchange could not be repeated exactly (`why`: an exception, or `another result`), so the
                lines before this one may be wrong

The lines about parsers suffice to replay the exchange. A line never contains headers, and request fields that contain
keys have their values replaced.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from attrs import asdict, define, field

import statemachine
from streamtool.core.conversation import Message
from streamtool.core.json_value import Json
from streamtool.core.reply import ReplyEvent, ReplyFailure, ReplyFinish, ReplyTextDelta
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.interfaces import UpstreamRequest
from streamtool.exchange.listener import FedText, ParserOptions
from streamtool.exchange.record import Record
from streamtool.forcing.rules import AnyName
from streamtool.observe.logs import fields
from streamtool.observe.parser_events import event_as_json, type_name
from streamtool.protocols.shared.wire import decode_tolerant

VERSION: Final = 1
"""Version of the line format."""
Line = dict[str, Json]
SHORT: Final = 80
"""Maximum number of characters of the user's text and of the first call in a list entry."""
_SECRET_FIELDS = frozenset(
    ("authorization", "authorization_token", "api_key", "apikey", "access_token", "token", "x-api-key", "password")
)
"""Request fields that contain keys, such as the key for an MCP server that the upstream calls."""


def exchange_line(exchange: Exchange, request: Json) -> Line:
    """Return the line for the client's request, whose body is `request`."""
    asked, model = exchange.conversation, exchange.plan.model
    return {
        "type": "exchange",
        "trace": VERSION,
        "streamtool": _version(),
        "request_id": exchange.request_id,
        "protocol": asked.protocol,
        "upstream_protocol": exchange.plan.upstream.NAME,
        "model": asked.model,
        "upstream_model": model.name,
        "mode": exchange.plan.mode,
        "format": model.format,
        "stream": asked.stream,
        "frame": model.prompt.results.frame,
        "asked": _asked(asked.messages),
        "request": request,
    }


def _asked(messages: Sequence[Message]) -> str:
    """Return the last user's text in one short line; after results, it begins with an arrow."""
    text = next((message.text for message in reversed(messages) if message.role == "user" and message.text.strip()), "")
    line = " ".join(text[: 2 * SHORT].split())
    arrow = "↩ " if messages and messages[-1].results else ""
    return arrow + (line if len(line) <= SHORT else f"{line[: SHORT - 1]}…")


def attempt_line(seconds: float, request: UpstreamRequest) -> Line:
    """Return the line for a request to the upstream."""
    try:
        body = strip_secrets(decode_tolerant(request.body))
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
    """Return the line for the status of the upstream's response."""
    return {"type": "answer", "seconds": seconds, "status": status}


@define(eq=False)
class ParserLines:
    """The lines for new parsers. They number the parsers, and include a parser's options if they differ from the
    previous parser's.
    """

    _count: int = field(default=0, init=False)
    _made_with: ParserOptions | None = field(default=None, init=False)
    _any_name: bool = field(default=False, init=False)

    def line(self, seconds: float, choice: int, options: ParserOptions | None) -> Line:
        """Return the line for the next parser."""
        number, self._count = self._count, self._count + 1
        line: Line = {"type": "parser", "seconds": seconds, "parser": number, "choice": choice}
        any_name = options is not None and isinstance(options.tools, AnyName)  # which equality ignores
        if number == 0 or options != self._made_with or any_name != self._any_name:
            self._any_name = any_name
            self._made_with = options
            line["made_with"] = None if options is None else options_as_json(options)
        return line


def text_line(seconds: float, fed: FedText, events: Sequence[statemachine.Event], *, state: str, held: int) -> Line:
    """Return the line for text that was fed to a parser, with the parser's `events`, and its `state` afterwards."""
    number, text = fed
    shown = [event_as_json(event) for event in events]
    return {
        "type": "text",
        "seconds": seconds,
        "parser": number,
        "text": text,
        "state": state,
        "held": held,
        "events": shown,
    }


def close_line(
    seconds: float, number: int, reason: str | None, state: str, events: Sequence[statemachine.Event]
) -> Line:
    """Return the line for a parser that was closed."""
    shown = [event_as_json(event) for event in events]
    return {"type": "close", "seconds": seconds, "parser": number, "reason": reason, "state": state, "events": shown}


def waits_line(seconds: float, why: str) -> Line:
    """Return the line that gives the reason why parser output is being buffered; "" means that it no longer is."""
    return {"type": "waits", "seconds": seconds, "why": why}


def quotation_line(seconds: float, choice: int, why: str) -> Line:
    """Return the line for a quotation."""
    return {"type": "quotation", "seconds": seconds, "choice": choice, "why": why}


def sent_line(seconds: float, events: Sequence[ReplyEvent], data: bytes) -> Line:
    """Return the line for events that the client received."""
    shown = [reply_event_as_json(event) for event in events]
    return {"type": "sent", "seconds": seconds, "events": shown, "data": data.decode("utf-8", "replace")}


def record_line(record: Record, *, contents: bool = True) -> Line:
    """Return the last line. Unless `contents` is true, omit all fields that may quote messages."""
    return {"type": "record", **fields(record, contents=contents)}


def cut_line(seconds: float) -> Line:
    """Return the last line of a recording that has reached its maximum size."""
    return {"type": "cut", "seconds": seconds}


def differs_line(seconds: float, why: str) -> Line:
    """Return the line after those of an exchange that could not be repeated exactly."""
    return {"type": "differs", "seconds": seconds, "why": why}


# --- contents of the lines -------------------------------------------------------------------------------------------


def reply_event_as_json(event: ReplyEvent) -> dict[str, Json]:
    """Return a reply event as plain values."""
    match event:
        case ReplyFailure(error=error):
            return {"type": "failure", "status": error.status, "kind": error.kind, "message": error.message}
        case ReplyFinish(reason=reason):
            return {"type": "finish", **asdict(event), "reason": reason.value}
        case ReplyTextDelta():
            return {"type": "text_delta", "choice": event.choice, "text": event.text}
        case _:
            return {"type": type_name(type(event)), **asdict(event)}


def strip_secrets(value: Json, depth: int = 8) -> Json:
    """Return a request body without the values of fields that contain keys. Only parts that change are copied."""
    if depth and isinstance(value, Mapping):
        return {
            key: "(left out)" if _bears_key(str(key).lower(), item) else strip_secrets(item, depth - 1)
            for key, item in value.items()
        }
    if depth and isinstance(value, list | tuple):
        return [strip_secrets(item, depth - 1) for item in value]
    return value


def _bears_key(key: str, value: Json) -> bool:
    if key in _SECRET_FIELDS:
        return isinstance(value, str)
    return key == "headers" and isinstance(value, Mapping) and all(isinstance(item, str) for item in value.values())


@cache
def _version() -> str:
    try:
        return version("streamtool")
    except PackageNotFoundError:  # run from a source tree without being installed
        return "unknown"


def options_as_json(options: ParserOptions) -> dict[str, Json]:
    """Return parser options as plain values."""
    made_with = asdict(options, recurse=False)
    made_with["tools"] = dict(options.tools)
    made_with["any_name"] = isinstance(options.tools, AnyName)
    made_with["limits"] = asdict(options.limits)
    return made_with


def options_from_json(made_with: Mapping[str, Json]) -> ParserOptions:
    """Return the options that `options_as_json` was given. Raises TypeError, KeyError or AttributeError."""
    given = dict(made_with)
    any_name = given.pop("any_name")
    given["tools"] = AnyName(given["tools"]) if any_name else given["tools"]
    given["formats"] = None if given["formats"] is None else tuple(given["formats"])
    given["limits"] = statemachine.Limits(**given["limits"])
    return ParserOptions(**given)
