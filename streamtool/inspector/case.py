"""Export of an exchange as a conformance case (`tests/formats/*.md`), or of its request as a curl command."""

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Final

import statemachine
from streamtool.core.json_value import Json
from streamtool.inspector.timeline import parser_with_ledger

UNTOUCHED: Final = "text"
FENCE: Final = "~~~~"
"""The shortest fence around a block."""
SAME_KIND: Final = {statemachine.TextDelta: "text", statemachine.ReasoningDelta: "reasoning"}


def case(text: str, made_with: Mapping[str, Json], *, title: str, reason: str | None = None) -> str:
    """Parse `text` with these options, and return the text and its events as a conformance case.

    The case records the parser's current behavior, which may be wrong.
    """
    parser = parser_with_ledger(made_with)
    events = [*parser.feed(text), *parser.close(reason)]
    form = next((event.format for event in events if isinstance(event, statemachine.CallStart)), None)
    block, info = block_of(text)
    fence = max((FENCE, *("~" * (len(line) + 1) for line in block.split("\n") if set(line) == {"~"})), key=len)
    settings = "\n".join(settings_of(made_with, reason))
    shown = "\n".join(events_of(events, text, form or "tool_call"))
    blocks = (("settings", settings), (info, block), ("events", shown))
    written = "\n\n".join(f"{fence} {name}\n{inner}\n{fence}" for name, inner in blocks)
    return f"## {' '.join(title.split())}\n\n{written}\n"


def block_of(text: str) -> tuple[str, str]:
    """Return the text as a block's contents, escaped if necessary, and the block's name."""
    if not any(char != "\n" and _special(char) for char in text):
        return text, "text"
    named = {"\\": "\\\\", "\r": "\\r", "\t": "\\t", "\n": "\n"}
    return "".join(named.get(char) or (_unicode(char) if _special(char) else char) for char in text), "text escaped"


def _special(char: str) -> bool:
    """Return whether the character must be escaped in a block, because it is invisible or has a special meaning
    there.
    """
    return char == "«" or (char <= "\uffff" and not char.isprintable())


def _unicode(char: str) -> str:
    return f"\\u{ord(char):04x}"


def settings_of(made_with: Mapping[str, Json], reason: str | None) -> Iterable[str]:
    """Yield the lines of the `settings` block."""
    tools = None if made_with.get("any_name") else made_with["tools"]
    yield f"tools: {json.dumps(tools, ensure_ascii=False)}"
    if made_with["formats"]:
        yield f"formats: {', '.join(made_with['formats'])}"
    if made_with["prefix"]:
        yield f"prefix: {json.dumps(made_with['prefix'], ensure_ascii=False)}"
    if reason not in (None, "stop"):
        yield f"reason: {reason}"
    for name in ("unknown", "in_fences"):
        if made_with[name] != UNTOUCHED:
            yield f"{name}: {made_with[name]}"
    if thinks := made_with["calls_in_reasoning"]:
        yield f"calls_in_reasoning: {'true' if thinks is True else ', '.join(thinks)}"
    for name, usual in (("names", "spelling"), ("flattened", "nest")):
        if made_with.get(name, usual) != usual:
            yield f"{name}: {made_with[name]}"


def events_of(events: Iterable[statemachine.Event], text: str, form: str) -> Iterable[str]:
    """Yield the lines of the `events` block. Adjacent events of the same kind are merged."""
    found: list[list[Json]] = []
    for event in events:
        match event:
            case statemachine.TextDelta(text=piece) | statemachine.ReasoningDelta(text=piece):
                kind = SAME_KIND[type(event)]
                if found and found[-1][0] == kind:
                    found[-1][1] += piece
                else:
                    found.append([kind, piece])
            case statemachine.Discarded(text=piece, reason=why):
                found.append([f"discard {why}", piece])
            case statemachine.CallStart():
                found.append(["call", event, "", None])
            case statemachine.ArgumentsDelta(text=piece):
                found[-1][2] += piece
            case statemachine.CallEnd():
                next(one for one in reversed(found) if one[0] == "call")[3] = event
            case _:
                pass
    if found == [["text", text]]:
        yield "unchanged"
        return
    for one in found:
        if one[0] == "call":
            yield from _call(*one[1:], form=form)
        else:
            yield f"{one[0]} {json.dumps(one[1], ensure_ascii=False)}"


def _call(
    start: statemachine.CallStart, arguments: str, end: statemachine.CallEnd | None, *, form: str
) -> Iterable[str]:
    plain = arguments == arguments.strip() and "«" not in arguments and arguments.isprintable()
    yield f"call {start.name} {arguments}" if plain and arguments else f"call {start.name}"
    if not (plain and arguments):
        yield f"    arguments {json.dumps(arguments)}"
    if start.id is not None:
        yield f"    id {start.id}"
    if end is None or not end.complete:
        yield "    incomplete"
    if end is not None and end.repairs:
        yield f"    repairs {', '.join(end.repairs)}"
    if start.format != form:
        yield f"    format {start.format}"


def curl(url: str, request: Json, *, key: bool = False) -> str:
    """Return a curl command that sends the client's request."""
    bearer = ' -H "authorization: Bearer $STREAMTOOL_CLIENT_KEY"' if key else ""
    data = shlex.quote(json.dumps(request, ensure_ascii=False))
    return f"curl -N {shlex.quote(url)} -H 'content-type: application/json'{bearer} -d {data}"
