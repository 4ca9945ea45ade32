"""Validators for the bytes that a client receives: they check every rule that some client of the protocol relies on.

    assert_valid(validate_chat_stream(body, request, headers=headers))

Rules have identifiers: F for framing, E for errors, X for unreadable values; C and CW for streamed and complete chat
replies, M and MW for Messages, R and RW for Responses. MUST rules are those whose violation is known to break a client
in use; SHOULD rules are those that stricter clients may depend on. With the request, the rules that relate the reply to
it are checked too (offered tools, tool choice, usage).

The validators share no code with our own readers and writers, so they can serve as an oracle for them.
"""

from support.validators.chat_complete import validate_chat_error, validate_chat_whole
from support.validators.chat_stream import validate_chat_stream
from support.validators.framing import UNREPAIRABLE, Violation, assert_valid
from support.validators.gemini_complete import validate_gemini_error, validate_gemini_whole
from support.validators.gemini_stream import validate_gemini_stream
from support.validators.messages_complete import validate_messages_error, validate_messages_whole
from support.validators.messages_stream import validate_messages_stream
from support.validators.ollama_complete import validate_ollama_error, validate_ollama_whole
from support.validators.ollama_stream import validate_ollama_stream
from support.validators.responses_complete import validate_responses_error, validate_responses_whole
from support.validators.responses_stream import validate_responses_stream

__all__ = [
    "UNREPAIRABLE",
    "Violation",
    "assert_valid",
    "validate_chat_error",
    "validate_chat_stream",
    "validate_chat_whole",
    "validate_gemini_error",
    "validate_gemini_stream",
    "validate_gemini_whole",
    "validate_messages_error",
    "validate_messages_stream",
    "validate_messages_whole",
    "validate_ollama_error",
    "validate_ollama_stream",
    "validate_ollama_whole",
    "validate_responses_error",
    "validate_responses_stream",
    "validate_responses_whole",
]
