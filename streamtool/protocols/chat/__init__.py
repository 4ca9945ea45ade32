"""OpenAI Chat Completions (`POST /v1/chat/completions`), for both clients and upstreams.

`request` reads a client's request and `tools` reads its tools, `upstream` writes a request to an upstream, `reader`
reads the upstream's reply, and `writer` writes the reply to the client. Field names of this protocol appear only in
this package. Sources: the OpenAI API reference; the request and response types of openai-python 3.52 and openai-node
6.49; the stream handling in the SDKs' helpers, the AI SDK, LangChain, pydantic-ai and LiteLLM.
"""

from streamtool.protocols.chat.complete import write_complete, write_error
from streamtool.protocols.chat.reader import ReplyReader
from streamtool.protocols.chat.request import read_messages, read_request, read_unread
from streamtool.protocols.chat.request_fields import REQUEST_FIELDS
from streamtool.protocols.chat.upstream import (
    HEADERS,
    KEY_HEADER,
    MODELS_PATH,
    request_path,
    write_messages,
    write_request,
)
from streamtool.protocols.chat.writer import ReplyWriter
from streamtool.protocols.shared.body_sniffer import read_error, read_models
from streamtool.protocols.shared.stream import BREAK, COMPLETE_HEADERS, KEEPALIVE, STREAM_HEADERS

NAME = "chat"
REPLY_ID = "chatcmpl-"
"""Prefix of reply ids."""
CALL_ID = "call_"
"""Prefix of call ids."""
REQUEST_ID = b"x-request-id"
"""Header that carries the request id."""
STREAMED_ERRORS = frozenset[str]()
"""Error codes that clients recognize only inside a stream, not in an HTTP error response."""
store_entries = None
"""None, because requests in this protocol never refer to earlier replies."""
