"""One scenario against one variant: requests through the middleware, as `serve` handles them, until a verdict. The
baseline sends the same requests to the upstream itself.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import anyio
from attrs import evolve, field, frozen

from streamtool.asgi.types import SCOPE, ASGIApp, ask, never_disconnects
from streamtool.core.conversation import (
    Conversation,
    Message,
    Options,
    OutputFormat,
    TextPart,
    ToolCall,
    ToolChoice,
    ToolResult,
)
from streamtool.core.errors import StreamtoolError, UpstreamError
from streamtool.core.reply import Choice, ReplyAccumulator, ReplyArgumentsDelta, Usage
from streamtool.evaluation import baseline
from streamtool.evaluation.judge import Verdict, advance, begin, judge
from streamtool.evaluation.scenario import MadeCall, Scenario
from streamtool.exchange import Record
from streamtool.middleware import ToolMiddleware
from streamtool.protocols import chat
from streamtool.protocols.interfaces import UpstreamProtocol
from streamtool.protocols.registry import UPSTREAMS
from streamtool.settings import ModelSettings, Settings

MAX_REPLIES: Final = 5
"""Maximum number of replies in one conversation."""
TOKENS: Final = 400
"""Maximum length of a reply, in tokens; the longest right one has about 120."""
_OK: Final = '{"status": "ok"}'
_CHOICES: Final[Mapping[str, ToolChoice]] = {
    choice.mode: choice for choice in (ToolChoice(), ToolChoice("none"), ToolChoice("required"))
}
"""Tool choices by their name in a scenario; any other name is that of a tool."""


@frozen
class ScenarioOutcome:
    """The result of one scenario."""

    scenario: str
    verdict: Verdict
    group: str = ""
    demanded: bool = False
    """Whether the client demanded a call."""
    requests: int = 0
    """Number of requests that the client sent."""
    retries: int = 0
    """Number of replies that the middleware rejected and requested again."""
    prompt_tokens: int = 0
    """Tokens of the first prompt."""
    reply_tokens: int = 0
    """Tokens of all replies."""
    first_byte: float | None = None
    """Seconds to the first byte of the first reply."""
    first_call: float | None = None
    """Seconds to the beginning of the first call."""
    seconds: float = 0.0
    """Seconds of all replies."""
    error: str = ""
    """The error that ended the conversation, if any."""
    transcript: tuple[str, ...] = field(default=(), repr=False)
    """The text and the calls that the client received, reply by reply."""


@frozen
class TimedReply:
    """A reply as the client received it."""

    choice: Choice
    usage: Usage
    first_byte: float | None
    """Seconds to the first piece of the body."""
    first_call: float | None
    """Seconds to the beginning of the first call's arguments."""
    seconds: float


