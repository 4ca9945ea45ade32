"""Gemini (`POST /v1beta/models/…:generateContent`, `:streamGenerateContent`), both sides: the client's and the
upstream's.

`addresses` reads the path, which names the model; `request` reads what a client asks (its turns in `parts`, types of
tools in `schemas`), `upstream` writes the request to an upstream, `reader` reads the upstream's reply: an event stream,
or a JSON array that is streamed (`array`); `writer` and `complete` write the reply to the client, `models` tells which
models there are. Names of this protocol's fields appear in this package only.
Sources: the reference of the Gemini API; the types of google-genai 3.4 and @google/genai 3.1, and how they read a
stream.
"""

from streamtool.protocols.gemini.addresses import at
from streamtool.protocols.gemini.complete import write_complete, write_count, write_error
from streamtool.protocols.gemini.models import asked_model, write_models
from streamtool.protocols.gemini.reader import ReplyReader, read_error
from streamtool.protocols.gemini.request import FIELDS, read_count, read_request, read_unread
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
from streamtool.protocols.stream import BREAK, COMPLETE_HEADERS, STREAM_HEADERS

NAME = "gemini"
REPLY_ID = "gemini-"
"""How the id of a reply begins."""
CALL_ID = "call_"
"""How the id of a call begins."""
REQUEST_ID = b"x-request-id"
"""The header that bears the id of the request."""
STREAMED_ERRORS = frozenset[str]()
"""Codes of errors for which clients look in a stream only, and in no body with a status of its own."""
memories = None
"""No request of this protocol refers to an earlier reply."""
