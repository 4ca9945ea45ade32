"""Gemini (`POST /v1beta/models/…:streamGenerateContent`), the upstream's side.

`request` writes the request, `reader` reads the reply: an event stream, or a JSON array that is streamed. Names of this
protocol's fields appear in this package only.
Sources: the reference of the Gemini API; the types of google-genai 3.4 and how its client reads a stream.
"""

from streamtool.protocols.gemini.reader import ReplyReader, read_error
from streamtool.protocols.gemini.request import (
    HEADERS,
    KEY_HEADER,
    MODELS_PATH,
    read_models,
    request_path,
    write_request,
)

NAME = "gemini"
