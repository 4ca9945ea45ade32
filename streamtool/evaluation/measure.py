"""One scenario against one variant: requests through the middleware, as `serve` handles them, until a verdict. The
baseline sends the same requests to the upstream itself.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
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
from streamtool.core.reply import (
    Choice,
    ReplyAccumulator,
    ReplyArgumentsDelta,
    ReplyReasoningDelta,
    ReplyTextDelta,
    Usage,
)
from streamtool.evaluation import baseline
from streamtool.evaluation.judge import ScenarioProgress, Verdict, advance, begin, judge
from streamtool.evaluation.repetition import RepetitionDetector
from streamtool.evaluation.scenario import MadeCall, Scenario, SuiteSession
from streamtool.exchange.record import Record
from streamtool.middleware import ToolMiddleware
from streamtool.protocols import chat
from streamtool.protocols.interfaces import UpstreamProtocol
from streamtool.protocols.registry import UPSTREAMS
from streamtool.settings import ModelSettings, Settings
from streamtool.upstream.app import model_servers
from streamtool.upstream.chat_templates import ChatTemplates

MAX_REPLIES: Final = 5
"""Maximum number of replies in one conversation of our suite."""
MAX_STEPS: Final = 20
"""Maximum number of replies in one turn of a conversation whose calls another suite executes, as in BFCL."""
TOKENS: Final = 300
"""Default for the maximum length of a reply, in tokens; the longest right one without reasoning has about 120."""
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
    """Tokens of the first prompt; 0 if the upstream has not reported them."""
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
    repeated: bool = False
    """Whether a reply was ended because the model repeated itself."""
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
    repeated: bool = False
    """Whether the reply was ended because the model repeated itself."""


class Measurement:
    """Sends scenarios through one middleware or, if `naive`, to the upstream. The upstream is an ASGI app in one
    protocol.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        model: str,
        *,
        seconds: float,
        max_tokens: int = TOKENS,
        naive: bool = False,
    ) -> None:
        self._records: list[Record] = []
        self._requests = 0
        self._naive = naive
        self._templates: ChatTemplates | None = None
        if naive:
            self._app = app
            self._model = settings.for_model(model)
            self._protocol: UpstreamProtocol = UPSTREAMS[self._model.protocol or chat.NAME]
        else:
            self._templates = ChatTemplates(settings, model_servers(dict.fromkeys(settings.upstreams, app)))
            self._app = ToolMiddleware(
                app, settings=settings, on_exchange=self._records.append, templates=self._templates
            )
            self._model = ModelSettings(model)
            self._protocol = UPSTREAMS[chat.NAME]
        self._seconds = seconds
        self._max_tokens = max_tokens

    async def prepare(self) -> None:
        """Recognize the server and the model's template, as `serve` does at its start. Failures raise no exception."""
        if self._templates is not None:
            await self._templates.learn_once(self._model.name)

    async def ask(self, scenario: Scenario) -> ScenarioOutcome:
        """Conduct the conversation of the scenario, and return its outcome, including any error."""
        self._records.clear()
        self._requests = 0
        progress, error = begin(scenario), ""
        replies: list[TimedReply] = []
        conducted = self._answer(scenario, replies)
        if scenario.session is not None:
            conducted = self._execute(scenario, scenario.session(), replies)
        try:
            async for reached in conducted:
                progress = reached
        except StreamtoolError as failed:
            error = failed.message
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
            repeated=any(reply.repeated for reply in replies),
            transcript=tuple(map(_transcript, replies)),
        )

    async def _answer(self, scenario: Scenario, replies: list[TimedReply]) -> AsyncIterator[ScenarioProgress]:
        """Yield the progress after each reply, until the scenario is fulfilled or failed. Raises StreamtoolError."""
        messages = list(scenario.messages)
        progress, counts = begin(scenario), dict.fromkeys(scenario.results, 0)
        for _ in range(MAX_REPLIES):
            choice = await self._next(scenario, messages, replies)
            progress = advance(scenario, progress, _made(choice), choice.text)
            yield progress
            if progress.done:
                return
            messages += _with_results(choice, _results(scenario, choice, counts))

    async def _execute(
        self, scenario: Scenario, session: SuiteSession, replies: list[TimedReply]
    ) -> AsyncIterator[ScenarioProgress]:
        """Yield the progress after each reply of a conversation whose calls the session executes. Raises
        StreamtoolError.
        """
        messages = list(scenario.messages)
        progress = begin(scenario)
        for following in (*scenario.turns, None):
            for _ in range(MAX_STEPS):
                choice = await self._next(scenario, messages, replies)
                made = _made(choice)
                progress = evolve(progress, calls=(*progress.calls, *made), answer=choice.text)
                yield progress
                if not made:
                    break
                messages += _with_results(choice, session.execute(made))
            else:
                return
            session.end_turn()
            messages += [Message("assistant", (TextPart(choice.text),))] if choice.text else []
            messages += [following] if following is not None else []
        yield evolve(progress, failed=session.fault(), done=True)

    async def _next(self, scenario: Scenario, messages: Sequence[Message], replies: list[TimedReply]) -> Choice:
        """Request the reply that follows these messages, add it to `replies`, and return its content. Raises
        StreamtoolError.
        """
        first = len(messages) == len(scenario.messages)
        replies.append(await self._reply(self._conversation(scenario, messages, first=first)))
        return replies[-1].choice

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
            options=Options(max_tokens=self._max_tokens, sampling={"temperature": 0.0}, output=form),
        )

    async def _reply(self, asked: Conversation) -> TimedReply:
        """Send one request and return the reply, which ends early if the model repeats itself. Raises
        StreamtoolError.
        """
        protocol = self._protocol
        reader, fold, repetition = protocol.ReplyReader(), ReplyAccumulator(), RepetitionDetector()
        limit = anyio.CancelScope()
        deltas, repeated = 0, False
        began = anyio.current_time()
        first: dict[str, float] = {}

        def take(piece: bytes) -> None:
            nonlocal deltas, repeated
            events = reader.feed(piece)
            fold.feed(events)
            now = anyio.current_time() - began
            if piece:
                first.setdefault("byte", now)
            if any(isinstance(event, ReplyArgumentsDelta) for event in events):
                first.setdefault("call", now)
            for event in events:
                if isinstance(event, (ReplyTextDelta, ReplyArgumentsDelta, ReplyReasoningDelta)):
                    deltas += 1
                    if repetition.feed(event.text) and not repeated:
                        repeated = True
                        limit.cancel()

        if self._naive:
            asked = baseline.without_tools(asked)
        self._requests += 1
        answer = None
        limit.deadline = began + self._seconds
        with limit:
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
        if answer is None and not repeated:
            raise StreamtoolError(f"no complete reply within {self._seconds:g} seconds")
        if answer is not None and answer.status != 200:
            told = protocol.read_error(answer.status, answer.body)
            raise UpstreamError(told.message) if answer.status in (502, 503) else StreamtoolError(told.message)
        if answer is not None:
            fold.feed(reader.close())
        reply = fold.close()
        if reply.failure is not None:
            raise StreamtoolError(reply.failure.message)
        choice, seconds = next(iter(reply.choices), Choice(0)), anyio.current_time() - began
        if self._naive:
            choice = baseline.with_calls(choice)
            if choice.calls:
                first["call"] = seconds  # the reply is searched when it is complete
        usage = reply.usage or Usage(output=deltas)  # a server reports it at the end, and sends a delta per token
        return TimedReply(choice, usage, first.get("byte"), first.get("call"), seconds, repeated=answer is None)


