"""The software of a model's server, its version and its models, from requests that generate nothing."""

import json
from typing import Final

import anyio

from streamtool.asgi.types import SCOPE, ASGIApp, ask, never_disconnects
from streamtool.core.errors import StreamtoolError
from streamtool.protocols.registry import UPSTREAMS

_SECONDS: Final = 5.0
_QUESTIONS: Final = (
    ("/props", "build_info", "llama.cpp"),
    ("/version", "version", "vLLM"),
    ("/get_server_info", "version", "SGLang"),
    ("/api/version", "version", "Ollama"),
)
"""Path, member of the answer that contains the version, and name of the software. Sources: tools/server/README.md of
llama.cpp, `vllm/entrypoints/openai/api_server.py`, `sglang/srt/entrypoints/http_server.py`, docs/api.md of Ollama.
"""


async def server_of(app: ASGIApp) -> str:
    """Return the server's software and version, such as `llama.cpp b10920`, or "" if it does not report them."""
    for path, member, name in _QUESTIONS:
        try:
            with anyio.move_on_after(_SECONDS):
                answer = await ask(app, SCOPE, "GET", path, headers=(), receive=never_disconnects)
                version = json.loads(answer.body)[member] if answer.status == 200 else ""
                if isinstance(version, str) and version:
                    return f"{name} {version}"
        except (StreamtoolError, ValueError, KeyError, TypeError):
            continue
    return ""


async def models_of(app: ASGIApp, protocol: str) -> tuple[str, ...]:
    """Return the names of the models that the server lists, or () if it lists none."""
    wire = UPSTREAMS[protocol]
    try:
        with anyio.move_on_after(_SECONDS):
            answer = await ask(app, SCOPE, "GET", wire.MODELS_PATH, headers=(), receive=never_disconnects)
            return tuple(wire.read_models(answer.body)) if answer.status == 200 else ()
    except (StreamtoolError, ValueError):
        pass
    return ()
