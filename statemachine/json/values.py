"""Values of complete JSON texts, for decisions that depend on their keys or types."""

from json import JSONDecoder
from typing import Any

MAX_DIGITS = 4000
"""Maximum number of digits of an integer that Python converts, rounded down."""


def integer(text: str) -> int:
    """Return an integer, or an integer with fewer digits if it has more than Python converts."""
    return int(text[:MAX_DIGITS])


decoder = JSONDecoder(parse_int=integer)


def load(text: str) -> Any:
    """Return the value of a JSON text. Only the type of an integer with very many digits is right, not its value.

    Raises:
        ValueError: the text is not JSON, or is nested too deeply.
    """
    try:
        return decoder.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
