"""Notes what happens in one exchange while it happens, and makes the `Record` of it."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from attrs import evolve

from streamtool.errors import StreamtoolError
from streamtool.exchange.interfaces import Record, numbers
from streamtool.exchange.request import ClientRequest
from streamtool.exchange.response import ClientResponse
from streamtool.policy import ChoiceFilter, Finding
from streamtool.prompting.window import BYTES_PER_TOKEN
from streamtool.reply import Reason, Usage
from streamtool.turns import turn


def no_time() -> float:
    """The clock of an exchange that was given none."""
    return 0.0


class RecordBuilder:
    """The notes."""

    __slots__ = (
        "_began", "_clock", "_rejected", "_written", "error", "reason", "told", "usage",
    )  # fmt: skip

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._rejected: list[tuple[Finding, float]] = []
        """Why each attempt that another one followed was not accepted, and when."""
        self._written = 0
        """Characters that the upstream had written before this attempt."""
        self.usage = Usage()
        """Of the last attempt that is over, and of those before it."""
        self.told: Usage | None = None
        """What the upstream has told of this attempt."""
        self.reason: Reason | None = None
        self.error: StreamtoolError | None = None

    def reject(self, finding: Finding) -> None:
        """The attempt is not accepted, and another one follows."""
        self._rejected.append((finding, self._clock() - self._began))

    def count(self, so_far: Usage | None, *, sent: int, written: int) -> None:
        """The attempt is over; the upstream has told `so_far`, if it has not told all.

        What it did not tell is estimated, by the bytes of the request and the characters of all that it has written.
        """
        usage = self.told
        if usage is None:
            told = so_far or Usage()
            output = max(told.output, -(-(written - self._written) // BYTES_PER_TOKEN))
            usage = evolve(told, input=told.input or sent // BYTES_PER_TOKEN, output=output, estimated=True)
        before = self.usage
        if before.retried is not None or before != Usage():
            usage = evolve(usage, retried=evolve(before, retried=None) + (before.retried or Usage()))
        self.usage, self.told, self._written = usage, None, written

    def record(
        self,
        asked: ClientRequest,
        response: ClientResponse,
        choices: Sequence[ChoiceFilter],
        *,
        quoted: Mapping[str, int],
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
            quoted=tuple(quoted.items()),
            incomplete=any(choice.state.incomplete for choice in choices),
            reason=self.reason,
            usage=self.usage,
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
