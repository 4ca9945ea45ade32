"""Gemini (`POST /v1beta/models/…:generateContent`, `:streamGenerateContent`), for both clients and upstreams.

`addresses` reads the path, which names the model; `request` reads a client's request (`parts` reads its turns,
`schemas` its schemas); `upstream` writes a request to an upstream; `reader` reads the upstream's reply, which is an
event stream or a streamed JSON array (`array`); `writer` and `complete` write the reply to the client; `models` lists
the models. Field names of this protocol appear only in this package. Sources: the reference of the Gemini API; the
types and stream handling of google-genai 3.4 and @google/genai 3.1.
"""

from streamtool.protocols.gemini.addresses import at
from streamtool.protocols.gemini.complete import write_complete, write_count, write_error
from streamtool.protocols.gemini.models import requested_model, write_models
from streamtool.protocols.gemini.reader import ReplyReader, read_error
from streamtool.protocols.gemini.request import read_count, read_request, read_unread
from streamtool.protocols.gemini.request_fields import REQUEST_FIELDS
from streamtool.protocols.gemini.upstream import (
    HEADERS,
    KEY_HEADER,
    MODELS_PATH,
    count_path,
    read_count_reply,
    read_models,
    request_path,
    write_count_request,
    write_request,
)
from streamtool.protocols.gemini.writer import KEEPALIVE, ReplyWriter
from streamtool.protocols.shared.stream import BREAK, COMPLETE_HEADERS, STREAM_HEADERS

NAME = "gemini"
REPLY_ID = "gemini-"
"""Prefix of reply ids."""
CALL_ID = "call_"
"""Prefix of call ids."""
REQUEST_ID = b"x-request-id"
"""Header that carries the request id."""
STREAMED_ERRORS = frozenset[str]()
"""Error codes that clients recognize only inside a stream, not in an HTTP error response."""
store_entries = None
"""None, because requests in this protocol never refer to earlier replies."""
