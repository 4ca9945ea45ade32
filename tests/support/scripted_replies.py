"""Scripted replies that are accepted or not, and a client that requests them."""

import json

import pytest
from support.dialects import CLIENTS, Ask, Got, path, read, said, write
from support.validators import Violation, assert_valid, validate_chat_stream

from streamtool.exchange.record import Record
from streamtool.middleware import ToolMiddleware
from streamtool.settings import Settings
from streamtool.testing import Script, ScriptedUpstream, stream_asgi

SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 1}, "s": {"type": "string"}},
    "required": ["x"],
    "additionalProperties": False,
}

TOOLS = (("ping", "Pings.", SCHEMA), ("read_file", "Reads a file.", {"type": "object", "properties": {}}))

ASK = Ask((("user", "Ping it."),), TOOLS)

CALL = '<tool_call>{"name": "ping", "arguments": {"x": 1}}</tool_call>'

CALLED = (("ping", '{"x": 1}'),)

DENIED = "I'm sorry, but I don't have access to any tools in this conversation."

BLOCKED = "I cannot access files on your computer. Please paste the content here."

ANNOUNCED = "I'll have a look. Let me check the file now."

UNKNOWN = '<tool_call>{"name": "pong", "arguments": {}}</tool_call>'

UNFIT = '<tool_call>{"name": "ping", "arguments": {"x": 0, "y": 1}}</tool_call>'

both = pytest.mark.anyio

clients = pytest.mark.parametrize("client", CLIENTS)


class ModelClient:
    """One request against scripted replies, and its result."""

    def __init__(self, *replies: str | Script, settings: Settings | None = None) -> None:
        self.upstream = ScriptedUpstream(*(said("chat", one) if isinstance(one, str) else one for one in replies))
        self.records: list[Record] = []
        self.app = ToolMiddleware(
            self.upstream, settings=settings or Settings(), app_protocol="chat", on_exchange=self.records.append
        )
        self.pieces: list[bytes] = []
        self.headers: dict[str, str] = {}

    async def ask(self, client: str, ask: Ask) -> Got:
        body = json.dumps(write(client, ask)).encode()
        async with stream_asgi(self.app, path(client, stream=ask.stream), body=body) as reply:
            self.pieces = [piece async for piece in reply]
            self.headers = reply.headers
        data = b"".join(self.pieces)
        if client == "chat" and ask.stream:
            found = validate_chat_stream(data, write(client, ask), headers=reply.headers)
            assert_valid(without_unknown_call(found, self.records[-1]))
        return read(client, data, stream=ask.stream)

    @property
    def causes(self) -> tuple[str, ...]:
        return self.records[0].attempts

    def last(self, attempt: int) -> str:
        """Return the text at the end of the model's prompt in this attempt."""
        return str(self.upstream.requests[attempt].json["messages"][-1]["content"])


def without_unknown_call(found: list[Violation], record: Record) -> list[Violation]:
    """Return the violations without those about the call of `UNKNOWN`, if the model has insisted on it."""
    return [one for one in found if record.unmet != "unknown tool" or "pong" not in one.message]


COMPLETE = Settings(arguments="complete")
