"""What the list of exchanges shows of one: out of the lines of a recording, whether it is one or is still in memory."""

from collections.abc import Iterable, Mapping

from streamtool.conversation import Json
from streamtool.observe.lines import Line

ASKED = ("request_id", "protocol", "upstream_protocol", "model", "upstream_model", "mode", "format", "stream")
"""What the first line tells."""
KNOWN = (
    *("outcome", "client", "tools", "calls", "found", "repairs", "discarded", "quoted", "unmet", "held", "seconds"),
    *("first_byte", "first_call", "forced", "served_model", "status", "error", "dropped", "tokens", "upstream"),
)
"""What the last one tells besides."""


def opened(line: Line, *, id: str, at: float | None, client: str = "") -> dict[str, Json]:
    """An exchange of which only the first line is known."""
    return {"id": id, "at": at, "client": client, "outcome": "open", **{name: line.get(name) for name in ASKED}}


def ended(known: Mapping[str, Json], record: Line) -> dict[str, Json]:
    """The same with the last line."""
    told = {name: record[name] for name in KNOWN if name in record}
    return {
        **known,
        **told,
        "request_id": record.get("request_id", known["request_id"]),
        "attempts": 1 + len(record.get("attempts", ())),
        "rejected": [attempt["reason"] for attempt in record.get("attempts", ())],
    }


def summary(lines: Iterable[Line], *, id: str) -> dict[str, Json]:
    """That of a whole recording, or of one that was cut."""
    found: dict[str, Json] = {"id": id}
    for line in lines:
        match line["type"]:
            case "exchange":
                found = opened(line, id=id, at=None)
                found["outcome"] = "cut"
            case "record":
                found = ended(found, line)
            case _:
                pass
    return found
