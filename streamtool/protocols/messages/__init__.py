"""Anthropic Messages (`POST /v1/messages`), both sides: the client's and the upstream's.

`request` reads what a client asks (its messages in `content`, tools that a type names in `typed_tools`,
those of `toolsets` among them), `upstream` writes
the request to an upstream (what stands in a message in `parts`), `reader` reads the upstream's reply, `writer` and
`complete` write the reply to the client. Names of this protocol's fields appear in this package only.
Sources: the Anthropic API reference; the types of anthropic-python 2.12 and @anthropic-ai/sdk 1.11; the rules under
which their helpers, the AI SDK, LangChain, pydantic-ai and LiteLLM read a stream.
"""

from streamtool.protocols.body_sniffer import read_error, read_models
from streamtool.protocols.messages.complete import write_complete, write_count, write_error
from streamtool.protocols.messages.reader import ReplyReader
from streamtool.protocols.messages.request import FIELDS, read_count, read_request, read_unread
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
from streamtool.protocols.stream import BREAK, COMPLETE_HEADERS, KEEPALIVE, STREAM_HEADERS

NAME = "messages"
REPLY_ID = "msg_"
"""How the id of a reply begins."""
CALL_ID = "toolu_"
"""How the id of a call begins."""
REQUEST_ID = b"request-id"
"""The header that bears the id of the request."""
STREAMED_ERRORS = frozenset[str]()
"""Codes of errors for which clients look in a stream only, and in no body with a status of its own."""
memories = None
"""No request of this protocol refers to an earlier reply."""
