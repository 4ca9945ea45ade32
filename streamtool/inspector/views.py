"""The views of an exchange, created from the lines of its recording."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from attrs import asdict

from statemachine import FORMATS, OPT_IN, Call, write
from statemachine.machine.waiting import closers, openers
from streamtool.core.errors import RequestError
from streamtool.core.json_value import Json
from streamtool.inspector import prompt
from streamtool.inspector.case import case, curl
from streamtool.inspector.session import Exchanges, session
from streamtool.inspector.timeline import timelines
from streamtool.observe.lines import Line
from streamtool.protocols.shared.wire import encode
from streamtool.protocols.table import PATHS

DOT: Final = "·"
"""The replacement for a character that must not be shown."""
Query = Mapping[str, list[str]]


def timeline(kept: Exchanges, id: str, _: Query) -> Json:
    """Return the timelines: the model's text, and when the client received it."""
    lines = list(kept.lines(id))
    return {
        "summary": kept.summary(id),
        "replies": [reply.as_json() for reply in timelines(lines)],
        "notes": [line for line in lines if line["type"] in ("answer", "quotation", "cut", "differs")],
    }


def prompts(kept: Exchanges, id: str, _: Query) -> Json:
    """Return the marked prompt of each attempt, and the earlier prompt that has the longest common prefix with it."""
    lines = list(kept.lines(id))
    asked = _first(lines)
    frame, request = asked.get("frame", "default"), asked.get("request")
    ids = list(kept.versions())
    before = ids[: ids.index(id)] if id in ids else []
    earlier = list(prompt.last_prompts((other, kept.lines(other)) for other in before[-50:]))
    found = []
    for line in lines:
        if line["type"] != "attempt":
            continue
        body = line.get("body")
        told = prompt.prompt(body, request, format=asked["format"], frame=frame)
        flat = [(message.role, message.text) for message in told]
        kept_of = prompt.best_before(flat, earlier)
        found.append(
            {
                "attempt": line["attempt"],
                "messages": [asdict(message) for message in told],
                "before": kept_of,
                "removed": None if kept_of is None else prompt.removed_characters(dict(earlier)[kept_of["id"]], flat),
            }
        )
        earlier.append((f"{id}, attempt {line['attempt']}", flat))
    return {"prompts": found}


def requests(kept: Exchanges, id: str, query: Query) -> Json:
    """Return the request as received and as sent to the upstream. The query's `origin` is the page's origin, used in
    the curl command.
    """
    lines = list(kept.lines(id))
    asked = _first(lines)
    origin = query.get("origin", ["http://127.0.0.1:8700"])[0]
    path = next((path for path, protocol in PATHS.items() if protocol == asked["protocol"]), "/v1/chat/completions")
    return {
        "came": asked.get("request"),
        "went": [
            {"attempt": line["attempt"], "seconds": line["seconds"], "upstream": line["upstream"], "body": line["body"]}
            for line in lines
            if line["type"] == "attempt"
        ],
        "curl": curl(origin + path, asked.get("request")),
        "record": next((line for line in lines if line["type"] == "record"), None),
    }


def data(kept: Exchanges, id: str, _: Query) -> Json:
    """Return the data sent to the client, with the time of each piece."""
    sent = [[line["seconds"], line.get("data")] for line in kept.lines(id) if line["type"] == "sent"]
    return {"bytes": sent, "known": all(text is not None for _, text in sent)}


def turns(kept: Exchanges, id: str, _: Query) -> Json:
    """Return the turns of the exchange's session."""
    return {"turns": session(kept, id)}


def as_case(kept: Exchanges, id: str, query: Query) -> bytes:
    """Return a conformance case for one of the exchange's parsers. Raises RequestError."""
    wanted = query.get("parser", ["0"])[0]
    made_with: Json = None
    text: list[str] = []
    reason, title, known = None, f"exchange {id}", False
    for line in kept.lines(id):
        match line["type"]:
            case "parser":
                made_with = line["made_with"] if "made_with" in line and str(line["parser"]) <= wanted else made_with
                known = known or str(line["parser"]) == wanted
            case "text" if str(line["parser"]) == wanted:
                text.append(line["text"])
            case "close" if str(line["parser"]) == wanted:
                reason = line["reason"]
            case "exchange":
                title = f"{line['model']}, {line['request_id']}"
            case _:
                pass
    if not known or made_with is None:
        raise RequestError(f"this exchange has no text for parser {wanted}", param="parser")
    return case("".join(text), made_with, title=title, reason=reason).encode()


def recording(kept: Exchanges, id: str, _: Query) -> bytes:
    """Return the exchange as a recording."""
    return b"".join(encode(line) + b"\n" for line in kept.lines(id))


VIEWS: Final[Mapping[str, Callable[[Exchanges, str, Query], Json]]] = {
    "": timeline,
    "session": turns,
    "prompt": prompts,
    "requests": requests,
    "bytes": data,
    "case": as_case,
    "recording": recording,
}
"""The views, by the part of the path after the id."""


@cache
def formats() -> Json:
    """Return the table of formats."""
    call = [Call("get_weather", '{"city": "Paris", "days": 3}')]
    return {
        "formats": [
            {
                "name": form.name,
                "openers": list(dict.fromkeys(filter(None, openers(form)))),
                "closers": list(dict.fromkeys(filter(None, closers(form)))),
                "example": write(call, form.name),
                "opt_in": form.name in OPT_IN,
            }
            for form in FORMATS.values()
        ]
    }


def mask_summary(told: Json) -> Json:
    """Return a list entry without the user's text, the first call, and text that looks like one."""
    return {key: value for key, value in told.items() if key not in ("asked", "called", "near")}


def mask(told: Json) -> Json:
    """Return a timeline in which all text from the model and the client is masked."""
    return {
        **told,
        "summary": mask_summary(told["summary"]),
        "replies": [
            {
                **reply,
                "text": _dots(reply["text"]),
                "steps": [[*step[:7], _masked_events(step[7])] for step in reply["steps"]],
                "sent": [[*sent[:2], _masked_events(sent[2])] for sent in reply["sent"]],
            }
            for reply in told["replies"]
        ],
    }


def _masked_events(events: list[Json]) -> list[Json]:
    hidden = ("text", "name", "id", "message", "model", "signature", "stop_sequence")
    return [{key: _dots(value) if key in hidden else value for key, value in event.items()} for event in events]


def _dots(value: Json) -> Json:
    return DOT * len(value) if isinstance(value, str) else value


def _first(lines: list[Line]) -> Line:
    return next(line for line in lines if line["type"] == "exchange")
