"""The protocols, by name: those that clients speak and those that upstreams speak."""

from collections.abc import Mapping
from types import MappingProxyType

from streamtool.exchange.shapes import ClientWire, UpstreamWire
from streamtool.protocols import chat, completions, gemini, messages, ollama, responses

CLIENTS: Mapping[str, ClientWire] = MappingProxyType({"chat": chat, "messages": messages, "responses": responses})
"""What a client may speak."""
UPSTREAMS: Mapping[str, UpstreamWire] = MappingProxyType(
    {"chat": chat, "messages": messages, "ollama": ollama, "gemini": gemini, "completions": completions}
)
"""What an upstream may speak."""


def wire_of(name: str | None) -> ClientWire:
    """The protocol of a path by its name in the settings; what is no path of ours is answered as `chat`."""
    return CLIENTS["messages" if name == "count_tokens" else name or "chat"]


def upstream_of(client: str, speaks: str | None) -> UpstreamWire:
    """The protocol to speak to an upstream; None: what the client speaks, if an upstream can, else `chat`."""
    return UPSTREAMS[speaks or (client if client in UPSTREAMS else "chat")]
