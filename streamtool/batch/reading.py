"""Reading of one record: its text, its tools, and the parser's result."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import define, field, frozen

from statemachine import (
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
from streamtool.core.json_value import json_line
from streamtool.exchange.listener import ParserOptions
from streamtool.exchange.near_calls import openers_pattern
from streamtool.filters import NullParser, TextParser
from streamtool.observe.lines import options_from_json

_CACHED_SETS = 64
"""Maximum number of tool sets to cache in compiled form."""


@frozen
class ReadingOptions:
    """Options for reading records."""

    field: str | None
    """Path to the text in a record: names separated by dots, with numbers for list positions. None: only recordings are
    read.
    """
    tools_field: str | None = None
    """Path to the tools in a record. None: records contain no tools."""
    tools: Mapping[str, Any] | None = None
    """Tools for records that contain none. None: any name is accepted as a tool."""
    formats: tuple[str, ...] | None = None
    prefix: str = ""


@frozen
class Result:
    """Result of a batch."""

    file: str
    last: int
    """Number of the batch's last record."""
    read: int
    lines: bytes
    """One line of JSON per record."""
    counts: Counter[str]
    broken: tuple[tuple[int, str], ...]
    """Records that could not be read: number and reason."""


@define(eq=False)
class RecordReader:
    """Reader for batches; each process has one."""

    _options: ReadingOptions
    _sets: dict[str, Any] = field(factory=dict, init=False)

    def read(self, batch: Batch) -> Result:
        """Read every record of a batch."""
        lines: list[str] = []
        counts: Counter[str] = Counter()
        broken: list[tuple[int, str]] = []
        for number, record in self._records(batch):
            found: dict[str, Any] = {"file": batch.file, "record": number}
            counts["records"] += 1
            try:
                found |= parse_reply(self._reply_of(record), counts)
            except _BrokenError as error:
                counts["broken"] += 1
                broken.append((number, str(error)))
                found["error"] = str(error)
            lines.append(json_line(found))
        data = "".join(line + "\n" for line in lines).encode("utf-8", "replace")
        last = batch.first if batch.recording else batch.first + len(batch.records) - 1
        return Result(batch.file, last, batch.read, data, counts, tuple(broken))

    def _records(self, batch: Batch) -> Iterable[tuple[int, "bytes | _RecordedReply | _BrokenError"]]:
        return enumerate(self._recorded_replies(batch.records) if batch.recording else batch.records, batch.first)

    def _reply_of(self, record: "bytes | _RecordedReply | _BrokenError") -> "_RecordedReply":
        if isinstance(record, _RecordedReply):
            return record
        if isinstance(record, _BrokenError):
            raise record
        options = self._options
        assert options.field is not None  # noqa: S101  without a field, only recordings are read
        if not record:
            raise _BrokenError("the line is too long")
        try:
            value = json.loads(record)
        except (ValueError, RecursionError) as error:
            raise _BrokenError(f"invalid JSON: {error}") from None
        text = value_at(value, options.field)
        if text is None:
            raise _BrokenError(f"no value at {options.field}")
        if not isinstance(text, str):
            raise _BrokenError(f"{options.field} is not a string")
        tools = None if options.tools_field is None else value_at(value, options.tools_field)
        if isinstance(tools, str):  # some data sets store tools as a JSON string
            try:
                tools = json.loads(tools)
            except ValueError:
                raise _BrokenError(f"{options.tools_field} is not valid JSON") from None
        return _RecordedReply(text, Parser(self._tools(tools), formats=options.formats, prefix=options.prefix))

    def _tools(self, tools: Any) -> Any:
        """Convert a record's tools to the parser's type; equal tool sets are converted only once."""
        if tools is None:
            return self._options.tools
        key = json.dumps(tools, sort_keys=True)
        if key not in self._sets:
            if len(self._sets) >= _CACHED_SETS:
                self._sets.pop(next(iter(self._sets)))
            try:
                self._sets[key] = tools_of(tools)
            except TypeError:
                raise _BrokenError(f"{self._options.tools_field} is not a list of tools") from None
        return self._sets[key]

    def _recorded_replies(self, lines: Sequence[bytes]) -> Iterator["_RecordedReply | _BrokenError"]:
        """Yield the model's text for each attempt in a recording, with a parser created from the recorded options."""
        replies: dict[int, _RecordedReply] = {}
        made: ParserOptions | None = None
        for line in lines:
            try:
                found = json.loads(line)
                match found["type"]:
                    case "parser":
                        if "made_with" in found:
                            made = None if found["made_with"] is None else options_from_json(found["made_with"])
                        replies[found["parser"]] = _RecordedReply("", self._parser(made))
                    case "text":
                        replies[found["parser"]].text += found["text"]
                    case "close":
                        replies[found["parser"]].reason = found["reason"]
            except (ValueError, KeyError, TypeError, AttributeError):
                if line is lines[-1]:
                    break  # the recording was cut off
                yield _BrokenError("not a line of a recording that this version can read")
                return
        yield from replies.values()

    def _parser(self, made: ParserOptions | None) -> TextParser:
        """Return a parser with the recorded options, or with the user's tools and formats if any were given."""
        options = self._options
        if options.tools is not None or options.formats is not None:
            return Parser(options.tools, formats=options.formats, prefix=options.prefix)
        return NullParser() if made is None else made.parser()


@define
class _RecordedReply:
    """Text from a model, and the parser for it."""

    text: str
    parser: TextParser
    reason: str | None = None
    """Reason why the text ended, if known."""


def parse_reply(reply: _RecordedReply, counts: Counter[str]) -> dict[str, Any]:
    """Parse a reply, update `counts`, and return the result."""
    counts["characters"] += len(reply.text)
    found = collect_events([*reply.parser.feed(reply.text), *reply.parser.close(reply.reason)])
    for call in found["calls"]:
        counts[f"calls/{call['format']}"] += 1
        counts["incomplete"] += not call["complete"]
        for repair in call.get("repairs", ()):
            counts[f"repairs/{repair}"] += 1
    for one in found.get("discarded", ()):
        counts[f"discarded/{one['reason']}"] += len(one["text"])
    if not found["calls"] and openers_pattern().search(reply.text):
        counts["looks like a call"] += 1
        found["looks_like_a_call"] = True
    counts["with calls"] += bool(found["calls"])
    return found


class _BrokenError(Exception):
    """A record that cannot be read."""


def value_at(value: Any, path: str) -> Any:
    """Return the value at a dotted path, or None if it does not exist."""
    for step in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, Sequence) and not isinstance(value, str) and step.lstrip("-").isdecimal():
            place = int(step)
            value = value[place] if -len(value) <= place < len(value) else None
        else:
            return None
    return value


def collect_events(events: Sequence[Event]) -> dict[str, Any]:
    """Collect parser events into one result."""
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
