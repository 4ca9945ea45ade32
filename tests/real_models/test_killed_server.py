"""A real server that is killed while it streams calls: another one continues them."""

import json
import threading
import time
from typing import Any

import httpx
import jsonschema_rs
import pytest
from support.dialects import PATHS, Ask, read, write
from support.engine import START, served
from support.real_models import smollm2
from support.servers import uvicorn_server

from streamtool import Proxy, Settings

pytestmark = [pytest.mark.models, pytest.mark.long]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
}
ASK = Ask(
    (("user", "What is the weather in Oslo?"),),
    (("get_weather", "Get the weather in a city.", SCHEMA),),
    choice="get_weather",
)
STREAMS = 20
SLOTS = 4
BEGUN = 2
"""Number of calls that have begun when the server is killed."""


class Stream:
    """One stream, and the moments when its pieces arrived."""

    def __init__(self) -> None:
        self.data = b""
        self.moments: list[float] = []

    @property
    def begun(self) -> bool:
        return b'"arguments"' in self.data and b'finish_reason":"' not in self.data

    def run(self, url: str) -> None:
        body = write("chat", ASK) | {"max_tokens": 100, "temperature": 0}
        with httpx.stream("POST", f"{url}{PATHS['chat']}", json=body, timeout=10 * START, trust_env=False) as response:
            for piece in response.iter_raw():
                self.moments.append(time.monotonic())
                self.data += piece


@pytest.mark.usefixtures("asking")
def test_no_stream_ends_with_an_error(capsys):
    file, context = str(smollm2()), str(SLOTS * 2048)
    with (
        served("model_server.py", file, context, str(SLOTS)) as dying,
        served("model_server.py", file, context, str(SLOTS)) as healthy,
    ):
        upstreams: dict[str, Any] = {
            "first": {"url": dying.url, "protocol": "chat", "fallbacks": ["second"], "circuit": {"failures": 1}},
            "second": {"url": healthy.url, "protocol": "chat"},
        }
        with uvicorn_server(Proxy(Settings(upstreams=upstreams))) as proxy:
            streams = [Stream() for _ in range(STREAMS)]
            threads = [threading.Thread(target=one.run, args=(proxy.url,)) for one in streams]
            for thread in threads:
                thread.start()
            end = time.monotonic() + 5 * START
            while sum(one.begun for one in streams) < BEGUN:
                assert time.monotonic() < end, "no call has begun"
                time.sleep(0.005)
            dying.kill()
            killed = time.monotonic()
            begun = [one for one in streams if one.begun]
            for thread in threads:
                thread.join(10 * START)
    for one in streams:
        got = read("chat", one.data, stream=True)
        assert (got.error, got.reason) == (None, "calls")
        for _, arguments in got.parts:
            jsonschema_rs.validate(SCHEMA, json.loads(arguments))
    delays = sorted(next(at for at in one.moments if at > killed) - killed for one in begun)
    with capsys.disabled():
        print(f"\n{len(begun)} of {STREAMS} calls had begun; next piece after {[round(one, 2) for one in delays]} s")
