"""The tool lists of requests: shared in memory, and stored for later requests that do not repeat them.

An agent offers the same tools in each of its requests, and tools are far larger as objects than as text. Equal lists
are therefore replaced by the same objects, regardless of the client that sent them. If a conversation continues without
its tools, the tools that it began with are restored: its tool prompt remains the same, and its calls are checked
against the same schemas.
"""

import hashlib
from contextlib import suppress
from typing import Final

import msgspec
from attrs import evolve, frozen

from streamtool.core.bounded_cache import LruCache, SharedList
from streamtool.core.conversation import Conversation, Tool
from streamtool.core.json_value import Json
from streamtool.exchange.interfaces import ClientStore
from streamtool.prompting.transcripts import toolset_of
from streamtool.protocols.shared.wire import encode

LARGEST: Final = 256 * 1024
"""Maximum size, in bytes of JSON, of a tool list that is cached. As objects, it takes several times as much memory."""
CACHE_SIZE: Final = 40_000
"""Maximum number of objects and arrays in all cached lists. An agent with thirty tools has a few thousand."""


@frozen
class _Toolset:
    """A tool list as parsed and, if known, as sent."""

    tools: tuple[Tool, ...]
    offered: list[Json] | None = None


_cache = LruCache[_Toolset](CACHE_SIZE)


def _cache_tools(digest: str, tools: tuple[Tool, ...], text: bytes, offered: list[Json] | None = None) -> _Toolset:
    """Cache the tools, given as objects and as JSON. Their weight is the number of opening brackets in the JSON."""
    known = _Toolset(tools, offered)
    if len(text) <= LARGEST:
        _cache.put(digest, known, text.count(b"{") + text.count(b"["))
    return known


def share_tools(conversation: Conversation) -> Conversation:
    """Return the conversation. If its tools equal those of an earlier conversation, use the same objects for them."""
    offered = conversation.raw.get("tools")
    if not conversation.tools or not isinstance(offered, list):
        return conversation
    if type(offered) is SharedList:
        known = offered.made.get(conversation.protocol)
        if known is not None and known == conversation.tools:
            return conversation if known is conversation.tools else evolve(conversation, tools=known)
        offered.keep(conversation.protocol, conversation.tools)
        return conversation
    text = encode(offered)
    digest = hashlib.sha256(conversation.protocol.encode() + text).hexdigest()
    known = _cache.get(digest) or _cache_tools(digest, conversation.tools, text, offered)
    if known.tools != conversation.tools:  # some tools are elsewhere in the request
        return conversation
    return evolve(conversation, tools=known.tools, raw={**conversation.raw, "tools": known.offered})


def restore_tools(conversation: Conversation, memory: ClientStore) -> Conversation:
    """Return the conversation with the tools that it began with, if it contains no tools itself and those are known."""
    last = next((message for message in reversed(conversation.messages) if message.calls), None)
    if conversation.tools or last is None:
        return conversation
    digest = toolset_of(last, memory.recall)
    if digest is None:
        return conversation
    known = _cache.get(digest)
    if known is None and (text := memory.recall(_key(digest))) is not None:
        with suppress(msgspec.DecodeError):  # stored by another version
            known = _cache_tools(digest, msgspec.json.decode(text, type=tuple[Tool, ...]), text)
    return conversation if known is None else evolve(conversation, tools=known.tools)


def store_tools(conversation: Conversation, memory: ClientStore) -> str:
    """Store the conversation's tools and return their digest, or an empty string if it contains none."""
    if not conversation.tools:
        return ""
    text = msgspec.json.encode(conversation.tools)
    digest = hashlib.sha256(text).hexdigest()
    if _cache.get(digest) is None:
        _cache_tools(digest, conversation.tools, text)
    memory.remember(_key(digest), text)
    return digest


def _key(digest: str) -> str:
    return f"tools {digest}"
