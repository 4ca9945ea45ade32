"""A client's request, read once: all of its properties that do not change while it is served.

    body ─▶ read_request (the client's protocol) ─▶ Conversation

A request that does not involve tools may be passed through without being interpreted, so a body that cannot be read is
not always an error.
"""

from collections.abc import Iterable

from attrs import field

from streamtool.core.clients import client_of
from streamtool.core.conversation import Conversation
from streamtool.core.errors import RequestError
from streamtool.core.values import frozen
from streamtool.exchange.encoding import decode_body
from streamtool.exchange.interfaces import ClientStore
from streamtool.exchange.tool_sets import share_tools
from streamtool.protocols.interfaces import ClientProtocol, Headers
from streamtool.protocols.registry import upstream_protocol_for
from streamtool.settings import Settings


@frozen
class Received:
    """A client's request."""

    headers: Headers
    """The headers, with names in lower case."""
    body: bytes = field(repr=False)
    """The body as received, or b"" once it is certain that it will not be passed through."""
    client: str
    """The client's identity (`core.clients.client_of`), hashed once per request."""
    conversation: Conversation = field(repr=False)
    plain: bool
    """Whether the request does not involve tools."""
    memory: ClientStore | None = field(default=None, repr=False)
    """The client's store, which the reply may be added to, or None if nothing is stored."""


def receive(
    settings: Settings,
    protocol: ClientProtocol,
    body: bytes,
    headers: Iterable[tuple[bytes, bytes]],
    *,
    client: str | None = None,
    memory: ClientStore | None = None,
) -> Received:
    """Read a request. `client` is the client's identity; if None, it is derived from the headers.

    Raises RequestError.
    """
    lowered = tuple([(name.lower(), value) for name, value in headers])
    conversation = share_tools(_read(settings, protocol, body, lowered, memory))
    if memory is not None and conversation.raw.get("store") is False:
        memory = memory.unstored
    return Received(
        lowered,
        body,
        client_of(lowered) if client is None else client,
        conversation,
        not (conversation.tools or conversation.dropped or conversation.has_tool_history),
        memory,
    )


def _read(
    settings: Settings, protocol: ClientProtocol, body: bytes, headers: Headers, memory: ClientStore | None
) -> Conversation:
    """Read the conversation. If the body cannot be read but may pass through unchanged, return a conversation without
    messages.
    """
    limits = settings.limits
    body = decode_body(body, headers, limits.body)
    try:
        if memory is not None and protocol.store_entries is not None:
            return protocol.read_request(body, limits, memory.demand)
        return protocol.read_request(body, limits)
    except RequestError:
        unread = protocol.read_unread(body, limits)
        if unread is None:
            raise
        upstream = upstream_protocol_for(protocol, settings.for_model(unread.model).protocol)
        if upstream.NAME != protocol.NAME:
            raise
        return unread
