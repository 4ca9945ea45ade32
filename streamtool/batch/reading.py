"""One record: its text, its tools, and what the parser makes of it."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from statemachine import (
    FORMATS,
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Discarded,
    Event,
    Parser,
    ReasoningDelta,
    TextDelta,
)
from streamtool.batch.sources import Batch

_KEPT = 64
"""Sets of tools whose compiled form is kept."""
_SHORT = 5
"""Characters of the shortest opener that looks like one wherever it stands."""
_OPENERS = re.compile(
    "|".join(
        sorted(
            re.escape(begin)
            for form in FORMATS.values()
            for opener in (*form.openers, *(opener for opener, _ in form.wrappers))
            if len(begin := opener.partition("{")[0]) >= _SHORT and not begin.isalpha()
        )
    )
)
"""What a text has in it that looks like a call, in whatever format."""


@frozen
class Plan:
    """What is read, and how."""

    field: str | None
    """Where the text is in a record: names with dots between, numbers for places of lists. None: in recordings only."""
    tools_field: str | None = None
    """Where its tools are; None: nowhere."""
    tools: Mapping[str, Any] | None = None
    """Those of all records; None: any name."""
    formats: tuple[str, ...] | None = None
    prefix: str = ""


@frozen
class Result:
    """What came of a batch."""

    file: str
    last: int
    """The number of its last record."""
    read: int
    lines: bytes
    """One line of JSON for each record."""
    counts: Counter[str]
    broken: tuple[tuple[int, str], ...]
    """Numbers of records that could not be read, and why."""


class Reader:
    """Reads batches; each process has one."""

    __slots__ = ("_plan", "_sets")

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._sets: dict[str, Any] = {}

    def read(self, batch: Batch) -> Result:
        """Every record of a batch."""
        lines: list[str] = []
        counts: Counter[str] = Counter()
        broken: list[tuple[int, str]] = []
        for number, record in self._records(batch):
            found: dict[str, Any] = {"file": batch.file, "record": number}
            counts["records"] += 1
            try:
                text, tools = record if isinstance(record, tuple) else self._text_of(record)
                found |= self.parsed(text, tools, counts)
            except _BrokenError as error:
                counts["broken"] += 1
                broken.append((number, str(error)))
                found["error"] = str(error)
            lines.append(json.dumps(found, ensure_ascii=False))
        data = "".join(line + "\n" for line in lines).encode("utf-8", "replace")
        last = batch.first if batch.recording else batch.first + len(batch.records) - 1
        return Result(batch.file, last, batch.read, data, counts, tuple(broken))

    def _records(self, batch: Batch) -> Iterator[tuple[int, bytes | tuple[str, Any]]]:
        if batch.recording:
            yield from enumerate(_replies(batch.records), batch.first)
        else:
            yield from enumerate(batch.records, batch.first)

    def _text_of(self, record: bytes) -> tuple[str, Any]:
        plan = self._plan
        assert plan.field is not None  # noqa: S101  without it there are recordings only
        if not record:
            raise _BrokenError("the line is too long")
        try:
            value = json.loads(record)
        except (ValueError, RecursionError) as error:
            raise _BrokenError(f"no JSON: {error}") from None
        text = at(value, plan.field)
        if text is None:
            raise _BrokenError(f"there is nothing at {plan.field}")
        if not isinstance(text, str):
            raise _BrokenError(f"{plan.field} is no text")
        tools = None if plan.tools_field is None else at(value, plan.tools_field)
        if isinstance(tools, str):  # as data sets keep them
            try:
                tools = json.loads(tools)
            except ValueError:
                raise _BrokenError(f"{plan.tools_field} is no JSON") from None
        return text, tools

    def parsed(self, text: str, tools: Any, counts: Counter[str]) -> dict[str, Any]:
        """What the parser makes of one text. Raises for tools that are none."""
        counts["characters"] += len(text)
        parser = Parser(self._tools(tools), formats=self._plan.formats, prefix=self._plan.prefix)
        found = collected([*parser.feed(text), *parser.close()])
        for call in found["calls"]:
            counts[f"calls/{call['format']}"] += 1
            counts["incomplete"] += not call["complete"]
            for repair in call.get("repairs", ()):
                counts[f"repairs/{repair}"] += 1
        for one in found.get("discarded", ()):
            counts[f"discarded/{one['reason']}"] += len(one["text"])
        if not found["calls"] and _OPENERS.search(text):
            counts["looks like a call"] += 1
            found["looks_like_a_call"] = True
        counts["with calls"] += bool(found["calls"])
        return found

    def _tools(self, tools: Any) -> Any:
        """Tools as the parser takes them; what was compiled for the same ones is used again."""
        if tools is None:
            return self._plan.tools
        key = json.dumps(tools, sort_keys=True)
        if key not in self._sets:
            if len(self._sets) >= _KEPT:
                self._sets.pop(next(iter(self._sets)))
            try:
                self._sets[key] = dict(map(_tool, tools))
            except (TypeError, AttributeError, KeyError):
                raise _BrokenError(f"{self._plan.tools_field} is no list of tools") from None
        return self._sets[key]


class _BrokenError(Exception):
    """A record that cannot be read."""


def _tool(entry: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    inside = entry.get("function", entry)
    name = inside["name"]
    if not isinstance(name, str):
        raise TypeError
    return name, inside.get("parameters") or inside.get("input_schema") or {}


def at(value: Any, path: str) -> Any:
    """What is at a path of a value; None: nothing."""
    for step in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, Sequence) and not isinstance(value, str) and step.lstrip("-").isdecimal():
            place = int(step)
            value = value[place] if -len(value) <= place < len(value) else None
        else:
            return None
    return value


def collected(events: Sequence[Event]) -> dict[str, Any]:
    """Events, as one result."""
    text: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    arguments: list[str] = []
    discarded: list[dict[str, str]] = []
    for event in events:
        match event:
            case TextDelta(text=piece):
                text.append(piece)
            case ReasoningDelta(text=piece):
                reasoning.append(piece)
            case CallStart(name=name, id=call_id):
                calls.append({"name": name, "format": event.format} | ({"id": call_id} if call_id else {}))
                arguments.clear()
            case ArgumentsDelta(text=piece):
                arguments.append(piece)
            case CallEnd(complete=complete, repairs=repairs):
                calls[-1] |= {"arguments": "".join(arguments), "complete": complete}
                if repairs:
                    calls[-1]["repairs"] = list(repairs)
            case Discarded(text=piece, reason=reason):
                discarded.append({"text": piece, "reason": reason})
    found: dict[str, Any] = {"text": "".join(text), "calls": calls}
    if reasoning:
        found["reasoning"] = "".join(reasoning)
    if discarded:
        found["discarded"] = discarded
    return found


def _replies(lines: Sequence[bytes]) -> Iterator[bytes | tuple[str, Any]]:
    """What the model wrote in each attempt of a recording, with the tools that it was offered."""
    pieces: dict[Any, list[str]] = {}
    tools: Any = None
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            continue  # the recording was cut
        if not isinstance(found, dict):
            continue
        if found.get("type") == "exchange":
            request = found.get("request")
            tools = request.get("tools") if isinstance(request, dict) else None
        elif found.get("type") == "parser":
            pieces[found.get("parser")] = []
        elif found.get("type") == "text":
            pieces.setdefault(found.get("parser"), []).append(found.get("text", ""))
    yield from (("".join(one), tools) for one in pieces.values())