class Measurement:
    """Sends scenarios through one middleware or, if `naive`, to the upstream. The upstream is an ASGI app in one
    protocol.
    """

    def __init__(self, app: ASGIApp, settings: Settings, model: str, *, seconds: float, naive: bool = False) -> None:
        self._records: list[Record] = []
        self._requests = 0
        self._naive = naive
        if naive:
            self._app = app
            self._model = settings.for_model(model)
            self._protocol: UpstreamProtocol = UPSTREAMS[self._model.protocol or chat.NAME]
        else:
            self._app = ToolMiddleware(app, settings=settings, on_exchange=self._records.append)
            self._model = ModelSettings(model)
            self._protocol = UPSTREAMS[chat.NAME]
        self._seconds = seconds

    async def ask(self, scenario: Scenario) -> ScenarioOutcome:
        """Conduct the conversation of the scenario, and return its outcome, including any error."""
        self._records.clear()
        self._requests = 0
        messages = list(scenario.messages)
        progress, counts = begin(scenario), dict.fromkeys(scenario.results, 0)
        replies: list[TimedReply] = []
        error = ""
        for _ in range(MAX_REPLIES):
            first = len(messages) == len(scenario.messages)
            try:
                reply = await self._reply(self._conversation(scenario, messages, first=first))
            except StreamtoolError as failed:
                error = failed.message
                break
            replies.append(reply)
            choice = reply.choice
            calls = [MadeCall(call.name, call.arguments, call.complete) for call in choice.calls]
            progress = advance(scenario, progress, calls, choice.text)
            if progress.done:
                break
            messages += _with_results(scenario, choice, counts)
        verdict = judge(scenario, progress)
        if error:
            verdict = evolve(verdict, right=False, why=error)
        return ScenarioOutcome(
            scenario.name,
            verdict,
            scenario.group,
            scenario.demands,
            requests=self._requests,
            retries=sum(len(record.attempts) for record in self._records),
            prompt_tokens=replies[0].usage.input if replies else 0,
            reply_tokens=sum(reply.usage.output for reply in replies),
            first_byte=replies[0].first_byte if replies else None,
            first_call=next((reply.first_call for reply in replies if reply.first_call is not None), None),
            seconds=sum(reply.seconds for reply in replies),
            error=error,
            transcript=tuple(map(_transcript, replies)),
        )

    def _conversation(self, scenario: Scenario, messages: Sequence[Message], *, first: bool) -> Conversation:
        choice = ToolChoice()
        if first:
            choice = _CHOICES.get(scenario.choice) or ToolChoice("required", (scenario.choice,))
        form = None if scenario.form is None else OutputFormat(scenario.form)
        return Conversation(
            "eval",
            self._model.name,
            tuple(messages),
            tools=scenario.tools,
            choice=choice,
            include_usage=True,
            options=Options(max_tokens=TOKENS, sampling={"temperature": 0.0}, output=form),
        )

    async def _reply(self, asked: Conversation) -> TimedReply:
        """Send one request and return the reply. Raises StreamtoolError."""
        protocol = self._protocol
        reader, fold = protocol.ReplyReader(), ReplyAccumulator()
        began = anyio.current_time()
        first: dict[str, float] = {}

        def take(piece: bytes) -> None:
            events = reader.feed(piece)
            fold.feed(events)
            now = anyio.current_time() - began
            if piece:
                first.setdefault("byte", now)
            if any(isinstance(event, ReplyArgumentsDelta) for event in events):
                first.setdefault("call", now)

        if self._naive:
            asked = baseline.without_tools(asked)
        self._requests += 1
        answer = None
        with anyio.move_on_after(self._seconds):
            answer = await ask(
                self._app,
                SCOPE,
                "POST",
                protocol.request_path(self._model, stream=True),
                body=protocol.write_request(asked, self._model, stream=True),
                headers=[(b"content-type", b"application/json")],
                receive=never_disconnects,
                on_piece=take,
            )
        if answer is None:
            raise StreamtoolError(f"no complete reply within {self._seconds:g} seconds")
        if answer.status != 200:
            told = protocol.read_error(answer.status, answer.body)
            raise UpstreamError(told.message) if answer.status in (502, 503) else StreamtoolError(told.message)
        fold.feed(reader.close())
        reply = fold.close()
        if reply.failure is not None:
            raise StreamtoolError(reply.failure.message)
        choice, seconds = next(iter(reply.choices), Choice(0)), anyio.current_time() - began
        if self._naive:
            choice = baseline.with_calls(choice)
            if choice.calls:
                first["call"] = seconds  # the reply is searched when it is complete
        return TimedReply(choice, reply.usage or Usage(), first.get("byte"), first.get("call"), seconds)


def _transcript(reply: TimedReply) -> str:
    calls = (f"{call.name} {call.arguments}" for call in reply.choice.calls)
    return "\n".join([reply.choice.text, *calls]).strip()


def _with_results(scenario: Scenario, choice: Choice, counts: dict[str, int]) -> tuple[Message, Message]:
    """Return the reply and the results of its calls as messages."""
    calls = tuple(ToolCall(call.id or f"call_{i}", call.name, call.arguments) for i, call in enumerate(choice.calls))
    results = []
    for call in calls:
        texts = scenario.results.get(call.name, (_OK,))
        text = texts[min(counts.get(call.name, 0), len(texts) - 1)]
        counts[call.name] = counts.get(call.name, 0) + 1
        results.append(ToolResult(call.id, (TextPart(text),), error=text.startswith("Error: ")))
    said = (TextPart(choice.text),) if choice.text else ()
    return Message("assistant", said, calls=calls), Message("user", results=tuple(results))
