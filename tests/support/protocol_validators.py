"""Validators of each client protocol: of streams, whole replies and errors."""

from collections.abc import Callable

from support.validators import (
    Violation,
    validate_chat_error,
    validate_chat_stream,
    validate_chat_whole,
    validate_gemini_error,
    validate_gemini_stream,
    validate_gemini_whole,
    validate_messages_error,
    validate_messages_stream,
    validate_messages_whole,
    validate_ollama_error,
    validate_ollama_stream,
    validate_ollama_whole,
    validate_responses_error,
    validate_responses_stream,
    validate_responses_whole,
)

VALIDATORS: dict[str, tuple[Callable[..., list[Violation]], ...]] = {
    "chat": (validate_chat_stream, validate_chat_whole, validate_chat_error),
    "messages": (validate_messages_stream, validate_messages_whole, validate_messages_error),
    "gemini": (validate_gemini_stream, validate_gemini_whole, validate_gemini_error),
    "ollama": (validate_ollama_stream, validate_ollama_whole, validate_ollama_error),
    "responses": (validate_responses_stream, validate_responses_whole, validate_responses_error),
}
