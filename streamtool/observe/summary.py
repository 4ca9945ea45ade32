"""An exchange's list entry, made from the lines of a recording or of an exchange in memory."""

from collections.abc import Iterable, Mapping

from streamtool.core.json_value import Json
from streamtool.observe.lines import SHORT, Line

FIRST_LINE_FIELDS = (
    "request_id",
    "protocol",
    "upstream_protocol",
    "model",
    "upstream_model",
    "mode",
    "format",
    "stream",
    "asked",
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
    "reason",
    "resumed",
    "server",
    "served_model",
    "status",
    "error",
    "dropped",
    "tokens",
    "upstream",
    "engine",
    "prompt_cut",
    "near",
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


class FirstCall:
    """The first call that the client received, as `name(arguments)`, made from the events sent to it."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._place: tuple[Json, Json] | None = None
        """The call's choice and index."""

    def feed(self, event: Mapping[str, Json]) -> None:
        """Process an event."""
        place = event.get("choice"), event.get("index")
        match event:
            case {"type": "call_start", "name": str(name)} if not self._parts:
                self._place = place
                self._parts.append(f"{name}(")
            case {"type": "arguments_delta", "text": str(text)} if place == self._place:
                self._parts.append(text)
            case _:
                pass

    def text(self) -> str:
        """Return the call in one short line, or "" if the client received none."""
        return short_call("".join(self._parts)) if self._parts else ""


def short_call(call: str) -> str:
    """Return a call without the closing parenthesis in one short line, with the parenthesis."""
    written = " ".join(call.split())
    return f"{written})" if len(written) < SHORT else f"{written[: SHORT - 2]}…)"


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
    called = FirstCall()
    for line in lines:
        match line["type"]:
            case "exchange":
                found = open_entry(line, id=id, at=None)
                found["outcome"] = "cut"
            case "sent":
                for event in line["events"]:
                    called.feed(event)
            case "record":
                found = ended_entry(found, line)
            case _:
                pass
    return {**found, "called": called.text()}
