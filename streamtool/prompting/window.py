"""How much of the model's window a prompt takes, and what is left of it for the reply.

A tokenizer counts where one is set. Without one, a token is four bytes of text, a message four tokens more, an image or
a document 1,600; since text may have fewer tokens than that, a prompt is refused only if it is a quarter too long.
"""

from collections.abc import Callable
from typing import Final

import msgspec
from attrs import evolve

from streamtool.conversation import Conversation, TextPart
from streamtool.errors import RequestError

BYTES_PER_TOKEN: Final = 4
_MESSAGE: Final = 4
_MEDIA: Final = 1600
_MARGIN: Final = 1.25
"""How many times the window an estimate has to be before the prompt counts as too long."""
_LEAST: Final = 256
"""Tokens that are left to a reply in any case: whoever serves the model knows better whether they fit."""

CountTokens = Callable[[str], int]
"""Counts the tokens of a text."""


def estimate(text: str) -> int:
    """About how many tokens a text has."""
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


def prompt_tokens(conversation: Conversation, tokenizer: CountTokens | None) -> int:
    """How many tokens the prompt of a projected conversation has, tools that go natively included."""
    count = tokenizer or estimate
    total = 0
    for message in conversation.messages:
        total += _MESSAGE
        for part in message.content:
            total += count(part.text) if isinstance(part, TextPart) else _MEDIA
    for tool in conversation.tools:
        total += count(tool.description) + len(msgspec.json.encode(tool.parameters)) // BYTES_PER_TOKEN
    return total


def fitted(conversation: Conversation, window: int | None, tokenizer: CountTokens | None) -> Conversation:
    """The conversation, its `max_tokens` within what the prompt leaves of a window of so many tokens (None: not known).

    Raises RequestError when the prompt leaves nothing. Its words are those by which clients know that they have to
    compact: "prompt is too long: 37980 tokens > 20000 maximum" (Claude Code reads the numbers), "maximum context length
    is 20000 tokens", "reduce the length of the messages", and the code (pi, opencode, Codex).
    """
    if window is None:
        return conversation
    tokens = prompt_tokens(conversation, tokenizer)
    if tokens >= window * (1 if tokenizer else _MARGIN):
        raise RequestError(
            f"prompt is too long: {tokens} tokens > {window} maximum; the model's maximum context length is {window} "
            "tokens, so reduce the length of the messages",
            param="messages",
            code="context_length_exceeded",
        )
    asked, left = conversation.options.max_tokens, max(window - tokens, _LEAST)
    if asked is None or asked <= left:
        return conversation
    options = evolve(conversation.options, max_tokens=left)
    return evolve(conversation, options=options, dropped=(*conversation.dropped, f"max_tokens beyond {left}"))
