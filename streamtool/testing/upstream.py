"""A scripted upstream: an ASGI app that answers each request with a prepared script.

    upstream = ScriptedUpstream(text("Let me look. ", CALL, size=3), status(503))

Each request uses the next `Script`; the last one is repeated. A script consists of a status, headers and steps: each
`bytes` step is sent as one body message, `Pause` waits, `Hang` waits until the caller disconnects, `Die` raises an
exception, and `Hold` waits until the test calls `release()`. Requests are recorded in `requests`; `left` counts the
callers that disconnected early. The upstream can also run on any ASGI server.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import anyio
import msgspec
from attrs import field, frozen

from streamtool.asgi.types import Receive, Scope, Send


@frozen
class Pause:
    """Step that waits for this many seconds."""

    seconds: float


@frozen
class Hang:
    """Step that waits until the caller disconnects."""


@frozen
class Die:
    """Step that raises an exception."""

    error: Exception = field(factory=lambda: ConnectionError("the scripted upstream dies here"))


@frozen
class Hold:
    """Step that waits for `ScriptedUpstream.release()`."""


Step = bytes | Pause | Hang | Die | Hold


@frozen
class Script:
    """The response to one request."""

    steps: tuple[Step, ...]
    status: int = 200
    content_type: str = "text/event-stream"
    headers: tuple[tuple[str, str], ...] = ()
    before: tuple[Step, ...] = ()
    """Steps before the status is sent; only `Pause`, `Hang`, `Die` and `Hold` make sense here."""

    def then(self, *steps: Step) -> "Script":
        """Return the script with these steps appended."""
        return Script((*self.steps, *steps), self.status, self.content_type, self.headers, self.before)

    def cut(self, size: int, *steps: Step) -> "Script":
        """Return a script that sends the first `size` bytes of the body, then performs `steps`. If no `steps` are
        given, the body simply ends there.
        """
        kept: list[Step] = []
        for step in self.steps:
            if isinstance(step, bytes):
                kept.append(step[:size])
                size -= len(step)
                if size <= 0:
                    break
            else:
                kept.append(step)
        return Script((*kept, *steps), self.status, self.content_type, self.headers, self.before)

    def resized(self, size: int) -> "Script":
        """Return a script that sends the same body in messages of `size` bytes. All other steps are dropped."""
        body = b"".join(step for step in self.steps if isinstance(step, bytes))
        pieces = [body[i : i + size] for i in range(0, len(body), size)]
        return Script(tuple(pieces), self.status, self.content_type, self.headers, self.before)


@frozen
class Recorded:
    """A received request."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    scope: Mapping[str, Any] = field(repr=False)

    @property
    def json(self) -> Any:
        """The decoded body."""
        return msgspec.json.decode(self.body)


class ScriptedUpstream:
    """An upstream that follows scripts. A script may also be given as a function that takes the request and returns a
    script.
    """

    def __init__(self, *scripts: Script | Callable[[Recorded], Script]) -> None:
        self._scripts = scripts
        self.requests: list[Recorded] = []
        self.left: int = 0
        """Number of callers that disconnected or were cancelled before the script had ended."""
        self.finished: int = 0
        """Number of scripts that were completed."""
        self._released = anyio.Event()

    def release(self) -> None:
        """Release every request that is waiting in a `Hold`."""
        self._released.set()
        self._released = anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        pieces = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left += 1
                return
            pieces.append(message.get("body", b""))
            if not message.get("more_body", False):
                break
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        request = Recorded(scope["path"], headers, b"".join(pieces), dict(scope))
        chosen = self._scripts[min(len(self.requests), len(self._scripts) - 1)]
        self.requests.append(request)
        script = chosen if isinstance(chosen, Script) else chosen(request)
        try:
            finished = await self._play(script, receive, send)
        except anyio.get_cancelled_exc_class():
            self.left += 1
            raise
        self.finished += finished
        self.left += not finished

    async def _play(self, script: Script, receive: Receive, send: Send) -> bool:
        left = False

        async def watch(scope: anyio.CancelScope) -> None:
            nonlocal left
            while (await receive())["type"] != "http.disconnect":
                pass
            left = True
            scope.cancel()

        async def perform(steps: Sequence[Step]) -> None:
            for step in steps:
                match step:
                    case bytes():
                        await send({"type": "http.response.body", "body": step, "more_body": True})
                    case Pause(seconds=seconds):
                        await anyio.sleep(seconds)
                    case Hang():
                        await anyio.sleep(math.inf)
                    case Hold():
                        await self._released.wait()
                    case Die(error=error):
                        raise error

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(watch, tasks.cancel_scope)
                await perform(script.before)
                names = [("content-type", script.content_type), *script.headers]
                headers = [(name.encode(), value.encode()) for name, value in names]
                await send({"type": "http.response.start", "status": script.status, "headers": headers})
                await perform(script.steps)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise
        return not left


def event(payload: Any) -> bytes:
    """Return a Server-Sent Event whose data is `payload` as JSON."""
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


DONE = b"data: [DONE]\n\n"
"""The event that terminates a Chat Completions stream."""


def chunk(
    delta: Mapping[str, Any] | None = None,
    *,
    finish: str | None = None,
    choice: int = 0,
    usage: Mapping[str, int] | None = None,
    id: str = "chatcmpl-upstream",
    model: str = "upstream-model",
) -> bytes:
    """Return a Chat Completions chunk as an event. If `usage` is given, it is the usage chunk, which has no choices."""
    choices = [{"index": choice, "delta": delta or {}, "logprobs": None, "finish_reason": finish}]
    payload: dict[str, Any] = {
        "id": id,
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": model,
        "choices": choices if usage is None else [],
    }
    if usage is not None:
        payload["usage"] = usage
    return event(payload)


def text(
    *parts: str,
    size: int = 4,
    finish: str | None = "stop",
    usage: Mapping[str, int] | None = None,
    done: bool = True,
    choice: int = 0,
) -> Script:
    """Return a streamed Chat Completions reply with the text of `parts`, in deltas of `size` characters, one per
    message.
    """
    whole = "".join(parts)
    steps = [chunk({"role": "assistant", "content": ""}, choice=choice)]
    steps += [chunk({"content": whole[i : i + size]}, choice=choice) for i in range(0, len(whole), size)]
    if finish is not None:
        steps.append(chunk({}, finish=finish, choice=choice))
    if usage is not None:
        steps.append(chunk(usage=usage))
    if done:
        steps.append(DONE)
    return Script(tuple(steps))


def status(code: int, message: str = "no", *, headers: Iterable[tuple[str, str]] = ()) -> Script:
    """Return an error response in the Chat Completions format."""
    body = msgspec.json.encode({"error": {"message": message, "type": "test_error", "param": None, "code": None}})
    return Script((body,), code, "application/json", tuple(headers))


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
