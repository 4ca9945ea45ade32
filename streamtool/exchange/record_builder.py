"""A builder for the `Record` of an exchange, which collects facts while the exchange runs."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from attrs import evolve

from streamtool.core.conversation import Options
from streamtool.core.errors import StreamtoolError
from streamtool.core.reply import NO_USAGE, Reason, Usage
from streamtool.core.turns import turn_of
from streamtool.exchange.plan import Plan
from streamtool.exchange.received import Received
from streamtool.exchange.record import Interruption, Record
from streamtool.exchange.response import ClientResponse
from streamtool.filters import ChoiceFilter
from streamtool.policy import Finding
from streamtool.prompting.window import BYTES_PER_TOKEN


def zero_clock() -> float:
    """Return zero. This is the clock of an exchange that was created without one."""
    return 0.0


class RecordBuilder:
    """The facts about one exchange that have been collected so far."""

    __slots__ = (
        "_began",
        "_clock",
        "_rejected",
        "_written",
        "error",
        "reason",
        "reported_usage",
        "resumed",
        "usage",
        "warning",
    )

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._rejected: tuple[tuple[Finding, float], ...] = ()
        """The failure of each rejected attempt, and the time when it was found."""
        self._written = 0
        """Number of characters that the upstream had written before this attempt."""
        self.usage = NO_USAGE
        """Usage of the last attempt that has ended; its `retried` field is the usage of the attempts before it."""
        self.reported_usage: Usage | None = None
        """The usage that the upstream has reported for this attempt, if any."""
        self.reason: Reason | None = None
        self.error: StreamtoolError | None = None
        self.resumed: tuple[Interruption, ...] = ()
        """The interruptions of the reply that another attempt has continued."""
        self.warning = ""
        """A warning about the request, or an empty string."""

    @property
    def seconds(self) -> float:
        """Seconds since the request."""
        return self._clock() - self._began

    def reject(self, finding: Finding) -> None:
        """Record a rejected attempt that is followed by another."""
        self._rejected += ((finding, self.seconds),)

    def count(self, so_far: Usage | None, *, sent: int, written: int) -> None:
        """Count the usage of an attempt that has ended. `so_far` is the usage that the upstream has reported, if any.

        Numbers that it did not report are estimated from the number of bytes sent and the total number of characters
        written.
        """
        usage = self.reported_usage
        if usage is None:
            told = so_far or NO_USAGE
            output = max(told.output, -(-(written - self._written) // BYTES_PER_TOKEN))
            usage = evolve(told, input=told.input or sent // BYTES_PER_TOKEN, output=output, estimated=True)
        before = self.usage
        if before is not NO_USAGE and before != NO_USAGE:
            usage = evolve(usage, retried=evolve(before, retried=None) + (before.retried or NO_USAGE))
        self.usage, self.reported_usage, self._written = usage, None, written

    def count_lost(self, so_far: Usage | None, *, sent: int) -> None:
        """Count the usage of an attempt that was meant to continue the last one, but has not."""
        told = self.reported_usage or so_far or Usage(input=sent // BYTES_PER_TOKEN, estimated=True)
        self.reported_usage = None
        self.usage = evolve(self.usage, retried=told + (self.usage.retried or NO_USAGE))

    def record(
        self,
        received: Received,
        plan: Plan,
        response: ClientResponse,
        choices: Sequence[ChoiceFilter],
        *,
        quoted: Mapping[str, int],
        done: bool,
        client: str = "",
        error: StreamtoolError | None = None,
    ) -> Record:
        """Return the record of the exchange so far. `error` is the driver's, if the exchange itself has none."""
        conversation, upstream, head = received.conversation, plan.model.upstream, response.head
        began = [choice.first_call_at for choice in choices if choice.first_call_at is not None]
        found = Counter[str]()
        for choice in choices:
            found.update(choice.tally.formats)
        if self.error is not None:
            # Records are kept, and the frames of a traceback contain the client's headers.
            self.error.__traceback__ = self.error.__cause__ = self.error.__context__ = None
        return Record(
            request_id=response.headers.request_id,
            protocol=conversation.protocol,
            upstream_protocol=plan.upstream.NAME,
            model=conversation.model,
            upstream_model=plan.model.name,
            stream=conversation.stream,
            mode=plan.mode,
            format=plan.model.format,
            tools=len(conversation.tools),
            attempts=tuple(finding.cause for finding, _ in self._rejected),
            details=tuple(finding.detail for finding, _ in self._rejected),
            unmet=response.headers.unmet,
            calls=sum(len(choice.state.calls) for choice in choices),
            formats=tuple(found),
            repairs=tuple(dict.fromkeys(name for choice in choices for name in choice.tally.repairs)),
            discarded=tuple(pair for choice in choices for pair in choice.tally.discarded.items()),
            refused=sum(choice.state.disallowed for choice in choices),
            quoted=tuple(quoted.items()),
            repeated=tuple(call_id for choice in choices for call_id in choice.tally.repeated),
            incomplete=any(choice.state.incomplete for choice in choices),
            reason=self.reason,
            usage=self.usage,
            held=max((choice.tally.held for choice in choices), default=0),
            tool_prompt=plan.emulates,
            history=conversation.has_tool_history,
            turn=turn_of(conversation.messages).value,
            seconds=self.seconds,
            first_byte=self._since(response.began),
            first_call=self._since(min(began, default=None)),
            dropped=plan.dropped,
            error=self.error or error,
            forced=plan.forcing.word,
            found=tuple(found.items()),
            retried=tuple(at for _, at in self._rejected),
            upstream=None if upstream is None else upstream.name,
            server=None if upstream is None else upstream.server,
            served_model=response.identity.served_model,
            choices=conversation.options.n,
            options=_numeric(conversation.options),
            status=None if head is None else head.status,
            passed=plan.passthrough,
            done=done,
            warning=self.warning,
            engine="" if plan.model.engine is None else plan.model.engine.title,
            prompt_cut=response.headers.prompt_cut,
            resumed=self.resumed,
            client=client,
        )

    def _since(self, moment: float | None) -> float | None:
        return None if moment is None else moment - self._began


def _numeric(options: Options) -> tuple[tuple[str, float], ...]:
    """Return the options that are numbers, if the client set them."""
    most = options.max_tokens
    return (*(() if most is None else (("max_tokens", most),)), *options.sampling.items())
