"""What a run took, and what a session has taken: replies, calls, tokens, seconds, and money where prices are given."""

import time
from collections.abc import Callable

from attrs import define, field, frozen

from streamtool.agent import Event, Final, OutputDelta, ThoughtDelta, ToolArgumentsDelta, ToolCallStart, TurnStart
from streamtool.reply import Usage

_MILLION = 1_000_000


@frozen
class Prices:
    """What a million tokens cost, in any currency."""

    input: float = 0.0
    output: float = 0.0

    def of(self, usage: Usage) -> float:
        """What these tokens cost."""
        return (usage.input * self.input + usage.output * self.output) / _MILLION


@define
class Sums:
    """What was taken so far."""

    runs: int = 0
    turns: int = 0
    calls: int = 0
    usage: Usage = field(factory=Usage)
    seconds: float = 0.0


class Meter:
    """Counts what runs take."""

    def __init__(self, prices: Prices | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._prices = prices
        self._clock = clock
        self.session = Sums()
        """Of all runs, those that were interrupted included."""
        self._run = Sums()
        self._began = clock()
        self._first: float | None = None
        self._open = False

    def begin(self) -> None:
        """A run begins."""
        self._run = Sums(runs=1)
        self._began = self._clock()
        self._first = None
        self._open = True

    def see(self, event: Event) -> None:
        """Something happened in it."""
        match event:
            case TurnStart(turn=turn):
                self._run.turns = turn
            case OutputDelta() | ThoughtDelta() | ToolArgumentsDelta() | ToolCallStart():
                if self._first is None:
                    self._first = self._clock() - self._began
                self._run.calls += isinstance(event, ToolCallStart)
            case Final(usage=usage):
                self.end(usage)

    def end(self, usage: Usage) -> None:
        """The run is over, be it that it was left, and has taken these tokens. Only the first time counts."""
        if not self._open:
            return
        self._open = False
        run, all_runs = self._run, self.session
        run.usage = usage
        run.seconds = self._clock() - self._began
        all_runs.runs += 1
        all_runs.turns += run.turns
        all_runs.calls += run.calls
        all_runs.usage += run.usage
        all_runs.seconds += run.seconds

    @property
    def entry(self) -> dict[str, float]:
        """What the last run took, in numbers."""
        run = self._run
        tokens = {"input": run.usage.input, "output": run.usage.output}
        return {"turns": run.turns, "calls": run.calls, **tokens, "seconds": round(run.seconds, 3)}

    @property
    def of_run(self) -> str:
        """What the last run took."""
        first = "" if self._first is None else f" (first byte {self._first:.2f} s)"
        return f"{self._taken(self._run)}{first}{self._cost(self._run.usage)}"

    @property
    def of_session(self) -> str:
        """What all of them took."""
        answers = counted(self.session.runs, "task")
        return f"session: {answers}, {self._taken(self.session)}{self._cost(self.session.usage)}"

    def _taken(self, sums: Sums) -> str:
        about = "about " if sums.usage.estimated else ""
        tokens = f"{about}{sums.usage.input:,} + {sums.usage.output:,} tokens"
        return f"{counted(sums.turns, 'turn')}, {counted(sums.calls, 'call')}, {tokens}, {sums.seconds:.1f} s"

    def _cost(self, usage: Usage) -> str:
        return "" if self._prices is None else f", cost {self._prices.of(usage):.6f}".rstrip("0").rstrip(".")


def counted(number: int, thing: str) -> str:
    """A number and its thing."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
