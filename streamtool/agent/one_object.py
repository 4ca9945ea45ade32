"""Strict one-object protocol: check that a reply is exactly one object, and correct the model if it is not.

Formats in which the whole reply is one object (`action_object`) are parsed as tolerantly as any other: text around the
object is emitted as text, and damaged JSON is repaired. The strict protocol checks the complete text instead. A thought
that is too long does not violate it: the excess is discarded, and the reply is accepted.
"""

import re
from typing import Final

import msgspec

import statemachine
from streamtool.core.json_value import Json

_FORM: Final = (
    '{"thought": "a short note", "action": {"tool": "name", "args": {…}}} for a call, '
    'or {"final": {"content": …}} for the final answer'
)
_SHOWN: Final = 300
"""Maximum number of characters quoted from the rejected reply."""
_BYTE_POSITION: Final = re.compile(r"\(byte \d+\)\Z")


def problem(text: str, format: str) -> str | None:
    """Return the reason a reply is not exactly one object of the protocol, or None if it is."""
    parser = statemachine.Parser(formats=(format,), ledger=True)
    parser.feed(text)
    parser.close()
    thought = max((span.end for span in parser.ledger if span.kind == "reasoning"), default=0)
    begin = text.find("{", thought)
    if begin < 0:
        return "it is no JSON object"
    before = text[:begin]
    if thought:  # the thought's markers are not text
        spans = (s for s in parser.ledger if s.kind == "text" and s.start < begin)
        before = "".join(text[s.start : min(s.end, begin)] for s in spans)
    if before.strip():
        return "there is text before the object"
    try:
        value = msgspec.json.decode(text[begin:].rstrip())
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        return f"it is no valid JSON: {_BYTE_POSITION.sub('', str(error)).strip()}"
    return _keys(value)


def _keys(value: Json) -> str | None:
    """Return what is wrong with the object's keys, or None if they are valid."""
    extra = sorted(value.keys() - {"thought", "action", "final"})
    if extra:
        return f"it has the unknown key `{extra[0]}`"
    if ("action" in value) == ("final" in value):
        return "it needs either `action` or `final`" if "action" not in value else "it has both `action` and `final`"
    if not isinstance(value.get("thought", ""), str):
        return "`thought` is no string"
    if "final" in value:
        final = value["final"]
        return (
            None
            if isinstance(final, dict) and final.keys() == {"content"}
            else "`final` holds `content`, and nothing else"
        )
    action = value["action"]
    if not (isinstance(action, dict) and isinstance(action.get("tool"), str) and action.keys() <= {"tool", "args"}):
        return "`action` holds `tool`, a name, and `args`, and nothing else"
    return None if isinstance(action.get("args", {}), dict) else "`args` is no object"


def correction(wrong: str, text: str) -> str:
    """Return the message that asks the model for another reply."""
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return (
        f"Your last reply was rejected: {wrong}. Reply again with a single JSON object and nothing else: {_FORM}.\n"
        f"The rejected reply was:\n{shown}"
    )
