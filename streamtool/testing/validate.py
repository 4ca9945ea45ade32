"""Says what is wrong with bytes that a client would receive: every rule that some client of the protocol relies on.

    assert_valid(validate_chat_stream(body, request, headers=headers))

The rules have names (F framing, E errors, X unreadable; C and CW chat streams and whole replies, M and MW those of
Messages, R and RW those of Responses); a MUST is a rule whose breach was seen to break a client in use, a SHOULD one
that stricter clients may break on. The request makes the rules that couple it with the reply count (offered tools,
tool choice, usage); without it they are skipped. Nothing is shared with our own readers and writers, so the validator
is an oracle for them.
"""

from streamtool.testing.chat_complete import validate_chat_error, validate_chat_whole
from streamtool.testing.chat_stream import validate_chat_stream
from streamtool.testing.framing import Violation, assert_valid
from streamtool.testing.gemini_complete import validate_gemini_error, validate_gemini_whole
from streamtool.testing.gemini_stream import validate_gemini_stream
from streamtool.testing.messages_complete import validate_messages_error, validate_messages_whole
from streamtool.testing.messages_stream import validate_messages_stream
from streamtool.testing.ollama_complete import validate_ollama_error, validate_ollama_whole
from streamtool.testing.ollama_stream import validate_ollama_stream
from streamtool.testing.responses_complete import validate_responses_error, validate_responses_whole
from streamtool.testing.responses_stream import validate_responses_stream

__all__ = [
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
