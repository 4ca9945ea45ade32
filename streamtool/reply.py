"""A reply, whatever its protocol, as events; and the fold of events into one whole.

An upstream's `ReplyReader` emits these events, the exchange turns text into calls, and the client's `ReplyWriter`
takes them. A reply that is not streamed is the fold of the same events: there is one code path.

The order of events in one reply, per choice: Start, then any of TextDelta · ReasoningDelta · (CallStart
ArgumentsDelta* CallEnd), then Finish; after the last Finish perhaps UsageReport; then End. Failure may stand anywhere
after nothing or something, is followed by nothing, and means that the reply is not whole.
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import assert_never

from attrs import Factory, define, frozen

from streamtool.errors import StreamtoolError, UpstreamError


class Reason(Enum):
    """Why a reply ended."""

    STOP = "stop"
    """The model stopped by itself, with or without calls."""
    STOP_SEQUENCE = "stop_sequence"
    """One of the caller's stop sequences was met."""
    LENGTH = "length"
    """The limit of tokens was reached."""
    FILTER = "filter"
    """A content filter or a refusal of the upstream."""
    PAUSE = "pause"
    """The upstream paused a long turn."""


@define
class ReplyStart:
    """The reply has begun. What the upstream does not tell is None and is made by the exchange."""

    id: str | None = None
    created: int | None = None
    model: str | None = None
    input: int = 0
    """Tokens of the prompt, as far as they are known; 0: not at all."""


@define
class ReplyTextDelta:
    """A piece of visible text. `raw` is the upstream's own event, to be forwarded, when its shape is canonical."""

    choice: int
    text: str
    raw: bytes | None = None


@define
class ReplyReasoningDelta:
    """A piece of the model's reasoning.

    `signature` is what the upstream signed the run of reasoning with that ends here (Messages); the text may be empty.
    """

    choice: int
    text: str
    signature: str | None = None


@define
class ReplyCallStart:
    """A call begins; its name is known. `id` None: the exchange makes one."""

    choice: int
    index: int
    id: str | None
    name: str
    signature: str | None = None
    """What the upstream signed the call with (Gemini); it wants that back with the call."""


@define
class ReplyArgumentsDelta:
    """A piece of the call's arguments."""

    choice: int
    index: int
    text: str


@define
class ReplyCallEnd:
    """The call is over; `complete` is False when its arguments were cut."""

    choice: int
    index: int
    complete: bool = True


@define
class ReplyFinish:
    """The choice is over. `stop_sequence` is the text of the caller's stop sequence that was met, if known."""

    choice: int
    reason: Reason
    stop_sequence: str | None = None


@frozen
class Usage:
    """Token counts; what is unknown is 0. `input` includes `cached`."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0
    estimated: bool = False
    """Some of it is an estimate, because the upstream did not tell."""
    retried: "Usage | None" = None
    """What earlier attempts at the same reply cost; None: there were none."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            self.reasoning + other.reasoning,
            self.estimated or other.estimated,
        )


@define
class UsageReport:
    """The upstream's token counts; the last report wins."""

    usage: Usage


@define
class ReplyFailure:
    """The reply broke; nothing follows."""

    error: StreamtoolError


@define
class ReplyEnd:
    """The upstream's own end of the reply was seen (`[DONE]`, a terminal event)."""


ReplyEvent = (
    ReplyStart
    | ReplyTextDelta
    | ReplyReasoningDelta
    | ReplyCallStart
    | ReplyArgumentsDelta
    | ReplyCallEnd
    | ReplyFinish
    | UsageReport
    | ReplyFailure
    | ReplyEnd
)


@frozen
class ReplyText:
    """A run of visible text between calls and reasoning; never empty."""

    text: str


@frozen
class ReplyReasoning:
    """A run of reasoning; never empty."""

    text: str
    signature: str | None = None
    """What the upstream signed it with."""


@frozen
class ReplyCall:
    """A call that the reply makes."""

    id: str | None
    """None: the text carried none, and the exchange makes one."""
    name: str
    arguments: str
    """JSON text as far as it came."""
    complete: bool = True
    signature: str | None = None


ReplyPart = ReplyText | ReplyReasoning | ReplyCall


@frozen
class Choice:
    """One of the `n` answers."""

    index: int
    parts: tuple[ReplyPart, ...] = ()
    """What it says, in order; neighbouring parts are never both text or both reasoning."""
    reason: Reason | None = None
    """None: the reply broke before it said why it ended."""
    stop_sequence: str | None = None

    @property
    def text(self) -> str:
        """All visible text, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, ReplyText))

    @property
    def reasoning(self) -> str:
        """All reasoning, joined."""
        return "".join(part.text for part in self.parts if isinstance(part, ReplyReasoning))

    @property
    def calls(self) -> tuple[ReplyCall, ...]:
        """All calls, in order."""
        return tuple(part for part in self.parts if isinstance(part, ReplyCall))


@frozen
class Reply:
    """A whole reply. `choices` are ordered by index."""

    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None
    """None: the upstream did not tell."""
    failure: StreamtoolError | None = None
    """Why the reply is not whole, if it is not."""
    ended: bool = False
    """True if the upstream's own end was seen."""
    id: str | None = None
    created: int | None = None
    model: str | None = None

    def whole(self, n: int = 1) -> tuple[Choice, ...]:
        """Its choices, if all `n` of them came to their end. Raises its failure, or UpstreamError."""
        if self.failure is not None:
            raise self.failure
        if len(self.choices) < n or any(choice.reason is None for choice in self.choices):
            raise UpstreamError("The upstream's reply ended without saying why.", code="upstream_closed")
        return self.choices


