"""Cost of a request, in calls: from the client's body to the upstream's first byte.

Calls are counted by the interpreter's own events, so a busy machine makes no difference (`benchmarks/request.py`).
"""

import gzip
import json
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import httpx
import pytest
from support.agent_requests import AgentRequest, claude_code, codex, opencode
from support.dialects import PATHS

from streamtool.asgi.off_loop import is_large
from streamtool.proxy import Proxy
from streamtool.settings import Settings
from streamtool.testing import stream_asgi

sys.path.append(str(Path(__file__).parent.parent.parent / "benchmarks"))
import request

TYPE = (b"content-type", b"application/json")
KEY = (b"authorization", b"Bearer sk-of-the-client")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the benchmark runs on Linux")
@pytest.mark.parametrize(
    ("body", "most"), [*zip((request.asked(), request.asked(tools=1, turns=0)), request.CALLS, strict=True)]
)
def test_a_request_takes_few_calls_before_the_upstreams_first_byte(body: bytes, most: int):
    ours = request.counted(body).ours()
    assert 0 < sum(ours.values()) < most


class Answers(httpx.AsyncBaseTransport):
    """An upstream that answers each request with one word."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path != "/v1/chat/completions":
            return httpx.Response(404)
        choice = {"index": 0, "delta": {"content": "Hello."}, "finish_reason": "stop"}
        event = f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n"
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=event.encode())


@contextmanager
def calls_of(*names: str) -> Iterator[list[str]]:
    """Collect the calls of these functions, by qualified name, in this thread and in those that start inside the block."""
    found: list[str] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_qualname in names and request.begins(frame):
            found.append(frame.f_code.co_qualname)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def ask(
    app: Any,
    body: bytes,
    calls: list[str],
    headers: Iterable[tuple[bytes, bytes]] = (),
    path: str = PATHS["chat"],
) -> list[str]:
    """Return the calls that were collected while the app answered one request."""

    async def main() -> list[str]:
        found: list[str] = []
        for _ in range(2):  # the first one learns, compiles and imports
            calls.clear()
            async with stream_asgi(app, path, body=body, headers=[KEY, TYPE, *headers]) as reply:
                assert b"Hello." in await reply.body()
            found = list(calls)
        return found

    return anyio.run(main)


BODIES = {"small": request.asked("m", tools=1, turns=0), "large": request.asked("m", tools=120)}


@pytest.mark.parametrize("size", BODIES)
@pytest.mark.parametrize("limits", [{}, {"limits": {"tokens_per_minute": 10**9, "requests_per_minute": 10**6}}])
def test_the_clients_key_is_hashed_once(size: str, limits: dict[str, Any]):
    assert is_large(BODIES[size], len(BODIES[size])) is (size == "large")
    with calls_of("client_of") as calls:
        app = Proxy(Settings(upstreams={"u": {"url": "http://u.test"}}, **limits), transport=Answers())  # type: ignore[dict-item]
        assert ask(app, BODIES[size], calls) == ["client_of"]


@pytest.mark.parametrize("size", BODIES)
def test_no_settings_are_made_for_a_request(size: str):
    names = (
        "Settings.__init__",
        "ModelRule.__init__",
        "ModelSettings.__init__",
        "Settings._resolve",
        "setting.<locals>.<lambda>",
    )
    with calls_of(*names, "Settings.for_model") as calls:
        app = Proxy(Settings(upstreams={"u": {"url": "http://u.test"}}), transport=Answers())  # type: ignore[dict-item]
        assert set(ask(app, BODIES[size], calls)) == {"Settings.for_model"}


@pytest.mark.parametrize(
    "asked", [claude_code(2, tools=24), codex(2), opencode("chat", 2)], ids=lambda asked: asked.name
)
def test_an_agents_request_is_served_on_the_event_loop(asked: AgentRequest):
    with calls_of("off_loop", "Exchange.request") as calls:
        app = Proxy(Settings(upstreams={"u": {"url": "http://u.test"}}), transport=Answers())  # type: ignore[dict-item]
        found = ask(app, asked.data, calls, asked.headers, PATHS[asked.protocol])
    assert found[: found.index("Exchange.request") + 1] == ["Exchange.request"]


def test_only_the_size_and_the_number_of_values_decide():
    assert not is_large(b"x" * 90_000, 90_000)
    assert is_large(b"x" * 100_000, 100_000)
    assert is_large(b"[" + b"1," * 1_600 + b"1]", 3_203)
    assert is_large(b"", inf)


@pytest.mark.parametrize("body", [BODIES["large"], gzip.compress(BODIES["small"])], ids=["large", "compressed"])
def test_a_large_request_takes_one_step_off_the_event_loop(body: bytes):
    """A compressed body may expand a thousandfold, so it counts as large."""
    encoded = () if body[:1] == b"{" else ((b"content-encoding", b"gzip"),)
    with calls_of("off_loop", "Exchange.request") as calls:
        app = Proxy(Settings(upstreams={"u": {"url": "http://u.test"}}), transport=Answers())  # type: ignore[dict-item]
        found = ask(app, body, calls, encoded)
    assert found[: found.index("Exchange.request") + 1] == ["off_loop", "Exchange.request"]
