"""The size of a prompt compared with the model's context window, and the room that it leaves for the reply.

Tokens are counted by a tokenizer if one is configured. Otherwise, a token is estimated as four bytes of text, a message
as four more tokens, and an image or a document as 1,600 tokens. Since the true count may be lower, a prompt is rejected
only if the estimate exceeds the window by a quarter.
"""

from collections.abc import Callable
from typing import Final

import msgspec
from attrs import evolve

from streamtool.core.conversation import Conversation, TextPart
from streamtool.core.errors import CONTEXT_EXCEEDED, RequestError

BYTES_PER_TOKEN: Final = 4
MESSAGE_TOKENS: Final = 4
"""Number of tokens that a chat template adds to a message, as an estimate."""
_MEDIA: Final = 1600
_MARGIN: Final = 1.25
"""Minimum ratio of the estimate to the window for a prompt that counts as too long."""
_MIN_REPLY: Final = 256
"""Minimum value that the limit on the reply's tokens is lowered to; the model's server decides whether that many fit.
"""

_REPLY: Final = 2048
"""Number of tokens to allow for a reply whose length the client does not limit."""

CountTokens = Callable[[str], int]
"""A function that counts the tokens in a string."""


def estimate_tokens(text: str) -> int:
    """Estimate the number of tokens in a string."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def prompt_tokens(conversation: Conversation, tokenizer: CountTokens | None) -> int:
    """Return the number of tokens in the prompt of a projected conversation, including native tools."""
    count = tokenizer or estimate_tokens
    total = 0
    for message in conversation.messages:
        total += MESSAGE_TOKENS
        for part in message.content:
            total += count(part.text) if isinstance(part, TextPart) else _MEDIA
    for tool in conversation.tools:
        total += count(tool.description) + len(msgspec.json.encode(tool.parameters)) // BYTES_PER_TOKEN
    return total


def least_tokens(conversation: Conversation) -> int:
    """Return a number of tokens that the messages have in any case. Media, native tools and reasoning count as nothing,
    because a chat template may drop them.

    No token extends over a space between two words, and a token of a language that is written without spaces seldom has
    more than four characters (eight more bytes than characters).
    """
    least = 0
    for message in conversation.messages:
        for part in message.content:
            if isinstance(part, TextPart):
                text = part.text
                least += max(len(text.split()), (len(text.encode("utf-8", "replace")) - len(text)) // 8)
    return least


def needed_window(conversation: Conversation, tokenizer: CountTokens | None) -> int:
    """Return the number of tokens that the prompt and its reply need."""
    tokens = prompt_tokens(conversation, tokenizer)
    return int(tokens * (1 if tokenizer else _MARGIN)) + (conversation.options.max_tokens or _REPLY)


def limit_max_tokens(conversation: Conversation, window: int | None, tokenizer: CountTokens | None) -> Conversation:
    """Limit `max_tokens` to the room that the prompt leaves in a window of this many tokens. If `window` is None, it is
    unknown, and the conversation is returned unchanged.

    Raises RequestError if the prompt leaves no room. The error contains the phrases that make clients compact their
    history: "prompt is too long: 37980 tokens > 20000 maximum" (Claude Code reads the numbers), "maximum context length
    is 20000 tokens", "reduce the length of the messages", and the error code (pi, opencode, Codex).
    """
    if window is None:
        return conversation
    tokens = prompt_tokens(conversation, tokenizer)
    if tokens >= window * (1 if tokenizer else _MARGIN):
        raise RequestError(
            f"prompt is too long: {tokens} tokens > {window} maximum; the model's maximum context length is {window} "
            "tokens, so reduce the length of the messages",
            param="messages",
            code=CONTEXT_EXCEEDED,
        )
    asked, left = conversation.options.max_tokens, max(window - tokens, _MIN_REPLY)
    if asked is None or asked <= left:
        return conversation
    options = evolve(conversation.options, max_tokens=left)
    return evolve(conversation, options=options, dropped=(*conversation.dropped, f"max_tokens above {left}"))
