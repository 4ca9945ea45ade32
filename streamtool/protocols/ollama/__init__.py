"""Ollama's own protocol (`POST /api/chat`, `/api/generate`), both sides: the client's and the upstream's.

`request` reads what a client asks, `upstream` writes the request to an upstream, `reader` reads the upstream's reply,
which is one JSON object per line, `writer` and `complete` write the reply to the client, `models` tells which models
there are, `addresses` says what is different at `/api/generate`. Names of this protocol's fields appear in this package
only.
Sources: the API documentation and the types of Ollama; the clients ollama-python 0.6 and ollama-js 0.6.
"""

from streamtool.protocols.body_sniffer import read_error
from streamtool.protocols.ollama.addresses import at
from streamtool.protocols.ollama.complete import write_complete, write_error
from streamtool.protocols.ollama.models import asked_model, write_models
from streamtool.protocols.ollama.reader import ReplyReader
from streamtool.protocols.ollama.request import FIELDS, read_request, read_unread
from streamtool.protocols.ollama.upstream import (
    HEADERS,
    KEY_HEADER,
    MODELS_PATH,
    read_models,
    request_path,
    write_request,
)
from streamtool.protocols.ollama.writer import KEEPALIVE, ReplyWriter
from streamtool.protocols.stream import COMPLETE_HEADERS

NAME = "ollama"
REPLY_ID = "ollama-"
"""How the id of a reply begins; only the log has it."""
CALL_ID = "call_"
"""How the id of a call begins."""
REQUEST_ID = b"x-request-id"
"""The header that bears the id of the request."""
BREAK = b"\n"
"""What ends a line, also one that was cut."""
STREAM_HEADERS = (
    (b"content-type", b"application/x-ndjson"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
"""Headers of a stream."""
STREAMED_ERRORS = frozenset[str]()
"""Codes of errors for which clients look in a stream only, and in no body with a status of its own."""
memories = None
"""No request of this protocol refers to an earlier reply."""
