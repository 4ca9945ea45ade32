"""Why an attempt is not accepted: the words of the log record."""

from typing import Literal

Cause = Literal[
    "required call missing",
    "call forbidden",
    "tools unsupported",
    "forcing unsupported",
    "tools denied",
    "environment denied",
    "announced but not called",
    "unknown tool",
    "wrong tool",
    "malformed",
    "schema",
    "empty",
]
