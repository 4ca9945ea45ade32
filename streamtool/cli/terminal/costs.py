"""Totals of runs and sessions: turns, calls, tokens, seconds, and costs if prices are given."""

import time
from collections.abc import Callable

from attrs import define, field, frozen

from streamtool.agent import Event, Final, OutputDelta, ThoughtDelta, ToolArgumentsDelta, ToolCallStart, TurnStart
from streamtool.core.reply import Usage

_MILLION = 1_000_000


@frozen
class Prices:
    """Prices per million tokens, in any currency."""

    input: float = 0.0
    output: float = 0.0

    def of(self, usage: Usage) -> float:
        """Return the cost of these tokens."""
        return (usage.input * self.input + usage.output * self.output) / _MILLION


@define
class RunTotals:
    """Totals of one or more runs."""

    runs: int = 0
    turns: int = 0
    calls: int = 0
    usage: Usage = field(factory=Usage)
    seconds: float = 0.0


class Meter:
    """Measures the usage, time and costs of runs."""

    def __init__(self, prices: Prices | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._prices = prices
        self._clock = clock
        self.session = RunTotals()
        """Totals of all runs, including interrupted ones."""
        self._run = RunTotals()
        self._began = clock()
        self._first: float | None = None
        self._open = False

    def begin(self) -> None:
        """Start measuring a run."""
        self._run = RunTotals(runs=1)
        self._began = self._clock()
        self._first = None
        self._open = True

    def observe(self, event: Event) -> None:
        """Update the totals with an event of the current run."""
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
        """Record the token usage of a finished or interrupted run and stop measuring it. Later calls have no effect."""
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
        """Totals of the last run, by name."""
        run = self._run
        tokens = {"input": run.usage.input, "output": run.usage.output}
        return {"turns": run.turns, "calls": run.calls, **tokens, "seconds": round(run.seconds, 3)}

    @property
    def of_run(self) -> str:
        """One-line summary of the last run."""
        first = "" if self._first is None else f" (first byte {self._first:.2f} s)"
        return f"{self._taken(self._run)}{first}{self._cost(self._run.usage)}"

    @property
    def of_session(self) -> str:
        """One-line summary of all runs in the session."""
        answers = pluralize(self.session.runs, "task")
        return f"session: {answers}, {self._taken(self.session)}{self._cost(self.session.usage)}"

    def _taken(self, sums: RunTotals) -> str:
        about = "about " if sums.usage.estimated else ""
        tokens = f"{about}{sums.usage.input:,} + {sums.usage.output:,} tokens"
        return f"{pluralize(sums.turns, 'turn')}, {pluralize(sums.calls, 'call')}, {tokens}, {sums.seconds:.1f} s"

    def _cost(self, usage: Usage) -> str:
        return "" if self._prices is None else f", cost {self._prices.of(usage):.6f}".rstrip("0").rstrip(".")


def pluralize(number: int, thing: str) -> str:
    """Return a number followed by the noun, in the plural unless the number is 1."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"
