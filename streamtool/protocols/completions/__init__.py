"""Legacy completions (`POST /v1/completions`), the upstream's side: one prompt in, text out.

`request` writes the conversation as a prompt, `templates` holds the chat templates for it, `reader` reads the reply.
Names of this protocol's fields appear in this package only.
Sources: the OpenAI API reference; what vLLM and the server of llama.cpp accept and send.
"""

from streamtool.protocols.body_sniffer import read_error, read_models
from streamtool.protocols.completions.reader import ReplyReader
from streamtool.protocols.completions.request import (
    HEADERS,
    KEY_HEADER,
    MODELS_PATH,
    request_path,
    write_request,
)
from streamtool.protocols.completions.templates import TEMPLATES, Template

NAME = "completions"