def _transcript(reply: TimedReply) -> str:
    calls = (f"{call.name} {call.arguments}" for call in reply.choice.calls)
    return "\n".join([reply.choice.text, *calls]).strip()


def _made(choice: Choice) -> list[MadeCall]:
    return [MadeCall(call.name, call.arguments, call.complete) for call in choice.calls]


def _results(scenario: Scenario, choice: Choice, counts: dict[str, int]) -> Iterator[str]:
    """Yield the result of each call, and count the calls of each tool."""
    for call in choice.calls:
        texts = scenario.results.get(call.name, (_OK,))
        yield texts[min(counts.get(call.name, 0), len(texts) - 1)]
        counts[call.name] = counts.get(call.name, 0) + 1


def _with_results(choice: Choice, results: Iterable[str]) -> tuple[Message, Message]:
    """Return the reply and the results of its calls as messages."""
    calls = tuple(ToolCall(call.id or f"call_{i}", call.name, call.arguments) for i, call in enumerate(choice.calls))
    found = tuple(
        ToolResult(call.id, (TextPart(text),), error=text.startswith("Error"))
        for call, text in zip(calls, results, strict=True)
    )
    said = (TextPart(choice.text),) if choice.text else ()
    return Message("assistant", said, calls=calls), Message("user", results=found)
