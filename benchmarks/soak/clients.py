"""The clients: sockets that read, read slowly, disconnect, or send invalid requests; and the official SDKs."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import anthropic
import openai
from attrs import define, field
from plans import Plan
from readers import STEPS, WHOLE, Got

PATIENCE: Final = 60.0
"""Seconds between two checks of a reply. The client gives up on a reply at the second check after the upstream has
finished.
"""
LONG: Final = 600.0
"""Maximum seconds that the SDKs wait between two events."""
SLOWLY: Final = 60_000
"""Number of response bytes that slow readers read slowly."""
SPEED: Final = 100_000
"""Bytes per second read by slow readers."""
INSTEAD: Final = {"no JSON": b'{"model": oops', "no model": b"{}"}
"""Bodies of invalid requests."""


@define
class Answer:
    """Data received by a client."""

    status: int = 0
    headers: dict[str, str] = field(factory=dict)
    body: bytearray = field(factory=bytearray)
    ended: bool = False
    """Whether the response is complete; if not, the connection was cut."""
    late: bool = False
    """Whether the response took too long."""


class Client:
    """A client. Its plan determines whether it reuses its connection for the next exchange.

    `saying` returns whether the upstream is still sending a model's reply, so that a delay on a busy machine is not
    counted as a loss.
    """

    def __init__(self, port: int, saying: Callable[[str], bool]) -> None:
        self._port = port
        self._saying = saying
        self._connection: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, plan: Plan) -> Answer:
        """Return the response, up to the point where the client stopped reading."""
        answer = Answer()
        reused = self._connection is not None
        try:
            exchange, over = asyncio.create_task(self._exchange(plan, answer)), False
            while not (await asyncio.wait((exchange,), timeout=PATIENCE))[0]:
                if over:
                    exchange.cancel()
                    answer.late = True
                    break
                over = not self._saying(plan.model)
            else:
                await exchange
        except (ConnectionError, asyncio.IncompleteReadError):
            if reused and not answer.status:  # the server has closed the idle connection
                self.close()
                return await self.ask(plan)
        if not (answer.ended and plan.keeps and answer.headers.get("connection") != "close"):
            self.close()
        return answer

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None

    async def _exchange(self, plan: Plan, answer: Answer) -> None:
        if self._connection is None:
            self._connection = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._connection
        body = INSTEAD.get(plan.manner, plan.body)
        head = f"POST {plan.path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        data = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
        match plan.manner:
            case "half a request":
                writer.write(data[: len(data) // 2 + plan.leaves_after % (len(data) // 2)])
                await writer.drain()
            case "leaves before the reply":
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(plan.leaves_after / 1e5)
            case _:
                writer.write(data)
                await self._read(plan, reader, answer)

    async def _read(self, plan: Plan, reader: asyncio.StreamReader, answer: Answer) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines[1:] if line)
        answer.headers = {name.lower(): value.strip() for name, _, value in pairs}
        answer.status = int(lines[0].split()[1])
        if "content-length" in answer.headers:
            answer.ended = await self._take(plan, reader, answer, int(answer.headers["content-length"]))
        elif answer.headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readuntil(b"\r\n"), 16):
                if not await self._take(plan, reader, answer, size):
                    return
                await reader.readexactly(2)
            await reader.readexactly(2)
            answer.ended = True
        else:
            while await self._take(plan, reader, answer, 1):
                pass
            answer.ended = True

    async def _take(self, plan: Plan, reader: asyncio.StreamReader, answer: Answer, size: int) -> bool:
        """Read `size` bytes of the body. Return whether all of them arrived and the client has not disconnected."""
        while size:
            data = await reader.read(min(size, 2048 if plan.manner == "slow" else 65536))
            size -= len(data)
            answer.body += data
            if not data or (plan.manner == "leaves" and len(answer.body) > plan.leaves_after):
                return False
            if plan.manner == "slow" and len(answer.body) < SLOWLY:
                await asyncio.sleep(len(data) / SPEED)
        return True


class Sdks:
    """The official SDKs."""

    def __init__(self, port: int) -> None:
        url = f"http://127.0.0.1:{port}"
        self._openai = openai.AsyncOpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0, timeout=LONG)
        self._anthropic = anthropic.AsyncAnthropic(api_key="k", base_url=url, max_retries=0, timeout=LONG)

    async def ask(self, plan: Plan) -> Got:
        """Return the SDK's result for the reply."""
        create: Any = {
            "chat": self._openai.chat.completions.create,
            "messages": self._anthropic.messages.create,
            "responses": self._openai.responses.create,
        }[plan.client]
        got = Got()
        try:
            made = await create(**plan.given)
            if plan.stream:
                async for event in made:
                    STEPS[plan.client](event.model_dump(mode="json", exclude_unset=True), got)
            else:
                WHOLE[plan.client](made.model_dump(mode="json", exclude_unset=True), got)
        except (openai.APIError, anthropic.APIError) as error:
            got.error = str(error) or repr(error)
        return got

    async def aclose(self) -> None:
        """Close all connections."""
        await self._openai.close()
        await self._anthropic.close()
