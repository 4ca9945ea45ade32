"""Parser events as plain values, for the lines of recordings and of `streamtool parse --json`."""

import re
from typing import Any

from attrs import asdict

from statemachine import Event


def event_as_json(event: Event) -> dict[str, Any]:
    """Return an event as plain values."""
    values = asdict(event, value_serializer=lambda _, __, value: list(value) if type(value) is tuple else value)
    return {"type": type_name(type(event)), **values}


def type_name(kind: type) -> str:
    """Return the `type` of an event: its class's name in snake case, without the `Reply` prefix."""
    return re.sub(r"(?<=[a-z])([A-Z])", r"_\1", kind.__name__.removeprefix("Reply")).lower()
