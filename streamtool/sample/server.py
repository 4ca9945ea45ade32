"""Server for the sample model: Chat Completions over ASGI."""

import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence

import anyio
from attrs import field, frozen

from streamtool.asgi.types import ClientWatch, Receive, Scope, Send
from streamtool.core.json_value import Json
from streamtool.prompting.window import BYTES_PER_TOKEN
from streamtool.protocols.shared import wire
from streamtool.sample.model import content_text, reply

_BODY = 32 * 1024 * 1024
"""Maximum size of a request, in bytes."""


@frozen
class Sample:
    """ASGI app that serves the model: `POST /v1/chat/completions` and `GET /v1/models`."""

    delta: int = 4
    """Length of each piece of the stream, in characters."""
    delay: float = 0.0
    """Delay before each piece, in seconds."""
    model: str = "sample"
    _count: "itertools.count[int]" = field(factory=lambda: itertools.count(1), init=False, repr=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
        if path == "/v1/models":
            listed = {"object": "list", "data": [{"id": self.model, "object": "model", "created": 0, "owned_by": "me"}]}
            await _json(send, 200, listed)
            return
        if path != "/v1/chat/completions":
            await _json(send, 404, _error(f"nothing is served at {path}", "not_found_error"))
            return
        if scope["method"] != "POST":
            await _json(send, 405, _error("use POST", "invalid_request_error"))
            return
        try:
            request = json.loads(await _body(receive))
            messages = request["messages"]
            told = [message for message in messages if isinstance(message, Mapping)]
        except (ValueError, KeyError, TypeError, RecursionError):
            await _json(send, 400, _error("the body is not a chat request", "invalid_request_error"))
            return
        await self._answer(request, told, receive, send)

    async def _answer(self, request: Json, told: Sequence[Json], receive: Receive, send: Send) -> None:
        text, reason = _truncate(reply(told), request)
        head = {
            "id": f"chatcmpl-sample{next(self._count)}",
            "created": int(time.time()),
            "model": str(request.get("model") or self.model),
        }
        usage = _usage(told, text)
        choices = max(1, min(int(request.get("n") or 1), 16))
        if not request.get("stream"):
            message = {"role": "assistant", "content": text, "refusal": None}
            entries = [
                {"index": i, "message": message, "logprobs": None, "finish_reason": reason} for i in range(choices)
            ]
            whole = {**head, "object": "chat.completion", "choices": entries, "usage": usage}
            await anyio.sleep(self.delay)
            await _json(send, 200, whole)
            return
        wanted = bool((request.get("stream_options") or {}).get("include_usage"))
        chunks = self._chunks(
            {**head, "object": "chat.completion.chunk"}, text, reason, choices, usage if wanted else None
        )
        client = ClientWatch(receive, send)
        async with anyio.create_task_group() as group:
            group.start_soon(client.cancel_on_disconnect, group.cancel_scope)
            await self._stream(chunks, client.send)
            group.cancel_scope.cancel()

    def _chunks(self, head: Json, text: str, reason: str, choices: int, usage: Json) -> Iterator[Json]:
        for index in range(choices):
            yield _chunk(head, index, {"role": "assistant", "content": ""})
            for at in range(0, len(text), self.delta):
                yield _chunk(head, index, {"content": text[at : at + self.delta]})
            yield _chunk(head, index, {}, reason)
        if usage is not None:
            yield {**head, "choices": [], "usage": usage}

    async def _stream(self, chunks: Iterator[Json], send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for chunk in chunks:
            await anyio.sleep(self.delay)
            body = b"data: %b\n\n" % wire.encode(chunk)
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


app: Sample = Sample()


def _chunk(head: Json, index: int, delta: Json, reason: str | None = None) -> Json:
    return {**head, "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}]}


def _truncate(text: str, request: Json) -> tuple[str, str]:
    """Return the reply, cut to the request's limits, and its finish reason."""
    stop = request.get("stop") or ()
    for word in [stop] if isinstance(stop, str) else stop:
        text = text.partition(word)[0] if isinstance(word, str) and word else text
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    if isinstance(limit, int) and _tokens(text) > limit > 0:
        return text[: limit * BYTES_PER_TOKEN], "length"
    return text, "stop"


def _tokens(text: str) -> int:
    return -(-len(text) // BYTES_PER_TOKEN)


def _usage(told: Sequence[Json], text: str) -> Json:
    prompt = sum(_tokens(content_text(message.get("content"))) for message in told)
    return {"prompt_tokens": prompt, "completion_tokens": _tokens(text), "total_tokens": prompt + _tokens(text)}


def _error(message: str, kind: str) -> Json:
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


async def _json(send: Send, status: int, value: Json) -> None:
    body = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _body(receive: Receive) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > _BODY:
            raise ValueError("the body is too large")
        if not message.get("more_body"):
            return b"".join(parts)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        word = (await receive())["type"].removeprefix("lifespan.")
        await send({"type": f"lifespan.{word}.complete"})
        if word == "shutdown":
            return
