"""Exchanges as an HTTP transport, which adds tool calling to an SDK that uses httpx, without a server.

    client = AsyncOpenAI(http_client=httpx.AsyncClient(transport=ToolTransport()), base_url=…)

A POST to a path that ends with one of our paths (`…/chat/completions`, below any base URL) passes through an exchange,
whose upstream requests use the inner transport. Token count requests are handled as in the middleware, and all other
requests are passed straight to the inner transport. The reply is streamed; closing it early closes the upstream's
response. Errors from the inner transport are raised unchanged until the reply has begun, so that the SDK can retry as
usual; after that, an error is reported in the stream.

The asynchronous transport is the source: `tools/sync_transport.py` generates `synchronous.py` from `asynchronous.py`.
Code without I/O is in `core.py`; functions that differ between the two transports are in `closing.py`.
"""

from streamtool.transport.asynchronous import ToolTransport
from streamtool.transport.synchronous import SyncToolTransport

__all__ = ["SyncToolTransport", "ToolTransport"]
