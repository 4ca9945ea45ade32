"""Notes what happens in one exchange while it happens, and makes the `Record` of it."""

from collections import Counter
from collections.abc import Callable, Sequence

from streamtool.errors import StreamtoolError
from streamtool.exchange.interfaces import Record, numbers
from streamtool.exchange.request import ClientRequest
from streamtool.exchange.response import ClientResponse
from streamtool.policy import ChoiceFilter, Finding
from streamtool.reply import Reason, Usage
from streamtool.turns import turn

_TOKEN = 4
"""Characters of a token, where its count has to be estimated."""


def no_time() -> float:
    """The clock of an exchange that was given none."""
    return 0.0


class RecordBuilder:
    """The notes."""

    __slots__ = (
        "_began", "_clock", "_estimated", "_rejected", "error", "reason", "told", "usage",
    )  # fmt: skip

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._rejected: list[tuple[Finding, float]] = []
        """Why each attempt that another one followed was not accepted, and when."""
        self._estimated = False
        self.usage = Usage()
        """Of all attempts that are over."""
        self.told: Usage | None = None
        """What the upstream has told of this attempt."""
        self.reason: Reason | None = None
        self.error: StreamtoolError | None = None

    def reject(self, finding: Finding) -> None:
        """The attempt is not accepted, and another one follows."""
        self._rejected.append((finding, self._clock() - self._began))

    def count(self, *, sent: int, written: int, stopped: bool) -> None:
        """The attempt is over. What a stopped upstream did not tell is estimated, by the characters of both sides."""
        if self.told is not None:
            self.usage += self.told
        elif stopped:
            self._estimated = True
            self.usage += Usage(input=sent // _TOKEN, output=-(-written // _TOKEN))
        self.told = None

    def record(
        self,
        asked: ClientRequest,
        response: ClientResponse,
        choices: Sequence[ChoiceFilter],
        *,
        quoted: int,
        done: bool,
    ) -> Record:
        """What happened so far."""
        conversation, upstream, head = asked.conversation, asked.model.upstream, response.head
        began = [choice.first_call_at for choice in choices if choice.first_call_at is not None]
        found = Counter[str]()
        for choice in choices:
            found.update(choice.tally.formats)
        return Record(
            request_id=response.headers.request_id,
            protocol=conversation.protocol,
            upstream_protocol=asked.upstream.NAME,
            model=conversation.model,
            upstream_model=asked.model.name,
            stream=conversation.stream,
            mode=asked.mode,
            format=asked.model.format,
            tools=len(conversation.tools),
            attempts=tuple(finding.cause for finding, _ in self._rejected),
            details=tuple(finding.detail for finding, _ in self._rejected),
            unmet=response.headers.unmet,
            calls=sum(len(choice.state.calls) for choice in choices),
            formats=tuple(found),
            repairs=tuple(dict.fromkeys(name for choice in choices for name in choice.tally.repairs)),
            discarded=tuple(pair for choice in choices for pair in choice.tally.discarded.items()),
            refused=sum(choice.state.refused for choice in choices),
            quoted=quoted,
            incomplete=any(choice.state.incomplete for choice in choices),
            reason=self.reason,
            usage=self.usage,
            usage_estimated=self._estimated,
            held=max((choice.tally.held for choice in choices), default=0),
            contract=asked.emulates,
            history=conversation.has_tool_history,
            turn=turn(conversation.messages).value,
            seconds=self._clock() - self._began,
            first_byte=self._since(response.began),
            first_call=self._since(min(began, default=None)),
            dropped=asked.dropped,
            error=self.error,
            forced=asked.forcing.word,
            found=tuple(found.items()),
            retried=tuple(at for _, at in self._rejected),
            upstream=None if upstream is None else upstream.name,
            server=None if upstream is None else upstream.server,
            served_model=response.identity.served_model,
            choices=conversation.options.n,
            options=numbers(conversation.options),
            status=None if head is None else head.status,
            passed=asked.passthrough,
            done=done,
        )

    def _since(self, moment: float | None) -> float | None:
        return None if moment is None else moment - self._began
