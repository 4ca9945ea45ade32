"""JSON for raw values that have been read completely."""

import json

from statemachine import schema
from statemachine.json.state import WORDS
from statemachine.stream.runs import json_escape


def unescape_json(text: str) -> str:
    """Return the text of a JSON string, given its escaped content."""
    return str(json.loads(f'"{text}"'))


def raw_value_json(text: str, types: frozenset[str]) -> str:
    """Return the JSON for a complete raw value: the value itself if it is JSON of an allowed type, and a JSON string if
    it is not.
    """
    plain = text.strip()
    plain = WORDS.get(plain, plain)
    try:
        found = json.loads(plain)
    except ValueError:
        found = text
    if isinstance(found, str) or not types.intersection(schema.json_types_of(found)):
        return f'"{json_escape(text)}"'
    return plain
