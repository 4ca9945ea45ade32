"""The parser's events as plain values: lines of `streamtool parse --json`, and of recordings."""

import re
from typing import Any

from attrs import asdict

from statemachine import Event


def event_as_json(event: Event) -> dict[str, Any]:
    """An event as a line of `streamtool parse --json`, and in a recording."""
    values = asdict(event, value_serializer=lambda _, __, value: list(value) if type(value) is tuple else value)
    return {"type": type_name(type(event)), **values}


def type_name(kind: type) -> str:
    """The `type` of an event: the name of its class, without what all classes of its kind begin with."""
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", kind.__name__.removeprefix("Reply")).lower()
