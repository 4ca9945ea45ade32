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
from streamtool.protocols.registry import UPSTREAMS, client_protocol
from streamtool.settings import LimitSettings, Settings

PATHS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "messages",
    "/v1/responses": "responses",
    "/v1beta/models/m:streamGenerateContent": "gemini",
    "/v1beta/models/m:streamGenerateContent?alt=sse": "gemini",
    "/api/chat": "ollama",
}
"""The protocols by the paths of streams."""
QUICK = settings(derandomize=True, max_examples=40, deadline=None, database=None)
LONG = settings(max_examples=3_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def asked(path: str) -> bytes:
    """Return a request with tools."""
    chat = {
        "model": "m",
        "stream": True,
        "messages": [{"role": "user", "content": "Go on."}],
        "tools": [
            {"type": "function", "function": {"name": name.replace(".", "_"), "parameters": schema}}
            for name, schema in SOUP_TOOLS.items()
        ],
    }
    read = client_protocol("chat").read_request(json.dumps(chat).encode(), LimitSettings())
    return UPSTREAMS[PATHS[path]].write_request(read, Settings().for_model("m"), stream=True)


def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
    """Return a chunk of an upstream's reply."""
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    fields = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"


def reply(path: str, pieces: list[str], chosen: Settings) -> tuple[list[bytes], bool]:
    """Return the bytes for each piece of text, and whether the reply is complete."""
    numbers = count()
    wire = client_protocol(PATHS[path], path)
    exchange = Exchange(chosen, wire, asked(path), (), new_id=lambda prefix: f"{prefix}{next(numbers)}", now=1)
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
    def compare(data: st.DataObject, text: str, path: str, retries: int) -> None:
        chosen = Settings(retries=retries, app_protocol="chat")
        for pieces in (data.draw(cut(text)), list(text)):
            found = reply(path, pieces, chosen)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Parser, "flow", None)
                assert reply(path, pieces, chosen) == found

    compare()


def test_an_array_begins_and_ends_with_its_brackets() -> None:
    pieces = ["Hello,", " the file", " contains", " nothing", " else."]
    sent, _ = reply("/v1beta/models/m:streamGenerateContent", pieces, Settings(app_protocol="chat"))
    chunks = json.loads(b"".join(sent))
    text = "".join(part["text"] for one in chunks for part in one["candidates"][0]["content"]["parts"])
    assert text == "".join(pieces)
