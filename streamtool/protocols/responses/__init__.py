"""OpenAI Responses (`POST /v1/responses`), both sides.

`request` reads what a client asks, with `items` (the input), `tools` (the tools and the choice among them) and `memory`
(what earlier replies left behind); `writer` writes the reply to the client, with `response` (the object that the reply
is), `complete` what is not streamed, and `stored` what a client asks for again later. `upstream` writes the request to
the upstream, `reader` reads its reply. Names of this protocol's fields appear in this package only.
Sources: the OpenAI API reference; the request and response types of openai-python 3.52 and openai-node 6.49; the rules
under which their helpers, the AI SDK, LangChain and pydantic-ai read a stream; what Codex, opencode and pi send.
"""

from streamtool.protocols.body_sniffer import read_error, read_models
from streamtool.protocols.responses.compaction import read_compaction, write_compaction
from streamtool.protocols.responses.complete import write_complete, write_count, write_error
from streamtool.protocols.responses.conversations import (
    CONVERSATION_ID,
    extended,
    new_conversation,
    read_conversation,
    updated,
    write_conversation_deleted,
)
from streamtool.protocols.responses.listing import write_list
from streamtool.protocols.responses.memory import memories
from streamtool.protocols.responses.reader import ReplyReader
from streamtool.protocols.responses.request import FIELDS, read_count, read_request, read_unread
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
from streamtool.protocols.stream import BREAK, COMPLETE_HEADERS, KEEPALIVE, STREAM_HEADERS

NAME = "responses"
REPLY_ID = "resp_"
"""How the id of a reply begins."""
CALL_ID = "call_"
"""How the id of a call begins."""
REQUEST_ID = b"x-request-id"
"""The header that bears the id of the request."""
STREAMED_ERRORS = frozenset({"context_length_exceeded"})
"""Codes of errors for which clients look in a stream only, and in no body with a status of its own (Codex)."""
