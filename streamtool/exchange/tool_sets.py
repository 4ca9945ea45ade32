"""The tool lists of requests: shared in memory, and stored for later requests that do not repeat them.

An agent offers the same tools in each of its requests, and tools are far larger as objects than as text. Equal lists
are therefore replaced by the same objects, regardless of the client that sent them. If a conversation continues without
its tools, the tools that it began with are restored: its tool prompt remains the same, and its calls are checked
against the same schemas. The first request with many tools leads to a warning in the record.
"""

import hashlib
from contextlib import suppress
from typing import Final

import msgspec
from attrs import evolve, frozen

from streamtool.core.bounded_cache import LruCache, SharedList
from streamtool.core.conversation import Conversation, Tool
from streamtool.core.json_value import Json
from streamtool.exchange.interfaces import ClientStore, Tokenizers
from streamtool.prompting import Selection, selects_tools, tool_prompt_for
from streamtool.prompting.tool_prompt import pack_tools
from streamtool.prompting.transcripts import toolset_of
from streamtool.prompting.window import estimate_tokens
from streamtool.protocols.shared.wire import encode
from streamtool.settings import ModelSettings

LARGEST: Final = 256 * 1024
"""Maximum size, in bytes of JSON, of a tool list that is cached. As objects, it takes several times as much memory."""
CACHE_SIZE: Final = 40_000
"""Maximum number of objects and arrays in all cached lists. An agent with thirty tools has a few thousand."""

MANY: Final = 20
"""Number of tools above which small models choose worse. `toolform` 0.0.1 (October 2026) measured 64.2 % of calls right
with 1 tool, 51.7 % with 8, 48.0 % with 64, 29.6 % with 128 and 23.2 % with 256.
"""
_LARGE: Final = 0.5
"""Share of the context above which the tools are reported regardless of their number."""
_MOST_WARNED: Final = 10_000
"""Maximum number of models and tool lists whose warnings are known."""


@frozen
class _Toolset:
    """A tool list as parsed and, if known, as sent."""

    tools: tuple[Tool, ...]
    offered: list[Json] | None = None


_cache = LruCache[_Toolset](CACHE_SIZE)
_warned = LruCache[bool](_MOST_WARNED)
"""Digests of models and tool lists that a warning was considered for."""


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


def warn_of_many_tools(conversation: Conversation, model: ModelSettings, tokenizers: Tokenizers | None) -> str:
    """Return a warning about the number of tools and the tokens that they take, or an empty string if there are few or
    the warning has been returned before. Raises RequestError if the tool prompt exceeds the context.
    """
    tools, window = conversation.tools, model.context
    if not tools:
        return ""
    offered = conversation.raw.get("tools")
    shared = offered.made if type(offered) is SharedList else {}
    selects = selects_tools(conversation, model)
    key = ("warned", model.name, window, selects)
    if key in shared:
        return ""
    if type(offered) is SharedList:
        offered.keep(key, True)
    digest = hashlib.sha256(repr(key).encode("utf-8", "replace") + pack_tools(tools)).digest()
    if _warned.get(digest):
        return ""
    _warned.put(digest, True, 0)
    selection = Selection(conversation, model, model.format) if selects else None
    text = tool_prompt_for(conversation, model, model.format, selection).text
    count = None if tokenizers is None else tokenizers.of(model)
    tokens = (count or estimate_tokens)(text)
    many = len(tools) > MANY and not selects
    if not many and (window is None or tokens <= _LARGE * window):
        return ""
    about = "" if count else "about "
    of_window = "" if window is None else f" of {window:,}"
    advice = f"; small models choose worse above {MANY}: see select_tools" if many else ""
    return f"{len(tools)} tools take {about}{tokens:,}{of_window} tokens{advice}"


def _key(digest: str) -> str:
    return f"tools {digest}"
