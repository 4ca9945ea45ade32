"""Signatures of native calls, for clients whose protocol has no field for them.

Gemini signs its calls and rejects a history that contains a signed call without its signature. Chat Completions can
carry signatures if the client preserves unknown fields; the other protocols cannot. So the signature of an outgoing
call is stored under the call's id, and is restored if the client sends the call back without it.
"""

from collections.abc import Iterable

from attrs import evolve

from streamtool.core.conversation import Conversation, Message, ToolCall
from streamtool.core.reply import ReplyCallStart, ReplyEvent
from streamtool.exchange.interfaces import ClientStore


def store_signatures(events: Iterable[ReplyEvent], memory: ClientStore) -> None:
    """Store the signatures of the calls that begin in these events."""
    for event in events:
        if type(event) is ReplyCallStart and event.id is not None and event.signature is not None:
            memory.remember(_key(event.id), event.signature.encode())


def restore_signatures(conversation: Conversation, memory: ClientStore) -> Conversation:
    """Return the conversation with the known signatures added to its calls. If none is added, the very same object is
    returned.
    """
    messages = tuple(_restore_in_message(message, memory) for message in conversation.messages)
    if all(new is old for new, old in zip(messages, conversation.messages, strict=True)):
        return conversation
    return evolve(conversation, messages=messages)


def _restore_in_message(message: Message, memory: ClientStore) -> Message:
    calls = tuple(_restore_in_call(call, memory) for call in message.calls)
    return message if calls == message.calls else evolve(message, calls=calls, raw=())


def _restore_in_call(call: ToolCall, memory: ClientStore) -> ToolCall:
    kept = memory.recall(_key(call.id)) if call.signature is None else None
    return call if kept is None else evolve(call, signature=kept.decode())


def _key(id: str) -> str:
    return f"signature {id}"
