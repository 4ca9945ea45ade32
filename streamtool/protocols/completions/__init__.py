"""Legacy completions (`POST /v1/completions`), for upstreams only: one prompt in, text out.

`request` writes the conversation as a prompt, `templates` contains the chat templates, and `reader` reads the reply.
Field names of this protocol appear only in this package. Sources: the OpenAI API reference; the behavior of vLLM and of
llama.cpp's server.
"""

from streamtool.protocols.completions.reader import ReplyReader
from streamtool.protocols.completions.request import (
    HEADERS,
    KEY_HEADER,
    MODELS_PATH,
    request_path,
    write_request,
)
from streamtool.protocols.completions.templates import TEMPLATES, Template
from streamtool.protocols.shared.body_sniffer import read_error, read_models

NAME = "completions"
