"""OpenAI Responses (`POST /v1/responses`), for both clients and upstreams.

`request` reads a client's request, using `items` (the input), `tools` (the tools and the tool choice) and `memory`
(references to earlier replies). `writer` writes a streamed reply to the client, using `response` (the response object);
`complete` writes complete replies, and `stored` writes stored responses. `upstream` writes a request to an upstream,
and `reader` reads the upstream's reply. Field names of this protocol appear only in this package. Sources: the OpenAI
API reference; the request and response types of openai-python 3.52 and openai-node 6.49; the stream handling in the
SDKs' helpers, the AI SDK, LangChain and pydantic-ai; the requests that Codex, opencode and pi send.
"""

from streamtool.protocols.responses.compaction import read_compaction, write_compaction
from streamtool.protocols.responses.complete import write_complete, write_count, write_error
from streamtool.protocols.responses.conversations import (
    CONVERSATION_ID,
    extend_conversation,
    new_conversation,
    read_conversation,
    update_conversation,
    write_conversation_deleted,
)
from streamtool.protocols.responses.listing import write_list
from streamtool.protocols.responses.memory import store_entries
from streamtool.protocols.responses.reader import ReplyReader
from streamtool.protocols.responses.request import read_count, read_request, read_unread
from streamtool.protocols.responses.request_fields import REQUEST_FIELDS
from streamtool.protocols.responses.stored import read_stored, write_deleted, write_input_items
from streamtool.protocols.responses.upstream import (
    HEADERS,
    KEY_HEADER,
    MODELS_PATH,
    count_path,
    read_count_reply,
    request_path,
    write_count_request,
    write_request,
)
from streamtool.protocols.responses.writer import ReplyWriter
from streamtool.protocols.shared.body_sniffer import read_error, read_models
from streamtool.protocols.shared.stream import BREAK, COMPLETE_HEADERS, KEEPALIVE, STREAM_HEADERS

NAME = "responses"
REPLY_ID = "resp_"
"""Prefix of reply ids."""
CALL_ID = "call_"
"""Prefix of call ids."""
REQUEST_ID = b"x-request-id"
"""Header that carries the request id."""
STREAMED_ERRORS = frozenset({"context_length_exceeded"})
"""Error codes that clients (Codex) recognize only inside a stream, not in an HTTP error response."""
