"""The signature of a call, where the protocol as Google speaks it has its place: `extra_content` beside the function.

A client that drops fields which it does not know loses the signature; `exchange/signatures.py` brings it back.
Source: the reference of Gemini's OpenAI compatibility (thought signatures).
"""

from collections.abc import Mapping
from typing import Any

from streamtool.protocols import wire

Json = Any  # a decoded JSON value


def signature_of(call: Mapping[str, Json]) -> str | None:
    """The signature that an entry of `tool_calls` bears, if it bears one."""
    match call.get("extra_content"):
        case {"google": {"thought_signature": str(signature)}} if signature:
            return wire.repaired(signature)  # type: ignore[no-any-return]  # of a string it makes a string
    return None


def signed(call: dict[str, Json], signature: str | None) -> dict[str, Json]:
    """The entry, with the signature if there is one."""
    return call if signature is None else {**call, "extra_content": {"google": {"thought_signature": signature}}}
