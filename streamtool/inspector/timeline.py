"""The timeline of an exchange: the model's deltas, and when the client received them.

It is created from the lines of a recording (`observe.lines`). There is a timeline for each parser of the exchange: one
per choice and attempt. The parser is run again with a ledger, because the lines do not record the kind of each
character or why it was buffered.

    steps       [seconds, start, end, state, held, why, waits, events]: a piece of the reply, its span in the text, the
                parser's state and number of buffered characters after it, why they are buffered, why text is waiting
                outside the parser, and the events
    segments    [start, end, kind, came, left, why]: a span of the text, its kind according to the ledger, the step in
                which it arrived, the step in which it was released (null: never), and why it had to wait. Two kinds are
                not in the ledger: `held` (not yet known) and `quotation` (a call that the client receives as text)
    sent        [seconds, step, events]: events that the client received, and the step before them

`came` and `left` differ only for text that was buffered.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final

from attrs import asdict

import statemachine
from streamtool.core.json_value import Json
from streamtool.observe.lines import Line, options_from_json
from streamtool.observe.parser_events import event_as_json

NEVER_SENT: Final = "it never reached the client: the attempt was not accepted"
VISIBLE: Final = {"text": "text_delta", "reasoning": "reasoning_delta"}
"""Ledger kinds whose text reaches the client unchanged, and the types of the events that carry it."""


class ReplyTimeline:
    """The timeline of one `parser`, which must be new and have a ledger. If it is None, all text is passed through."""

    def __init__(self, number: int, choice: int, attempt: int, parser: statemachine.Parser | None) -> None:
        self.number = number
        self.choice = choice
        self.attempt = attempt
        self._parser = parser
        self._text: list[str] = []
        self._steps: list[list[Json]] = []
        self.events: list[statemachine.Event] = []
        """All events of the parser."""
        self._released: list[int] = []
        """For each step, the end of the text that had been released by then."""
        self.sent: list[list[Json]] = []
        self.waits = ""
        """The reason why text is waiting outside the parser; empty if none is waiting."""
        self.quoted: list[str] = []
        self.rejected: str | None = None

    def feed(self, seconds: float, text: str, events: Sequence[Json] | None = None) -> None:
        """Feed a piece of the reply. `events` are the recorded events; if None, the client is assumed to receive the
        parser's events immediately.
        """
        parser = self._parser
        start = self._steps[-1][2] if self._steps else 0
        end = start + len(text)
        held, state, why = 0, "text", ""
        found: list[statemachine.Event] = []
        if parser is not None:
            found = parser.feed(text)
            held, state, why = parser.held, parser.state.value, parser.waits_for
        self._text.append(text)
        self._add([seconds, start, end, state, held, why, self.waits], events, found)

    def close(self, seconds: float, reason: str | None, events: Sequence[Json] | None = None) -> None:
        """Close the parser at the end of the reply."""
        found = [] if self._parser is None else self._parser.close(reason)
        end = self._steps[-1][2] if self._steps else 0
        self._add([seconds, end, end, "closed", 0, "", self.waits], events, found)

    def _add(self, step: list[Json], events: Sequence[Json] | None, found: Sequence[statemachine.Event]) -> None:
        self.events += found
        self._steps.append([*step, [event_as_json(event) for event in found] if events is None else list(events)])
        self._released.append(max(step[2] - step[4], self._released[-1] if self._released else 0))
        if events is None and found:
            self.receive(step[0], received_events(found))

    def wait(self, why: str) -> None:
        """Record the reason why text is waiting outside the parser from now on; "" means that none is waiting."""
        self.waits = why
        if self._steps:
            self._steps[-1][6] = why

    def receive(self, seconds: float, events: Sequence[Json]) -> None:
        """Record the events that the client received."""
        self.sent.append([seconds, max(len(self._steps) - 1, 0), list(events)])
        if self._steps:
            self._steps[-1][6] = ""
        self.waits = ""

    def as_json(self) -> Json:
        """Return the timeline."""
        return {
            "parser": self.number,
            "choice": self.choice,
            "attempt": self.attempt,
            "rejected": self.rejected,
            "quoted": self.quoted,
            "text": "".join(self._text),
            "steps": self._steps,
            "segments": self._segments(),
            "sent": self.sent,
        }

    # --- segments

    def _segments(self) -> list[list[Json]]:
        if not self._steps:
            return []
        length = self._steps[-1][2]
        spans = self._spans(length)
        bounds = {0, length, *(end for _, end, _ in spans), *(step[2] for step in self._steps), *self._released}
        starts = [step[1] for step in self._steps]
        late = self._late(spans)
        found: list[list[Json]] = []
        ends = sorted(bound for bound in bounds if 0 < bound <= length)
        start, span = 0, 0
        for end in ends:
            while spans[span][1] <= start:
                span += 1
            came = bisect_right(starts, start) - 1
            left: int | None = bisect_right(self._released, start)
            why = "" if left == came else self._steps[came][5]
            if left == len(self._steps):
                left = None
            kind = spans[span][2]
            if left is not None and kind in VISIBLE and (later := late.get(kind)) is not None:
                sent, waited = later(start)
                if sent is None or sent > left:
                    why, left = waited or why or NEVER_SENT, sent
            found.append([start, end, kind, came, left, why])
            start = end
        return found

    def _spans(self, length: int) -> list[tuple[int, int, str]]:
        """Return the start, end and kind of each span of the text."""
        if self._parser is None:
            return [(0, length, "text")]
        spans = [(span.start, span.end, span.kind) for span in self._parser.ledger]
        if self.quoted:
            spans = self._with_quotations(spans)
        end = spans[-1][1] if spans else 0
        return [*spans, (end, length, "held")] if end < length or not spans else spans

    def _with_quotations(self, spans: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
        """Merge the spans of each call that was sent as text into one span of kind `quotation`."""
        text = "".join(self._text)
        sent = "".join(
            event["text"] for _, _, events in self.sent for event in events if event["type"] in VISIBLE.values()
        )
        found: list[tuple[int, int, str]] = []
        for call, group in groupby(spans, lambda span: span[2] not in (*VISIBLE, "discard")):
            members = list(group)
            start, end = members[0][0], members[-1][1]
            quoted = call and text[start:end].strip() in sent
            found += [(start, end, "quotation")] if quoted else members
        return found

    def _late(self, spans: Sequence[tuple[int, int, str]]) -> dict[str, "SendLookup"]:
        """Return, for each visible kind, a lookup of the step in which each character was sent. Kinds whose text was
        changed before it was sent are omitted.
        """
        texts = self._text if self._parser is None else _texts(self.events, statemachine.TextDelta)
        emitted = {
            "text": "".join(texts),
            "reasoning": "".join(_texts(self.events, statemachine.ReasoningDelta)),
        }
        found = {}
        for kind, name in VISIBLE.items():
            pieces = [
                (step, "".join(event.get("text") or "" for event in events if event["type"] == name))
                for _, step, events in self.sent
            ]
            if not self.quoted and emitted[kind].startswith("".join(piece for _, piece in pieces)):
                places = [(start, end) for start, end, other in spans if other == kind]
                found[kind] = SendLookup(places, pieces, self._steps)
        return found


def _texts(
    events: Iterable[statemachine.Event], kind: type[statemachine.TextDelta] | type[statemachine.ReasoningDelta]
) -> list[str]:
    return [event.text for event in events if isinstance(event, kind)]


class SendLookup:
    """A lookup of the step in which the client received each character of one kind."""

    def __init__(
        self, places: Sequence[tuple[int, int]], pieces: Sequence[tuple[int, str]], steps: Sequence[Sequence[Json]]
    ) -> None:
        self._places = [start for start, _ in places]
        self._before: list[int] = []
        """Number of characters of this kind before each span."""
        count = 0
        for start, end in places:
            self._before.append(count)
            count += end - start
        self._reach: list[int] = []
        """Number of characters of this kind that had been sent after each event."""
        self._sent = [step for step, piece in pieces if piece]
        count = 0
        for _, piece in pieces:
            if piece:
                count += len(piece)
                self._reach.append(count)
        self._steps = steps
        self._starts = [step[1] for step in steps]

    def __call__(self, at: int) -> tuple[int | None, str]:
        """Return the step in which this character was sent, or None if it never was, and why it waited outside the
        parser.
        """
        place = bisect_right(self._places, at) - 1
        number = self._before[place] + at - self._places[place]
        event = bisect_right(self._reach, number)
        came = bisect_right(self._starts, at) - 1
        waited = next((step[6] for step in self._steps[came : came + 2] if step[6]), "")
        return (self._sent[event] if event < len(self._sent) else None), waited


def received_events(events: Sequence[statemachine.Event]) -> list[Json]:
    """Return the events that a client would receive for these parser events if they were not filtered any further."""
    found: list[Json] = []
    for event in events:
        match event:
            case statemachine.TextDelta(text=text):
                found.append({"type": "text_delta", "text": text})
            case statemachine.ReasoningDelta(text=text):
                found.append({"type": "reasoning_delta", "text": text})
            case statemachine.CallStart(name=name, id=id):
                found.append({"type": "call_start", "name": name, "id": id})
            case statemachine.ArgumentsDelta(text=text):
                found.append({"type": "arguments_delta", "text": text})
            case statemachine.CallEnd():
                found.append({"type": "call_end", **asdict(event)})
            case _:
                pass
    return found


def parser_with_ledger(made_with: Mapping[str, Json]) -> statemachine.Parser:
    """Return a parser with these options and a ledger."""
    return options_from_json(made_with).parser(ledger=True)


def timelines(lines: Iterable[Line]) -> list[ReplyTimeline]:
    """Return the timelines of all parsers in an exchange."""
    found: dict[int, ReplyTimeline] = {}
    current: dict[int, ReplyTimeline] = {}
    """The current attempt's timelines, by choice."""
    attempt, made_with = 0, None
    for line in lines:
        match line["type"]:
            case "attempt":
                attempt = line["attempt"]
            case "parser":
                made_with = line.get("made_with", made_with)
                parser = None if made_with is None else parser_with_ledger(made_with)
                reply = ReplyTimeline(line["parser"], line["choice"], attempt, parser)
                found[line["parser"]] = current[line["choice"]] = reply
            case "text":
                found[line["parser"]].feed(line["seconds"], line["text"], line["events"])
            case "close":
                found[line["parser"]].close(line["seconds"], line["reason"], line["events"])
            case "waits":
                for reply in current.values():
                    reply.wait(line["why"])
            case "quotation":
                if line["choice"] in current:
                    current[line["choice"]].quoted.append(line["why"])
            case "sent":
                _receive(current, line)
            case "record":
                rejected = [one["reason"] for one in line.get("attempts", ())]
                for reply in found.values():
                    if 0 < reply.attempt <= len(rejected):
                        reply.rejected = rejected[reply.attempt - 1]
            case _:
                pass
    return list(found.values())


def _receive(current: Mapping[int, ReplyTimeline], line: Line) -> None:
    by_choice: dict[int, list[Json]] = {}
    for event in line["events"]:
        by_choice.setdefault(event.get("choice", 0), []).append(event)
    for choice, events in by_choice.items():
        if choice in current:
            current[choice].receive(line["seconds"], events)