@define
class _OpenCall:
    """A call of which more may come."""

    id: str | None
    name: str
    pieces: list[str]
    complete: bool = False
    signature: str | None = None


@define
class _OpenChoice:
    """A choice of which more may come. A run is a list of pieces, joined once at the end."""

    parts: list[tuple[type[ReplyText | ReplyReasoning], list[str]] | _OpenCall] = Factory(list)
    signatures: dict[int, str] = Factory(dict)
    """Of runs of reasoning, by their place among the parts; such a run is over."""
    calls: dict[int, _OpenCall] = Factory(dict)
    reason: Reason | None = None
    stop_sequence: str | None = None

    def add(self, kind: type[ReplyText | ReplyReasoning], text: str) -> None:
        if not text:
            return
        last = self.parts[-1] if self.parts else None
        if isinstance(last, tuple) and last[0] is kind and len(self.parts) - 1 not in self.signatures:
            last[1].append(text)
        else:
            self.parts.append((kind, [text]))

    def sign(self, signature: str) -> None:
        last = self.parts[-1] if self.parts else None
        if isinstance(last, tuple) and last[0] is ReplyReasoning:
            self.signatures[len(self.parts) - 1] = signature

    def whole(self, index: int) -> Choice:
        parts: list[ReplyPart] = []
        for place, part in enumerate(self.parts):
            if isinstance(part, _OpenCall):
                parts.append(ReplyCall(part.id, part.name, "".join(part.pieces), part.complete, part.signature))
            elif part[0] is ReplyReasoning:
                parts.append(ReplyReasoning("".join(part[1]), self.signatures.get(place)))
            else:
                parts.append(ReplyText("".join(part[1])))
        return Choice(index, tuple(parts), self.reason, self.stop_sequence)


class ReplyAccumulator:
    """Folds the events of a reply into one whole, piece by piece; linear in the length of the reply.

    The first `ReplyStart` counts, the last `UsageReport`. A call without a `ReplyCallEnd` is incomplete.
    """

    __slots__ = ("_choices", "_ended", "_failure", "_start", "_usage")

    def __init__(self) -> None:
        self._start: ReplyStart | None = None
        self._choices: dict[int, _OpenChoice] = {}
        self._usage: Usage | None = None
        self._failure: StreamtoolError | None = None
        self._ended = False

    def feed(self, events: Iterable[ReplyEvent]) -> None:
        """Take more of the reply."""
        for event in events:
            match event:
                case ReplyTextDelta():
                    self._choice(event.choice).add(ReplyText, event.text)
                case ReplyArgumentsDelta():
                    self._choice(event.choice).calls[event.index].pieces.append(event.text)
                case ReplyReasoningDelta():
                    choice = self._choice(event.choice)
                    choice.add(ReplyReasoning, event.text)
                    if event.signature is not None:
                        choice.sign(event.signature)
                case ReplyCallStart():
                    choice = self._choice(event.choice)
                    call = choice.calls[event.index] = _OpenCall(event.id, event.name, [], signature=event.signature)
                    choice.parts.append(call)
                case ReplyCallEnd():
                    self._choice(event.choice).calls[event.index].complete = event.complete
                case ReplyFinish():
                    choice = self._choice(event.choice)
                    choice.reason, choice.stop_sequence = event.reason, event.stop_sequence
                case ReplyStart():
                    self._start = self._start or event
                case UsageReport():
                    self._usage = event.usage
                case ReplyFailure():
                    self._failure = event.error
                case ReplyEnd():
                    self._ended = True
                case _:
                    assert_never(event)

    def close(self) -> Reply:
        """The reply as far as it came."""
        start = self._start or ReplyStart()
        return Reply(
            choices=tuple(self._choices[index].whole(index) for index in sorted(self._choices)),
            usage=self._usage,
            failure=self._failure,
            ended=self._ended,
            id=start.id,
            created=start.created,
            model=start.model,
        )

    def _choice(self, index: int) -> _OpenChoice:
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = _OpenChoice()
        return choice


def accumulate(events: Iterable[ReplyEvent]) -> Reply:
    """The whole reply that `events` make."""
    machine = ReplyAccumulator()
    machine.feed(events)
    return machine.close()


_PIECE = 32 * 1024
"""Characters of a piece."""


def in_pieces(events: Iterable[ReplyEvent]) -> Iterator[ReplyEvent]:
    """The events, a long piece of text as several, which are searched one by one."""
    for event in events:
        if type(event) is ReplyTextDelta and len(event.text) > _PIECE:
            for begin in range(0, len(event.text), _PIECE):
                yield ReplyTextDelta(event.choice, event.text[begin : begin + _PIECE])
        else:
            yield event
