"""The `wrap` function, which adds tool calling to an SDK client: `client = streamtool.wrap(OpenAI(base_url=…))`."""

from typing import Any, TypeVar

from streamtool.observe.observers import OnExchange
from streamtool.settings import Settings
from streamtool.transport import SyncToolTransport, ToolTransport

ClientT = TypeVar("ClientT")


class _Routes:
    """A single transport that combines an HTTP client's transports. Each request uses the transport that the client
    itself would have chosen.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def handle_request(self, request: Any) -> Any:
        return self._client._transport_for_url(request.url).handle_request(request)  # noqa: SLF001  its proxies

    async def handle_async_request(self, request: Any) -> Any:
        return await self._client._transport_for_url(request.url).handle_async_request(request)  # noqa: SLF001

    def close(self) -> None:
        self._client.close()

    async def aclose(self) -> None:
        await self._client.aclose()


def wrap(
    client: ClientT, *, settings: Settings | None = None, on_exchange: OnExchange | None = None, **options: Any
) -> ClientT:
    """Return a copy of an `openai` or `anthropic` client whose tools work with a model that only writes text.

    The client may be synchronous or asynchronous; the copy keeps its base URL, key, proxies and connections. `options`
    are fields of `Settings` and take precedence over `settings`. Raises TypeError for any other object, and
    SettingsError for an invalid option.
    """
    http: Any = getattr(client, "_client", None)
    copy: Any = getattr(client, "copy", None)
    if not callable(copy) or not hasattr(http, "_transport_for_url"):
        raise TypeError(f"wrap accepts an openai or anthropic client, not {type(client).__name__}")
    kind = ToolTransport if hasattr(http, "aclose") else SyncToolTransport
    transport = kind(_Routes(http), settings=settings, on_exchange=on_exchange, **options)
    base = next(each for each in type(http).__mro__ if each.__module__.split(".")[0] in ("httpx", "httpx2"))
    wrapped: ClientT = copy(http_client=base(transport=transport, timeout=http.timeout, follow_redirects=True))
    return wrapped
