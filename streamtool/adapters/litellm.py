"""Provider for LiteLLM that adds tool calling to any of its other models: put `streamtool/` before the model's name.

    litellm.custom_provider_map = [{"provider": "streamtool", "custom_handler": ToolProvider()}]
    litellm.completion("streamtool/ollama/qwen3:8b", messages, tools=tools, stream=True)

A request passes through the transport as if it were sent to a Chat Completions server. LiteLLM itself takes the place
of the network: it sends each request to the model whose name follows the prefix, and always streams the reply. In the
default mode, requests and replies contain tools and calls only as text.
"""

import json
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, TypeAlias

import httpx
import litellm
from litellm.llms.custom_llm import CustomLLM, CustomLLMError
from litellm.types.utils import GenericStreamingChunk, ModelResponse, ModelResponseStream

from streamtool.core.sse import SseReader
from streamtool.observe.observers import OnExchange
from streamtool.settings import Settings
from streamtool.transport import SyncToolTransport, ToolTransport

URL = "http://litellm/v1/chat/completions"
"""Placeholder URL for the transport; no server listens there."""
MODEL_OPTIONS = "litellm"
"""Name of the request extension that contains the options for reaching the model."""
DONE = b"[DONE]"
Chunk: TypeAlias = ModelResponseStream | GenericStreamingChunk


class ToolProvider(CustomLLM):
    """Provides LiteLLM's four kinds of completion. `settings`, `on_exchange` and `options` are passed to the
    transport.
    """

    def __init__(
        self, *, settings: Settings | None = None, on_exchange: OnExchange | None = None, **options: Any
    ) -> None:
        super().__init__()
        told: dict[str, Any] = {"settings": settings, "on_exchange": on_exchange, **options}
        self._sync = SyncToolTransport(_Model(), **told)
        self._async = ToolTransport(_Model(), **told)

    def completion(self, *_: Any, **asked: Any) -> ModelResponse:
        """Return a complete reply."""
        response = self._sync.handle_request(_request(asked, stream=False))
        return _complete_response(response.status_code, response.read())

    async def acompletion(self, *_: Any, **asked: Any) -> ModelResponse:
        """Return a complete reply."""
        response = await self._async.handle_async_request(_request(asked, stream=False))
        return _complete_response(response.status_code, await response.aread())

    def streaming(self, *_: Any, **asked: Any) -> Iterator[Chunk]:
        """Return the chunks of a reply once the reply has begun. An error before then is raised immediately."""
        response = self._sync.handle_request(_request(asked, stream=True))
        if response.status_code != httpx.codes.OK:
            raise _error(response.status_code, response.read())
        return _read(response)

    async def astreaming(self, *_: Any, **asked: Any) -> AsyncIterator[Chunk]:
        """Yield the chunks of a reply."""
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
    """An httpx transport that sends requests through LiteLLM."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        try:
            chunks = litellm.completion(**_completion_arguments(request))
        except Exception as error:  # noqa: BLE001  providers raise any error
            return _error_response(error)
        return _stream_response(_Events(chunks))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            chunks = await litellm.acompletion(**_completion_arguments(request))
        except Exception as error:  # noqa: BLE001  as above
            return _error_response(error)
        return _stream_response(_AsyncEvents(chunks))


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
    """Convert the arguments that LiteLLM passes to a provider into a Chat Completions request."""
    body = {**asked["optional_params"], "model": asked["model"], "messages": asked["messages"], "stream": stream}
    reached = {
        key: value for key in ("api_base", "api_key", "client", "headers", "timeout") if (value := asked.get(key))
    }
    if (retries := body.pop("max_retries", None)) is not None:
        reached["max_retries"] = retries
    return httpx.Request("POST", URL, json=body, extensions={MODEL_OPTIONS: reached})


def _completion_arguments(request: httpx.Request) -> dict[str, Any]:
    """Convert a request created by `_request` into arguments for `litellm.completion`."""
    return {**json.loads(request.content), **request.extensions[MODEL_OPTIONS]}


def _event(chunk: Any) -> bytes:
    return b"data: %b\n\n" % (DONE if chunk is None else chunk.model_dump_json(exclude_none=True).encode())


def _stream_response(stream: Any) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, stream=stream)


def _error_response(error: Exception) -> httpx.Response:
    """Return an error response with LiteLLM's status."""
    return httpx.Response(getattr(error, "status_code", 500), json={"error": {"message": str(error)}})


def _complete_response(status: int, body: bytes) -> ModelResponse:
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
        if (usage := told.get("usage")) and not told["choices"]:  # LiteLLM drops a ModelResponseStream's usage
            yield GenericStreamingChunk(text="", is_finished=False, finish_reason="", usage=usage)
        else:
            yield ModelResponseStream(**told)


def _error(status: int, body: bytes) -> CustomLLMError:
    return CustomLLMError(status, json.loads(body)["error"]["message"])
