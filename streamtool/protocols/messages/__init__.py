"""Anthropic Messages (`POST /v1/messages`), for both clients and upstreams.

`request` reads a client's request (`content` reads its messages, `tools` its tools, `typed_tools` and `toolsets` its
typed tools), `upstream` writes a request to an upstream (`parts` writes message contents), `reader` reads the
upstream's reply, and `writer` and `complete` write the reply to the client. Field names of this protocol appear only in
this package. Sources: the Anthropic API reference; the types of anthropic-python 2.12 and @anthropic-ai/sdk 1.11; the
stream handling in the SDKs' helpers, the AI SDK, LangChain, pydantic-ai and LiteLLM.
"""

from streamtool.protocols.messages.complete import write_complete, write_count, write_error
from streamtool.protocols.messages.reader import ReplyReader
from streamtool.protocols.messages.request import read_count, read_request, read_unread
from streamtool.protocols.messages.request_fields import REQUEST_FIELDS
from streamtool.protocols.messages.upstream import (
    HEADERS,
    KEY_HEADER,
    MODELS_PATH,
    count_path,
    read_count_reply,
    request_path,
    write_count_request,
    write_request,
)
from streamtool.protocols.messages.writer import ReplyWriter
from streamtool.protocols.shared.body_sniffer import read_error, read_models
from streamtool.protocols.shared.stream import BREAK, COMPLETE_HEADERS, KEEPALIVE, STREAM_HEADERS

NAME = "messages"
REPLY_ID = "msg_"
"""Prefix of reply ids."""
CALL_ID = "toolu_"
"""Prefix of call ids."""
REQUEST_ID = b"request-id"
"""Header that carries the request id."""
STREAMED_ERRORS = frozenset[str]()
"""Error codes that clients recognize only inside a stream, not in an HTTP error response."""
store_entries = None
"""None, because requests in this protocol never refer to earlier replies."""
