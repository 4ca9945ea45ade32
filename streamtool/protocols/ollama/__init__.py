"""Ollama's native protocol (`POST /api/chat`, `/api/generate`), for both clients and upstreams.

`request` reads a client's request, `upstream` writes a request to an upstream, `reader` reads the upstream's reply (one
JSON object per line), `writer` and `complete` write the reply to the client, `models` lists the models, and `addresses`
handles the differences at `/api/generate`. Field names of this protocol appear only in this package. Sources: Ollama's
API documentation and types; the clients ollama-python 0.6 and ollama-js 0.6.
"""

from streamtool.protocols.ollama.addresses import at
from streamtool.protocols.ollama.complete import write_complete, write_error
from streamtool.protocols.ollama.models import requested_model, write_models
from streamtool.protocols.ollama.reader import ReplyReader
from streamtool.protocols.ollama.request import read_request, read_unread
from streamtool.protocols.ollama.request_fields import REQUEST_FIELDS
from streamtool.protocols.ollama.upstream import (
    HEADERS,
    KEY_HEADER,
    MODELS_PATH,
    read_models,
    request_path,
    write_request,
)
from streamtool.protocols.ollama.writer import KEEPALIVE, ReplyWriter
from streamtool.protocols.shared.body_sniffer import read_error
from streamtool.protocols.shared.stream import COMPLETE_HEADERS

NAME = "ollama"
REPLY_ID = "ollama-"
"""Prefix of reply ids, which appear only in the log."""
CALL_ID = "call_"
"""Prefix of call ids."""
REQUEST_ID = b"x-request-id"
"""Header that carries the request id."""
BREAK = b"\n"
"""Terminator of a line, also sent after a truncated line."""
STREAM_HEADERS = (
    (b"content-type", b"application/x-ndjson"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
"""Response headers of a stream."""
STREAMED_ERRORS = frozenset[str]()
"""Error codes that clients recognize only inside a stream, not in an HTTP error response."""
store_entries = None
"""None, because requests in this protocol never refer to earlier replies."""
