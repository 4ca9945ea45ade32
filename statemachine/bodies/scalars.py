"""JSON for raw values that have been read completely."""

import json

from statemachine import schema
from statemachine.json.state import WORDS
from statemachine.json.values import load
from statemachine.stream.runs import json_escape

ENTITIES = {"&quot;": '"', "&apos;": "'", "&#39;": "'", "&#34;": '"', "&lt;": "<", "&gt;": ">", "&amp;": "&"}
"""Characters by their entities; the ampersand is last, because the others begin with it."""


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
        found = load(plain)
    except ValueError:
        found = text
    if isinstance(found, str) or not types.intersection(schema.json_types_of(found)):
        return f'"{json_escape(text)}"'
    return plain


def unescape_entities(text: str) -> str:
    """Replace the entities in the value of an attribute by their characters."""
    if "&" in text:
        for entity, char in ENTITIES.items():
            text = text.replace(entity, char)
    return text


def escape_entities(text: str) -> str:
    """Write the value of an attribute in double quotes."""
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
