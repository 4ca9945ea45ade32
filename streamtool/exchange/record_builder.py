"""What happened in one exchange, noted while it happens; the `Record` in the end."""

from collections import Counter
from collections.abc import Callable, Sequence

from streamtool.errors import StreamtoolError
from streamtool.exchange.interfaces import Record, numbers
from streamtool.exchange.request import ClientRequest
from streamtool.exchange.response import ClientResponse
from streamtool.policy import Cause, Gate
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
        "_attempts", "_began", "_clock", "_estimated", "error", "reason", "told", "unmet", "usage",
    )  # fmt: skip

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._attempts: list[tuple[Cause, str, float]] = []
        self._estimated = False
        self.usage = Usage()
        """Of all attempts that are over."""
        self.told: Usage | None = None
        """What the upstream has told of this attempt."""
        self.unmet: Cause | None = None
        self.reason: Reason | None = None
        self.error: StreamtoolError | None = None

    def again(self, why: Cause, detail: str) -> None:
        """The attempt is not accepted, and another one follows."""
        self._attempts.append((why, detail, self._clock() - self._began))

    def count(self, *, sent: int, written: int, stopped: bool) -> None:
        """The attempt is over. What a stopped upstream did not tell is estimated, by the characters of both sides."""
        if self.told is not None:
            self.usage += self.told
        elif stopped:
            self._estimated = True
            self.usage += Usage(input=sent // _TOKEN, output=-(-written // _TOKEN))
        self.told = None

    def record(
        self, asked: ClientRequest, response: ClientResponse, gates: Sequence[Gate], *, quoted: int, done: bool
    ) -> Record:
        """What happened so far."""
        conversation, upstream, head = asked.conversation, asked.model.upstream, response.head
        found = Counter[str]()
        for gate in gates:
            found.update(gate.formats)
        return Record(
            request_id=response.request_id,
            protocol=conversation.protocol,
            upstream_protocol=asked.upstream.NAME,
            model=conversation.model,
            upstream_model=asked.model.name,
            stream=conversation.stream,
            mode=asked.mode,
            format=asked.model.format,
            tools=len(conversation.tools),
            attempts=tuple(why for why, _, _ in self._attempts),
            details=tuple(detail for _, detail, _ in self._attempts),
            unmet=self.unmet,
            calls=sum(gate.calls for gate in gates),
            formats=tuple(found),
            repairs=tuple(dict.fromkeys(name for gate in gates for name in gate.repairs)),
            discarded=tuple(pair for gate in gates for pair in gate.discarded.items()),
            refused=sum(gate.refused for gate in gates),
            quoted=quoted,
            incomplete=any(gate.incomplete for gate in gates),
            reason=self.reason,
            usage=self.usage,
            usage_estimated=self._estimated,
            held=max((gate.held_most for gate in gates), default=0),
            contract=asked.emulates,
            history=conversation.has_tool_history,
            turn=turn(conversation.messages).value,
            seconds=self._clock() - self._began,
            first_byte=self._since(response.began),
            first_call=self._since(min((gate.called_at for gate in gates if gate.called_at is not None), default=None)),
            dropped=asked.dropped,
            error=self.error,
            forced=asked.forced,
            found=tuple(found.items()),
            retried=tuple(at for _, _, at in self._attempts),
            upstream=None if upstream is None else upstream.name,
            server=None if upstream is None else upstream.server,
            served_model=response.served_model,
            choices=conversation.n,
            options=numbers(conversation.options),
            status=None if head is None else head.status,
            passed=asked.passthrough,
            done=done,
        )

    def _since(self, moment: float | None) -> float | None:
        return None if moment is None else moment - self._began
