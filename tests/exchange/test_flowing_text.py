"""Text that flows past the parser reaches the client exactly as text that is fed to it."""

import json
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.strategies import REPLIES, SOUP_TOOLS, cut

from statemachine import Parser
from streamtool.exchange.exchange import Exchange
from streamtool.protocols.registry import client_protocol
from streamtool.settings import Settings

PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages"}
QUICK = settings(derandomize=True, max_examples=25, deadline=None, database=None)
LONG = settings(max_examples=3_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def asked(protocol: str) -> bytes:
    """Return a request with tools."""
    request: dict[str, Any] = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Go on."}]}
    if protocol == "chat":
        tools: list[Any] = [
            {"type": "function", "function": {"name": name, "parameters": schema}}
            for name, schema in SOUP_TOOLS.items()
        ]
        return json.dumps({**request, "tools": tools}).encode()
    tools = [{"name": name.replace(".", "_"), "input_schema": {"type": "object"}} for name in SOUP_TOOLS]
    return json.dumps({**request, "max_tokens": 100, "tools": tools}).encode()


def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
    """Return a chunk of an upstream's reply."""
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    fields = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"


def reply(protocol: str, pieces: list[str], chosen: Settings) -> tuple[list[bytes], bool]:
    """Return the bytes for each piece of text, and whether the reply is complete."""
    wire = client_protocol(protocol, PATHS[protocol])
    numbers = count()
    exchange = Exchange(chosen, wire, asked(protocol), (), new_id=lambda prefix: f"{prefix}{next(numbers)}", now=1)
    exchange.request()
    exchange.respond(200, [(b"content-type", b"text/event-stream")])
    sent = [exchange.feed(chunk({"role": "assistant"}))]
    sent += [exchange.feed(chunk({"content": piece})) for piece in pieces if piece]
    sent.append(exchange.feed(chunk({}, "stop") + b"data: [DONE]\n\n") + exchange.close())
    return sent, exchange.done


@pytest.mark.parametrize("effort", [QUICK, pytest.param(LONG, marks=pytest.mark.long)], ids=["quick", "long"])
def test_flowing_text_reaches_the_client_like_fed_text(effort: settings) -> None:
    @effort
    @given(st.data(), REPLIES, st.sampled_from(sorted(PATHS)), st.sampled_from([0, 2]))
    def compare(data: st.DataObject, text: str, protocol: str, retries: int) -> None:
        chosen = Settings(retries=retries)
        for pieces in (data.draw(cut(text)), list(text)):
            found = reply(protocol, pieces, chosen)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Parser, "flow", None)
                assert reply(protocol, pieces, chosen) == found

    compare()
