"""An exchange as an HTTP transport: an SDK over httpx gets tools with no server at all.

    client = AsyncOpenAI(http_client=httpx.AsyncClient(transport=ToolTransport()), base_url=…)

A POST to a path that ends like one of ours (`…/chat/completions`; the base address is the caller's own) goes through an
exchange around the inner transport, a count of tokens is answered as the middleware answers it, and everything else
goes straight on. The reply streams; closing it early closes the upstream's. Errors of the inner transport are raised as
they are while the reply has not begun, so that an SDK retries them as usual; later they become an error in the stream.

The asynchronous transport is the source: `tools/sync_transport.py` writes `synchronous.py` from `asynchronous.py`. What
needs no I/O is in `core.py`; what a blocking client cannot do in the same way is in `closing.py`.
"""

from streamtool.http.transport.asynchronous import ToolTransport
from streamtool.http.transport.synchronous import SyncToolTransport

__all__ = ["SyncToolTransport", "ToolTransport"]
