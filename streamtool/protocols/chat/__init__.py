"""OpenAI Chat Completions (`POST /v1/chat/completions`), both sides: the client's and the upstream's.

`request` reads what a client asks (its tools in `tools`), `upstream` writes the request to an upstream, `reader` reads
the upstream's reply, `writer` writes the reply to the client. Names of this protocol's fields appear in this package
only.
Sources: the OpenAI API reference; the request and response types of openai-python 3.52 and openai-node 6.49; the rules
under which their helpers, the AI SDK, LangChain, pydantic-ai and LiteLLM read a stream.
"""

from streamtool.protocols.body_sniffer import read_error, read_models
from streamtool.protocols.chat.complete import write_complete, write_error
from streamtool.protocols.chat.reader import ReplyReader
from streamtool.protocols.chat.request import FIELDS, read_messages, read_request, read_unread
from streamtool.protocols.chat.upstream import (
    HEADERS,
    KEY_HEADER,
    MODELS_PATH,
    request_path,
    write_messages,
    write_request,
)
from streamtool.protocols.chat.writer import ReplyWriter
from streamtool.protocols.stream import BREAK, COMPLETE_HEADERS, KEEPALIVE, STREAM_HEADERS

NAME = "chat"
REPLY_ID = "chatcmpl-"
"""How the id of a reply begins."""
CALL_ID = "call_"
"""How the id of a call begins."""
REQUEST_ID = b"x-request-id"
"""The header that bears the id of the request."""
STREAMED_ERRORS = frozenset[str]()
"""Codes of errors for which clients look in a stream only, and in no body with a status of its own."""
memories = None
"""No request of this protocol refers to an earlier reply."""
