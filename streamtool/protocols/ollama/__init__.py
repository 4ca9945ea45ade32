"""Ollama's own protocol (`POST /api/chat`), the upstream's side.

`request` writes the request, `reader` reads the reply, which is one JSON object per line. Names of this protocol's
fields appear in this package only.
Sources: the API documentation and the types of Ollama; the client ollama-python 0.6.
"""

from streamtool.protocols.body_sniffer import read_error
from streamtool.protocols.ollama.reader import ReplyReader
from streamtool.protocols.ollama.request import (
    HEADERS,
    KEY_HEADER,
    MODELS_PATH,
    read_models,
    request_path,
    write_request,
)

NAME = "ollama"
