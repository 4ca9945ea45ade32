"""The protocols, by name: those that clients speak and those that upstreams speak."""

from collections.abc import Mapping
from types import MappingProxyType

from streamtool.exchange.interfaces import ClientProtocol, UpstreamProtocol
from streamtool.protocols import chat, completions, gemini, messages, ollama, responses

CLIENTS: Mapping[str, ClientProtocol] = MappingProxyType({"chat": chat, "messages": messages, "responses": responses})
"""What a client may speak."""
UPSTREAMS: Mapping[str, UpstreamProtocol] = MappingProxyType(
    {"chat": chat, "messages": messages, "ollama": ollama, "gemini": gemini, "completions": completions}
)
"""What an upstream may speak."""


def client_protocol(name: str | None) -> ClientProtocol:
    """The protocol of a path by its name in the settings; what is no path of ours is answered as `chat`."""
    return CLIENTS["messages" if name == "count_tokens" else name or "chat"]


def upstream_protocol_for(client: str, protocol: str | None) -> UpstreamProtocol:
    """The protocol to speak to an upstream; None: what the client speaks, if an upstream can, else `chat`."""
    return UPSTREAMS[protocol or (client if client in UPSTREAMS else "chat")]
