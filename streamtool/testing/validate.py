"""Says what is wrong with bytes that a client of Chat Completions would receive: every rule that some client relies on.

    assert_valid(validate_chat_stream(body, request, headers=headers))

The rules have names (F framing, C chat stream, CW chat whole, E errors, X unreadable); a MUST is a rule whose breach
was seen to break a client in use, a SHOULD one that stricter clients may break on. The request makes the rules that
couple it with the reply count (offered tools, tool choice, usage); without it they are skipped. Nothing is shared with
our own reader and writer, so the validator is an oracle for both.
"""

from streamtool.testing.chat_stream import validate_chat_stream
from streamtool.testing.chat_whole import validate_chat_error, validate_chat_whole
from streamtool.testing.framing import Problem, assert_valid

__all__ = ["Problem", "assert_valid", "validate_chat_error", "validate_chat_stream", "validate_chat_whole"]
