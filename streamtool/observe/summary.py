"""An exchange's list entry, made from the lines of a recording or of an exchange in memory."""

from collections.abc import Iterable, Mapping

from streamtool.core.json_value import Json
from streamtool.observe.lines import Line

FIRST_LINE_FIELDS = (
    "request_id",
    "protocol",
    "upstream_protocol",
    "model",
    "upstream_model",
    "mode",
    "format",
    "stream",
)
"""Fields taken from the first line."""
LAST_LINE_FIELDS = (
    "outcome",
    "client",
    "tools",
    "calls",
    "found",
    "repairs",
    "discarded",
    "quoted",
    "unmet",
    "held",
    "seconds",
    "first_byte",
    "first_call",
    "forced",
    "served_model",
    "status",
    "error",
    "dropped",
    "tokens",
    "upstream",
    "engine",
    "prompt_cut",
    "verdict",
)
"""Fields taken from the last line."""


def open_entry(line: Line, *, id: str, at: float | None, client: str = "") -> dict[str, Json]:
    """Return the entry for an exchange whose first line is the only one so far."""
    return {
        "id": id,
        "at": at,
        "client": client,
        "outcome": "open",
        **{name: line.get(name) for name in FIRST_LINE_FIELDS},
    }


def ended_entry(known: Mapping[str, Json], record: Line) -> dict[str, Json]:
    """Return the entry with the fields from the last line added."""
    told = {name: record[name] for name in LAST_LINE_FIELDS if name in record}
    return {
        **known,
        **told,
        "request_id": record.get("request_id", known["request_id"]),
        "attempts": 1 + len(record.get("attempts", ())),
        "rejected": [attempt["reason"] for attempt in record.get("attempts", ())],
    }


def summary(lines: Iterable[Line], *, id: str) -> dict[str, Json]:
    """Return the entry for a recording, which may be incomplete."""
    found: dict[str, Json] = {"id": id}
    for line in lines:
        match line["type"]:
            case "exchange":
                found = open_entry(line, id=id, at=None)
                found["outcome"] = "cut"
            case "record":
                found = ended_entry(found, line)
            case _:
                pass
    return found
