"""An upstream that knows its whole reply, continues it from any given beginning, and fails where the test wants.

The server is independent of the library: it finds the beginning in the request as a real server would, and writes the
rest in pieces that depend on the position alone, like tokens.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen
from support.dialects import SAYS, Ask, Got, path, read, write
from support.protocol_validators import VALIDATORS
from support.validators import assert_valid

from streamtool.core.errors import UpstreamError, UpstreamTimeout
from streamtool.exchange.record import Record
from streamtool.middleware import ToolMiddleware
from streamtool.models.engines import ENGINES, FoundEngine
from streamtool.settings import Settings
from streamtool.testing import Die, Hang, Recorded, Script, ScriptedUpstream, status, stream_asgi

TOKEN = re.compile(r"</?[^\s<>]+>| ?\w{1,4}|[^\w\s]{1,3}|\s+")
"""The server's tokens."""
KINDS = ("completions", "llama.cpp", "vLLM", "ollama")
"""The kinds of upstreams."""
COMPLETING = "llama.cpp over completions"
"""A further kind, whose protocol and engine are both known."""
PROTOCOLS = {"completions": "completions", "ollama": "ollama", COMPLETING: "completions"}
"""The protocols of the kinds that do not speak `chat`."""
ENGINE = {"llama.cpp": "llama.cpp", "vLLM": "vLLM", "ollama": "Ollama", COMPLETING: "llama.cpp"}

ERRORS = {"reset": UpstreamError("the connection broke"), "stall": UpstreamTimeout("the upstream is silent")}
"""The exceptions that end a connection."""


@frozen
class Fault:
    """A failure of one reply."""

    at: int
    """Number of characters of the whole reply that precede it."""
    how: str
    """`reset` (an exception), `stall` (a timeout), `hang` (silence), `fin` (the body ends), `error` (an event that
    reports an error), `length`, or `broken` (the model writes something else, and ends its reply).
    """
    bad: str = ""
    """The text that the model writes at the place of a `broken` reply."""


def protocol_of(kind: str) -> str:
    return PROTOCOLS.get(kind, "chat")


class Continuing:
    """A scripted upstream of this kind. Each request uses the next fault, and those after the last one none.

    `repeats` means that a continued reply begins with the given text. `instead` is a reply that the upstream gives once
    to the first request that contains a beginning.
    """

    def __init__(
        self,
        kind: str,
        whole: str,
        *faults: Fault | None,
        repeats: bool = False,
        instead: Sequence[str] = (),
        statuses: Sequence[int] = (),
        tokens: Callable[[str], list[str]] = TOKEN.findall,
    ) -> None:
        self.kind = kind
        self.whole = whole
        self.faults = list(faults)
        self.repeats = repeats
        self.instead = list(instead)
        self.statuses = list(statuses)
        self.tokens = tokens
        self.beginnings: list[str] = []
        self.app = ScriptedUpstream(self.reply)

    @property
    def requests(self) -> list[Recorded]:
        return self.app.requests

    def reply(self, request: Recorded) -> Script:
        """Return the reply to one request."""
        given = self.beginning(request.json)
        self.beginnings.append(given)
        if len(self.beginnings) > 1 and self.statuses:
            return status(self.statuses.pop(0))
        fault = self.faults.pop(0) if self.faults else None
        if given and self.instead:
            rest, fault = self.instead.pop(0), None
        else:
            assert self.whole.startswith(given), (given, self.whole)
            rest = self.whole if self.repeats else self.whole[len(given) :]
        first = 0 if self.repeats else len(given)
        end = len(rest) if fault is None else max(0, fault.at - first)
        pieces, place = [], 0
        for token in self.tokens(rest):
            pieces.append(token[: max(0, end - place)])
            place += len(token)
        how = "stop" if fault is None else fault.how
        ends = {"reset": "die", "stall": "die", "hang": "die", "fin": "die", "broken": "stop"}.get(how, how)
        if fault is not None:
            pieces += self.tokens(fault.bad)
        steps = tuple(SAYS[protocol_of(self.kind)](self.deltas([piece for piece in pieces if piece], how), ends))
        if how in ERRORS:
            steps = (*steps, Die(ERRORS[how]))  # type: ignore[assignment]
        if how == "hang":
            steps = (*steps, Hang())  # type: ignore[assignment]
        media = "application/x-ndjson" if self.kind == "ollama" else "text/event-stream"
        return Script(steps, content_type=media)

    def deltas(self, tokens: list[str], how: str) -> list[str]:
        """Return the deltas in which the server sends these tokens of a reply that ends in this way."""
        return tokens

    def beginning(self, body: Mapping[str, Any]) -> str:
        """Return the beginning of the reply that the request contains."""
        if protocol_of(self.kind) == "completions":
            return str(body["prompt"]).rpartition("<|im_start|>assistant\n")[2]
        last = body["messages"][-1]
        if last["role"] != "assistant":
            assert "continue_final_message" not in body
            return ""
        if self.kind == "vLLM":
            assert body["continue_final_message"] is True
            assert body["add_generation_prompt"] is False
        return str(last["content"])


def engine_of(kind: str) -> FoundEngine | None:
    """Return the recognized server of this kind of upstream."""
    name = ENGINE.get(kind)
    return None if name is None else FoundEngine(next(row for row in ENGINES if row.name == name))


def settings_for(kind: str, **given: Any) -> Settings:
    """Return the settings with one upstream of this kind, at a URL that is never used."""
    upstream = {"url": "http://127.0.0.1:9/v1", "protocol": protocol_of(kind), **given.pop("table", {})}
    return Settings(upstreams={"u": upstream}, **given)


@frozen
class Talked:
    """A reply, which is valid, and its record."""

    got: Got
    record: Record
    status: int
    data: bytes

    @property
    def pair(self) -> tuple[Got, Record]:
        return self.got, self.record


async def talked(
    upstream: Continuing,
    client: str,
    ask: Ask,
    *,
    stream: bool = True,
    fields: Mapping[str, Any] | None = None,
    headers: Sequence[tuple[bytes, bytes]] = (),
    **settings: Any,
) -> Talked:
    """Send one request to this upstream, with these additional fields, headers and settings."""
    records: list[Record] = []
    app = ToolMiddleware(upstream.app, settings=settings_for(upstream.kind, **settings), on_exchange=records.append)
    found = engine_of(upstream.kind)
    if found is not None:
        app.templates.engines.note("u", found)
    request = {**write(client, evolve(ask, stream=stream)), **(fields or {})}
    body = json.dumps(request).encode()
    async with stream_asgi(app, path(client, stream=stream), body=body, headers=headers) as reply:
        data = await reply.body()
        answered = dict(reply.headers)
    if reply.status == 200:
        assert_valid(VALIDATORS[client][0 if stream else 1](data, request, headers=answered))
    (record,) = records
    return Talked(read(client, data, stream=stream), record, reply.status, data)


def seen(got: Got) -> tuple[Any, ...]:
    """Return the part of a reply that does not differ between equal replies."""
    return got.parts, got.reason, got.error, len(got.ids)


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
