"""One scenario against one variant: requests through the middleware, as `serve` handles them, until a verdict."""

from collections.abc import Callable, Sequence
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
from streamtool.core.reply import Choice, ReplyAccumulator
from streamtool.evaluation.judge import Verdict, advance, begin, judge
from streamtool.evaluation.scenario import MadeCall, Scenario
from streamtool.exchange import Record
from streamtool.middleware import ToolMiddleware
from streamtool.protocols import chat
from streamtool.settings import ModelSettings, Settings

MAX_REPLIES: Final = 5
"""Maximum number of replies in one conversation."""
TOKENS: Final = 400
"""Maximum length of a reply, in tokens; the longest right one has about 120."""
_OK: Final = '{"status": "ok"}'


@frozen
class Outcome:
    """The result of one scenario."""

    scenario: str
    verdict: Verdict
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
    """What the client received, reply by reply."""


class Measurement:
    """Sends scenarios through one middleware. The upstream is an ASGI app in one protocol."""

    def __init__(self, app: ASGIApp, settings: Settings, model: str, *, seconds: float) -> None:
        self._records: list[Record] = []
        self._middleware = ToolMiddleware(app, settings=settings, on_exchange=self._records.append)
        self._model = ModelSettings(model)
        self._seconds = seconds

    async def ask(self, scenario: Scenario) -> Outcome:
        """Hold the conversation of the scenario, and return its outcome. Raises UpstreamError if the upstream cannot be
        reached.
        """
        self._records.clear()
        messages = list(scenario.messages)
        progress, counts, said = begin(scenario), dict.fromkeys(scenario.results, 0), []
        error = ""
        for _ in range(MAX_REPLIES):
            first = len(messages) == len(scenario.messages)
            try:
                choice = await self._reply(self._conversation(scenario, messages, first=first))
            except StreamtoolError as failed:
                error = failed.message
                break
            calls = [MadeCall(call.name, call.arguments, call.complete) for call in choice.calls]
            said.append("\n".join([choice.text, *(f"{call.name} {call.arguments}" for call in calls)]).strip())
            progress = advance(scenario, progress, calls, choice.text)
            if progress.done:
                break
            messages += _with_results(scenario, choice, counts)
        verdict = judge(scenario, progress)
        if error:
            verdict = evolve(verdict, right=False, why=error)
        return _outcome(scenario.name, verdict, self._records, error, said)

    def _conversation(self, scenario: Scenario, messages: Sequence[Message], *, first: bool) -> Conversation:
        choice = ToolChoice()
        if first and scenario.choice in ("none", "required"):
            choice = ToolChoice(scenario.choice)
        elif first and scenario.choice != "auto":
            choice = ToolChoice("required", (scenario.choice,))
        form = None if scenario.form is None else OutputFormat(scenario.form)
        return Conversation(
            "chat",
            self._model.name,
            tuple(messages),
            tools=scenario.tools,
            choice=choice,
            include_usage=True,
            options=Options(max_tokens=TOKENS, sampling={"temperature": 0.0}, output=form),
        )

    async def _reply(self, asked: Conversation) -> Choice:
        """Send one request and return the reply. Raises StreamtoolError."""
        reader, fold = chat.ReplyReader(), ReplyAccumulator()

        def take(piece: bytes) -> None:
            fold.feed(reader.feed(piece))

        answer = None
        with anyio.move_on_after(self._seconds):
            answer = await ask(
                self._middleware,
                SCOPE,
                "POST",
                chat.request_path(self._model, stream=True),
                body=chat.write_request(asked, self._model, stream=True),
                headers=[(b"content-type", b"application/json")],
                receive=never_disconnects,
                on_piece=take,
            )
        if answer is None:
            raise StreamtoolError(f"no complete reply within {self._seconds:g} seconds")
        if answer.status != 200:
            told = chat.read_error(answer.status, answer.body)
            raise UpstreamError(told.message) if answer.status in (502, 503) else StreamtoolError(told.message)
        fold.feed(reader.close())
        reply = fold.close()
        if reply.failure is not None:
            raise StreamtoolError(reply.failure.message)
        return next(iter(reply.choices), Choice(0))


def _with_results(scenario: Scenario, choice: Choice, counts: dict[str, int]) -> tuple[Message, Message]:
    """Return the reply and the results of its calls as messages."""
    calls = tuple(ToolCall(call.id, call.name, call.arguments) for call in choice.calls)
    results = []
    for call in calls:
        texts = scenario.results.get(call.name, (_OK,))
        text = texts[min(counts.get(call.name, 0), len(texts) - 1)]
        counts[call.name] = counts.get(call.name, 0) + 1
        results.append(ToolResult(call.id, (TextPart(text),), error=text.startswith("Error: ")))
    said = (TextPart(choice.text),) if choice.text else ()
    return Message("assistant", said, calls=calls), Message("user", results=tuple(results))


def _outcome(name: str, verdict: Verdict, records: Sequence[Record], error: str, said: Sequence[str]) -> Outcome:
    return Outcome(
        name,
        verdict,
        requests=len(records),
        retries=sum(len(record.attempts) for record in records),
        prompt_tokens=records[0].usage.input if records else 0,
        reply_tokens=sum(record.usage.output for record in records),
        first_byte=records[0].first_byte if records else None,
        first_call=next((record.first_call for record in records if record.first_call is not None), None),
        seconds=sum(record.seconds for record in records),
        error=error,
        transcript=tuple(said),
    )


Watch = Callable[[str, Outcome], object]
"""Is called with a variant's name and each of its outcomes."""
