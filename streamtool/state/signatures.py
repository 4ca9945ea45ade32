"""Signatures of native calls, for clients that have no place for them.

Gemini signs its calls and refuses a history in which one comes back without its signature. Chat Completions can carry
it, if the client keeps fields that it does not know; the other protocols cannot. So a signature is remembered under the
id of its call when the call goes out, and put back where a call comes in without one.
"""

from collections.abc import Iterable

from attrs import evolve

from streamtool.conversation import Conversation, Message, ToolCall
from streamtool.exchange.interfaces import Memory
from streamtool.reply import ReplyCallStart, ReplyEvent


def remember(events: Iterable[ReplyEvent], memory: Memory) -> None:
    """Keep the signatures of the calls that begin here."""
    for event in events:
        if type(event) is ReplyCallStart and event.id is not None and event.signature is not None:
            memory.remember(_key(event.id), event.signature.encode())


def signed(conversation: Conversation, memory: Memory) -> Conversation:
    """The conversation, its calls with the signatures that are known; the same object if there is nothing to add."""
    messages = tuple(_signed(message, memory) for message in conversation.messages)
    if all(new is old for new, old in zip(messages, conversation.messages, strict=True)):
        return conversation
    return evolve(conversation, messages=messages)


def _signed(message: Message, memory: Memory) -> Message:
    calls = tuple(_with_signature(call, memory) for call in message.calls)
    return message if calls == message.calls else evolve(message, calls=calls, raw=())


def _with_signature(call: ToolCall, memory: Memory) -> ToolCall:
    kept = memory.recall(_key(call.id)) if call.signature is None else None
    return call if kept is None else evolve(call, signature=kept.decode())


def _key(id: str) -> str:
    return f"signature {id}"
