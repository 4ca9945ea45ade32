"""One record: its text, its tools, and what the parser makes of it."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import define, frozen

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
    tools_of,
)
from streamtool.batch.sources import Batch
from streamtool.exchange import ParserOptions
from streamtool.observe.lines import options_from_json
from streamtool.policy import NullParser, TextParser

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
class ReadingOptions:
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


class RecordReader:
    """Reads batches; each process has one."""

    __slots__ = ("_options", "_sets")

    def __init__(self, options: ReadingOptions) -> None:
        self._options = options
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
                found |= parsed(self._reply_of(record), counts)
            except _BrokenError as error:
                counts["broken"] += 1
                broken.append((number, str(error)))
                found["error"] = str(error)
            lines.append(json.dumps(found, ensure_ascii=False))
        data = "".join(line + "\n" for line in lines).encode("utf-8", "replace")
        last = batch.first if batch.recording else batch.first + len(batch.records) - 1
        return Result(batch.file, last, batch.read, data, counts, tuple(broken))

    def _records(self, batch: Batch) -> Iterable[tuple[int, "bytes | _Reply | _BrokenError"]]:
        return enumerate(self._recorded(batch.records) if batch.recording else batch.records, batch.first)

    def _reply_of(self, record: "bytes | _Reply | _BrokenError") -> "_Reply":
        if isinstance(record, _Reply):
            return record
        if isinstance(record, _BrokenError):
            raise record
        options = self._options
        assert options.field is not None  # noqa: S101  without it there are recordings only
        if not record:
            raise _BrokenError("the line is too long")
        try:
            value = json.loads(record)
        except (ValueError, RecursionError) as error:
            raise _BrokenError(f"no JSON: {error}") from None
        text = at(value, options.field)
        if text is None:
            raise _BrokenError(f"there is nothing at {options.field}")
        if not isinstance(text, str):
            raise _BrokenError(f"{options.field} is no text")
        tools = None if options.tools_field is None else at(value, options.tools_field)
        if isinstance(tools, str):  # as data sets keep them
            try:
                tools = json.loads(tools)
            except ValueError:
                raise _BrokenError(f"{options.tools_field} is no JSON") from None
        return _Reply(text, Parser(self._tools(tools), formats=options.formats, prefix=options.prefix))

    def _tools(self, tools: Any) -> Any:
        """Tools as the parser takes them; what was compiled for the same ones is used again."""
        if tools is None:
            return self._options.tools
        key = json.dumps(tools, sort_keys=True)
        if key not in self._sets:
            if len(self._sets) >= _KEPT:
                self._sets.pop(next(iter(self._sets)))
            try:
                self._sets[key] = tools_of(tools)
            except TypeError:
                raise _BrokenError(f"{self._options.tools_field} is no list of tools") from None
        return self._sets[key]

    def _recorded(self, lines: Sequence[bytes]) -> Iterator["_Reply | _BrokenError"]:
        """What the model wrote in each attempt of a recording; its parser is made as it was then."""
        replies: dict[int, _Reply] = {}
        made: ParserOptions | None = None
        for line in lines:
            try:
                found = json.loads(line)
                match found["type"]:
                    case "parser":
                        if "made_with" in found:
                            made = None if found["made_with"] is None else options_from_json(found["made_with"])
                        replies[found["parser"]] = _Reply("", self._parser(made))
                    case "text":
                        replies[found["parser"]].text += found["text"]
                    case "close":
                        replies[found["parser"]].reason = found["reason"]
            except (ValueError, KeyError, TypeError, AttributeError):
                if line is lines[-1]:
                    break  # the recording was cut
                yield _BrokenError("this is no line of a recording that this version can read")
                return
        yield from replies.values()

    def _parser(self, made: ParserOptions | None) -> TextParser:
        """As it was, but for what the options say."""
        options = self._options
        if options.tools is not None or options.formats is not None:
            return Parser(options.tools, formats=options.formats, prefix=options.prefix)
        return NullParser() if made is None else made.parser()


@define
class _Reply:
    """What a model wrote, and the parser that is to read it."""

    text: str
    parser: TextParser
    reason: str | None = None
    """Why it ended, where that is known."""


def parsed(reply: _Reply, counts: Counter[str]) -> dict[str, Any]:
    """What the parser makes of a reply, which is counted."""
    counts["characters"] += len(reply.text)
    found = collected([*reply.parser.feed(reply.text), *reply.parser.close(reply.reason)])
    for call in found["calls"]:
        counts[f"calls/{call['format']}"] += 1
        counts["incomplete"] += not call["complete"]
        for repair in call.get("repairs", ()):
            counts[f"repairs/{repair}"] += 1
    for one in found.get("discarded", ()):
        counts[f"discarded/{one['reason']}"] += len(one["text"])
    if not found["calls"] and _OPENERS.search(reply.text):
        counts["looks like a call"] += 1
        found["looks_like_a_call"] = True
    counts["with calls"] += bool(found["calls"])
    return found


class _BrokenError(Exception):
    """A record that cannot be read."""


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
