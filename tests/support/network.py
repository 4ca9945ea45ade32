"""An in-memory network whose answers arrive piece by piece."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx

PING = {
    "type": "function",
    "function": {"name": "ping", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
}

JSON = (b"content-type", b"application/json")


def request(**fields: Any) -> bytes:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "tools": [PING], **fields}
    return json.dumps({k: v for k, v in body.items() if v is not None}).encode()


class Pieces(httpx.AsyncByteStream):
    """A body that arrives piece by piece; a number waits that many seconds, an exception is raised."""

    def __init__(self, steps: list[Any]) -> None:
        self.steps = steps
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for step in self.steps:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, bytes):
                yield step
            else:
                await anyio.sleep(step)

    async def aclose(self) -> None:
        self.closed = True


class Network(httpx.AsyncBaseTransport):
    """A test's network: answers each request with the result of `answer`."""

    def __init__(self, answer: Callable[[httpx.Request], Any]) -> None:
        self.answer = answer
        self.requests: list[httpx.Request] = []
        self.bodies: list[Pieces] = []
        self.closed = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        self.requests.append(request)
        await anyio.lowlevel.checkpoint()
        answer = self.answer(request)
        if isinstance(answer, Exception):
            raise answer
        status, headers, steps = answer
        self.bodies.append(Pieces(steps))
        if status == "late":
            await anyio.sleep(headers)
            status, headers = 200, []
        return httpx.Response(status, headers=headers, stream=self.bodies[-1])

    async def aclose(self) -> None:
        self.closed = True
