"""A provider of LiteLLM that gives tools to any other of its models: `streamtool/` before the model's name.

    litellm.custom_provider_map = [{"provider": "streamtool", "custom_handler": ToolProvider()}]
    litellm.completion("streamtool/ollama/qwen3:8b", messages, tools=tools, stream=True)

A request runs through the transport as if it went to a server of Chat Completions. In the place of the network is
LiteLLM itself: it asks the model behind the prefix, which is streamed and receives text only.
"""

import json
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, TypeAlias

import httpx
import litellm
from litellm.llms.custom_llm import CustomLLM, CustomLLMError
from litellm.types.utils import GenericStreamingChunk, ModelResponse, ModelResponseStream

from streamtool.http.transport import SyncToolTransport, ToolTransport
from streamtool.observe.observers import OnExchange
from streamtool.settings import Settings
from streamtool.sse import SseReader

URL = "http://litellm/v1/chat/completions"
"""What the transport takes for the address; nothing is there."""
ASKED = "litellm"
"""The extension of a request in which stands how the model is reached."""
DONE = b"[DONE]"
Chunk: TypeAlias = ModelResponseStream | GenericStreamingChunk


class ToolProvider(CustomLLM):
    """Answers LiteLLM's four kinds of completions. `settings`, `on_exchange` and options are those of the transport."""

    def __init__(
        self, *, settings: Settings | None = None, on_exchange: OnExchange | None = None, **options: Any
    ) -> None:
        super().__init__()
        told: dict[str, Any] = {"settings": settings, "on_exchange": on_exchange, **options}
        self._sync = SyncToolTransport(_Model(), **told)
        self._async = ToolTransport(_Model(), **told)

    def completion(self, *_: Any, **asked: Any) -> ModelResponse:
        """A whole reply."""
        response = self._sync.handle_request(_request(asked, stream=False))
        return _whole(response.status_code, response.read())

    async def acompletion(self, *_: Any, **asked: Any) -> ModelResponse:
        """A whole reply."""
        response = await self._async.handle_async_request(_request(asked, stream=False))
        return _whole(response.status_code, await response.aread())

    def streaming(self, *_: Any, **asked: Any) -> Iterator[Chunk]:
        """The chunks of a reply, which has begun: an error before it is raised at once."""
        response = self._sync.handle_request(_request(asked, stream=True))
        if response.status_code != httpx.codes.OK:
            raise _error(response.status_code, response.read())
        return _read(response)

    async def astreaming(self, *_: Any, **asked: Any) -> AsyncIterator[Chunk]:
        """The chunks of a reply."""
        response = await self._async.handle_async_request(_request(asked, stream=True))
        try:
            if response.status_code != httpx.codes.OK:
                raise _error(response.status_code, await response.aread())
            reader = SseReader()
            async for data in response.aiter_raw():
                for chunk in _chunks(reader, data):
                    yield chunk
        finally:
            await response.aclose()


def _read(response: httpx.Response) -> Iterator[Chunk]:
    try:
        reader = SseReader()
        for data in response.iter_raw():
            yield from _chunks(reader, data)
    finally:
        response.close()


class _Model(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """LiteLLM as a transport."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        try:
            chunks = litellm.completion(**_asked(request))
        except Exception as error:  # noqa: BLE001  whatever its providers raise
            return _failed(error)
        return _streamed(_Events(chunks))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            chunks = await litellm.acompletion(**_asked(request))
        except Exception as error:  # noqa: BLE001  the same
            return _failed(error)
        return _streamed(_AsyncEvents(chunks))


class _Events(httpx.SyncByteStream):
    def __init__(self, chunks: Iterable[Any]) -> None:
        self._chunks = chunks

    def __iter__(self) -> Iterator[bytes]:
        for chunk in self._chunks:
            yield _event(chunk)
        yield _event(None)


class _AsyncEvents(httpx.AsyncByteStream):
    def __init__(self, chunks: Any) -> None:
        self._chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._chunks:
            yield _event(chunk)
        yield _event(None)

    async def aclose(self) -> None:
        await self._chunks.aclose()


def _request(asked: dict[str, Any], *, stream: bool) -> httpx.Request:
    """What LiteLLM hands to a provider, as a request of Chat Completions."""
    body = {**asked["optional_params"], "model": asked["model"], "messages": asked["messages"], "stream": stream}
    reached = {
        key: value for key in ("api_base", "api_key", "client", "headers", "timeout") if (value := asked.get(key))
    }
    if (retries := body.pop("max_retries", None)) is not None:
        reached["max_retries"] = retries
    return httpx.Request("POST", URL, json=body, extensions={ASKED: reached})


def _asked(request: httpx.Request) -> dict[str, Any]:
    """What LiteLLM is asked for in turn."""
    return {**json.loads(request.content), **request.extensions[ASKED]}


def _event(chunk: Any) -> bytes:
    return b"data: %b\n\n" % (DONE if chunk is None else chunk.model_dump_json(exclude_none=True).encode())


def _streamed(stream: Any) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=stream)


def _failed(error: Exception) -> httpx.Response:
    """The error with the status that LiteLLM gives it."""
    return httpx.Response(getattr(error, "status_code", 500), json={"error": {"message": str(error)}})


def _whole(status: int, body: bytes) -> ModelResponse:
    if status != httpx.codes.OK:
        raise _error(status, body)
    return ModelResponse(**json.loads(body))


def _chunks(reader: SseReader, data: bytes) -> Iterator[Chunk]:
    for event in reader.feed(data):
        if event.data == DONE:
            return
        told = json.loads(event.data)
        if "error" in told:
            raise _error(500, event.data)
        if (usage := told.get("usage")) and not told["choices"]:  # LiteLLM drops it in its own kind of chunk
            yield GenericStreamingChunk(text="", is_finished=False, finish_reason="", usage=usage)
        else:
            yield ModelResponseStream(**told)


def _error(status: int, body: bytes) -> CustomLLMError:
    return CustomLLMError(status, json.loads(body)["error"]["message"])
