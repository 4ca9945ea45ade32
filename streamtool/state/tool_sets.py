"""The tools of a request: in memory once, and remembered for later requests that do not repeat them.

An agent offers the same tools in each of its requests, and as objects they are far larger than as text. So equal lists
are the very same objects, whoever sent them. A conversation that goes on without its tools gets those back that it was
begun with: its contract stays the same text, and its calls are read by the same schemas.
"""

import hashlib
from contextlib import suppress
from typing import Final

import msgspec
from attrs import evolve, frozen

from streamtool.conversation import Conversation, Json, Tool
from streamtool.exchange.interfaces import Memory
from streamtool.kept import Kept
from streamtool.prompting.transcripts import toolset_of
from streamtool.protocols.wire import encode

LARGEST: Final = 256 * 1024
"""Bytes of a list, as JSON, that is kept in memory; as objects it takes several times as much."""
KEPT: Final = 40_000
"""Objects and arrays of all lists that are kept in memory; an agent with thirty tools has some thousand."""


@frozen
class _Toolset:
    """A list of tools, as it was read and, if it was, as it was sent."""

    tools: tuple[Tool, ...]
    offered: list[Json] | None = None


_kept = Kept[_Toolset](KEPT)


def _keep(digest: str, tools: tuple[Tool, ...], text: bytes, offered: list[Json] | None = None) -> _Toolset:
    """Keep the tools, of which this is the JSON; the objects in it are counted, with braces in strings."""
    known = _Toolset(tools, offered)
    if len(text) <= LARGEST:
        _kept.put(digest, known, text.count(b"{") + text.count(b"["))
    return known


def shared(conversation: Conversation) -> Conversation:
    """The conversation, its tools the very objects of an earlier one if they are the same."""
    offered = conversation.raw.get("tools")
    if not conversation.tools or not isinstance(offered, list):
        return conversation
    text = encode(offered)
    digest = hashlib.sha256(conversation.protocol.encode() + text).hexdigest()
    known = _kept.get(digest) or _keep(digest, conversation.tools, text, offered)
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
    known = _kept.get(digest)
    if known is None and (text := memory.recall(_key(digest))) is not None:
        with suppress(msgspec.DecodeError):  # another version has kept them
            known = _keep(digest, msgspec.json.decode(text, type=tuple[Tool, ...]), text)
    return conversation if known is None else evolve(conversation, tools=known.tools)


def remember(conversation: Conversation, memory: Memory) -> str:
    """Keep the tools of this conversation; returns what to find them by."""
    if not conversation.tools:
        return ""
    text = msgspec.json.encode(conversation.tools)
    digest = hashlib.sha256(text).hexdigest()
    if _kept.get(digest) is None:
        _keep(digest, conversation.tools, text)
    memory.remember(_key(digest), text)
    return digest


def _key(digest: str) -> str:
    return f"tools {digest}"
