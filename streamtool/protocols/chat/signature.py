"""Signatures of calls in Google's dialect of this protocol, where a signature is in `extra_content`, next to
`function`.

A client that drops unknown fields loses the signature; `streamtool/exchange/signatures.py` restores it. Source: the
documentation of Gemini's OpenAI compatibility layer (thought signatures).
"""

from collections.abc import Mapping

from streamtool.core.json_value import Json
from streamtool.protocols.shared import wire


def signature_of(call: Mapping[str, Json]) -> str | None:
    """Return the signature in an entry of `tool_calls`, or None if the entry has none."""
    match call.get("extra_content"):
        case {"google": {"thought_signature": str(signature)}} if signature:
            return wire.repaired(signature)  # type: ignore[no-any-return]  # a string stays a string
    return None


def add_signature(call: dict[str, Json], signature: str | None) -> dict[str, Json]:
    """Return the entry of `tool_calls`, with the signature added if there is one."""
    return call if signature is None else {**call, "extra_content": {"google": {"thought_signature": signature}}}
