"""The tools of a request: in memory once, and remembered for later requests that do not repeat them.

An agent offers the same tools in each of its requests, and as objects they are far larger than as text. So equal lists
are the very same objects, whoever sent them. A conversation that goes on without its tools gets those back that it was
begun with: its contract stays the same text, and its calls are read by the same schemas.
"""

import hashlib
from contextlib import suppress
from functools import lru_cache
from typing import Final

import msgspec
from attrs import define, evolve

from streamtool.conversation import Conversation, Json, Tool
from streamtool.exchange.interfaces import Memory
from streamtool.prompting.transcripts import toolset_of
from streamtool.protocols.wire import encode

LARGEST: Final = 256 * 1024
"""Bytes of a list, as JSON, that is kept in memory; as objects it takes several times as much."""


@define
class _Toolset:
    """A list of tools, as it was read and as it was sent."""

    tools: tuple[Tool, ...] = ()
    offered: list[Json] | None = None
    text: bytes = b""


@lru_cache(maxsize=64)
def _toolset(digest: str) -> _Toolset:  # noqa: ARG001  the key of the cache
    """Where the tools with this digest are kept."""
    return _Toolset()


def shared(conversation: Conversation) -> Conversation:
    """The conversation, its tools the very objects of an earlier one if they are the same."""
    offered = conversation.raw.get("tools")
    if not conversation.tools or not isinstance(offered, list):
        return conversation
    text = encode(offered)
    if len(text) > LARGEST:
        return conversation
    known = _toolset(hashlib.sha256(conversation.protocol.encode() + text).hexdigest())
    if known.offered is None:
        known.offered, known.tools = offered, conversation.tools
    if known.tools != conversation.tools:  # some stand elsewhere in the request
        return conversation
    return evolve(conversation, tools=known.tools, raw={**conversation.raw, "tools": known.offered})


def with_tools(conversation: Conversation, memory: Memory) -> Conversation:
    """The conversation with the tools that it was begun with, if it repeats none and they are known."""
    last = next((message for message in reversed(conversation.messages) if message.calls), None)
    if conversation.tools or last is None:
        return conversation
    digest = toolset_of(last, memory.recall)
    if digest is None:
        return conversation
    known = _toolset(digest)
    tools = known.tools
    if not tools and (text := memory.recall(_key(digest))) is not None:
        with suppress(msgspec.DecodeError):  # another version has kept them
            tools = msgspec.json.decode(text, type=tuple[Tool, ...])
        if len(text) <= LARGEST:
            known.tools = tools
    return evolve(conversation, tools=tools)


def remember(conversation: Conversation, memory: Memory) -> str:
    """Keep the tools of this conversation; returns what to find them by."""
    if not conversation.tools:
        return ""
    text = msgspec.json.encode(conversation.tools)
    digest = hashlib.sha256(text).hexdigest()
    if len(text) <= LARGEST:
        known = _toolset(digest)
        known.tools = known.tools or conversation.tools
    memory.remember(_key(digest), text)
    return digest


def _key(digest: str) -> str:
    return f"tools {digest}"
