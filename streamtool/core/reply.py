"""A protocol-independent reply as a stream of events, and the accumulator of these events.

An upstream's `ReplyReader` emits the events, the exchange turns text into calls, and the client's `ReplyWriter`
consumes the result. Replies that are not streamed are accumulated from the same events, so there is only one code path.

The events of each choice are in this order: Start, then any number of TextDelta · ReasoningDelta · (CallStart
ArgumentsDelta* CallEnd), then Finish. After the last Finish, there may be a UsageReport; the last event is End. A
Failure may occur at any point; no event follows it, and the reply is incomplete.
"""

from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final, assert_never

from attrs import Factory, define, evolve, field

from streamtool.core.errors import StreamtoolError, UpstreamError
from streamtool.core.values import frozen


class Reason(Enum):
    """The reason why a reply ended."""

    STOP = "stop"
    """The model stopped on its own, with or without calls."""
    STOP_SEQUENCE = "stop_sequence"
    """One of the caller's stop sequences occurred."""
    LENGTH = "length"
    """The token limit was reached."""
    FILTER = "filter"
    """The upstream's content filter intervened, or the upstream refused to answer."""
    PAUSE = "pause"
    """The upstream paused a long turn."""


@define
class ReplyStart:
    """The start of the reply. Fields that the upstream does not provide stay None, and the exchange fills them in."""

    id: str | None = None
    created: int | None = None
    model: str | None = None
    input: int = 0
    """The number of prompt tokens; 0 if unknown."""


@define
class ReplyTextDelta:
    """A piece of visible text. `raw` is the upstream's own event if it can be forwarded unchanged."""

    choice: int
    text: str
    raw: bytes | None = None


@define
class ReplyReasoningDelta:
    """A piece of the model's reasoning.

    `signature` is the upstream's signature for the run of reasoning that ends here (Messages); the text may be empty.
    """

    choice: int
    text: str
    signature: str | None = None


@define
class ReplyCallStart:
    """The start of a call, with its name. The exchange generates an id if the upstream sends none."""

    choice: int
    index: int
    id: str | None
    name: str
    signature: str | None = None
    """The upstream's signature (Gemini), which must be sent back with the call."""


@define
class ReplyArgumentsDelta:
    """A piece of a call's arguments."""

    choice: int
    index: int
    text: str


@define
class ReplyCallEnd:
    """The end of a call. `complete` is False if the arguments were cut off. `repeated` means that the call repeats a
    result or a tool's description, but no user's message, if such calls are reported.
    """

    choice: int
    index: int
    complete: bool = True
    repeated: bool = False


@define
class ReplyFinish:
    """The end of a choice. `stop_sequence` is the caller's stop sequence that ended it, if known."""

    choice: int
    reason: Reason
    stop_sequence: str | None = None


@frozen
class Usage:
    """Token usage; unknown counts are 0. `input` includes `cached`."""

    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0
    estimated: bool = False
    """Whether some counts are estimates, because the upstream did not report them."""
    retried: "Usage | None" = None
    """Usage of earlier attempts at the same reply, or None if this was the first attempt."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            self.reasoning + other.reasoning,
            self.estimated or other.estimated,
        )


NO_USAGE: Final = Usage()
"""Usage of a reply without a report."""


@define
class UsageReport:
    """Token usage as reported by the upstream; the last report wins."""

    usage: Usage


@define
class ReplyFailure:
    """A failure of the reply; no event follows."""

    error: StreamtoolError


@define
class ReplyEnd:
    """The upstream's own end of the reply (`[DONE]`, a terminal event)."""


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
    """The upstream's signature."""


@frozen
class ReplyCall:
    """A call in the reply."""

    id: str | None
    """The call's id, or None if the text contained no id; the exchange then generates one."""
    name: str
    arguments: str
    """The arguments as JSON text, or the part of the text that was received."""
    complete: bool = True
    signature: str | None = None


ReplyPart = ReplyText | ReplyReasoning | ReplyCall


@frozen
class Choice:
    """One of the `n` alternative replies."""

    index: int
    parts: tuple[ReplyPart, ...] = ()
    """The content in order; adjacent parts are never both text or both reasoning."""
    reason: Reason | None = None
    """The reason why the choice ended, or None if the reply was cut off before that."""
    stop_sequence: str | None = None

    def without_truncated_calls(self) -> "Choice":
        """Return the choice without its truncated calls, which a client could mistake for complete ones."""
        if all(call.complete for call in self.calls):
            return self
        kept = tuple(part for part in self.parts if not isinstance(part, ReplyCall) or part.complete)
        return evolve(self, parts=kept)

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
    """A reply put together from its events. `choices` are ordered by index."""

    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None
    """The token usage, or None if the upstream reported none."""
    failure: StreamtoolError | None = None
    """The error that cut off the reply, if any."""
    ended: bool = False
    """Whether the upstream itself marked the end of the reply."""
    id: str | None = None
    created: int | None = None
    model: str | None = None

    def whole(self, n: int = 1) -> tuple[Choice, ...]:
        """Return the choices, without truncated calls, if all `n` of them have finished. Otherwise, raise the reply's
        failure or, if it has none, UpstreamError.
        """
        if self.failure is not None:
            raise self.failure
        if len(self.choices) < n or any(choice.reason is None for choice in self.choices):
            raise UpstreamError("The upstream's reply ended without a finish reason.", code="upstream_closed")
        return tuple(choice.without_truncated_calls() for choice in self.choices)


@define
class _AccumulatedCall:
    """A call that has not ended yet."""

    id: str | None
    name: str
    pieces: list[str]
    complete: bool = False
    signature: str | None = None


@define
class _OpenChoice:
    """A choice that has not ended yet. A run is a list of pieces, joined once at the end."""

    parts: list[tuple[type[ReplyText | ReplyReasoning], list[str]] | _AccumulatedCall] = Factory(list)
    signatures: dict[int, str] = Factory(dict)
    """Signatures of the runs of reasoning that have ended, by index in `parts`."""
    calls: dict[int, _AccumulatedCall] = Factory(dict)
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
            if isinstance(part, _AccumulatedCall):
                parts.append(ReplyCall(part.id, part.name, "".join(part.pieces), part.complete, part.signature))
            elif part[0] is ReplyReasoning:
                parts.append(ReplyReasoning("".join(part[1]), self.signatures.get(place)))
            else:
                parts.append(ReplyText("".join(part[1])))
        return Choice(index, tuple(parts), self.reason, self.stop_sequence)


@define(eq=False)
class ReplyAccumulator:
    """An accumulator of a reply's events. Its cost is linear in the length of the reply.

    Only the first `ReplyStart` and the last `UsageReport` are used. A call without a `ReplyCallEnd` is incomplete.
    """

    _start: ReplyStart | None = field(default=None, init=False)
    _choices: dict[int, _OpenChoice] = field(factory=dict, init=False)
    _usage: Usage | None = field(default=None, init=False)
    _failure: StreamtoolError | None = field(default=None, init=False)
    _ended: bool = field(default=False, init=False)

    def feed(self, events: Iterable[ReplyEvent]) -> None:
        """Add the reply's next events."""
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
                    call = choice.calls[event.index] = _AccumulatedCall(
                        event.id, event.name, [], signature=event.signature
                    )
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
        """Return the part of the reply that has been received."""
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


_MAX_PIECE = 32 * 1024
"""Maximum length of a piece, in characters."""


def split_long_text(events: Iterable[ReplyEvent]) -> Iterator[ReplyEvent]:
    """Yield the events, with long text split into pieces, so that each piece can be searched separately."""
    for event in events:
        if type(event) is ReplyTextDelta and len(event.text) > _MAX_PIECE:
            for begin in range(0, len(event.text), _MAX_PIECE):
                yield ReplyTextDelta(event.choice, event.text[begin : begin + _MAX_PIECE])
        else:
            yield event
