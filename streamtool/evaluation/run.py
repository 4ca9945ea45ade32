"""The evaluation of a model: scenarios are sent until the order of the variants is clear or the budget is used."""

from collections.abc import Callable, Mapping

import anyio
from attrs import define

from streamtool.asgi.types import ASGIApp
from streamtool.core.errors import UpstreamError
from streamtool.evaluation.journal import Journal
from streamtool.evaluation.measure import Measurement, ScenarioOutcome
from streamtool.evaluation.scenario import Scenario
from streamtool.evaluation.schedule import ENOUGH, Schedule
from streamtool.evaluation.variants import EvaluatedVariant
from streamtool.settings import Settings

MAX_ERRORS = 5
"""Number of consecutive scenarios that end with an error before the evaluation ends."""


@define
class Budget:
    """How much an evaluation may cost."""

    requests: int | None = None
    """Maximum number of requests."""
    deadline: float | None = None
    """Time by the event loop's clock; no scenario is begun later."""

    def used(self, requests: int) -> bool:
        """Return whether the budget is used up."""
        late = self.deadline is not None and anyio.current_time() >= self.deadline
        return late or (self.requests is not None and requests >= self.requests)


def schedule_of(journal: Journal) -> Schedule:
    """Return the schedule of an evaluation with the results so far."""
    subject = journal.subject
    schedule = Schedule(tuple(variant.name for variant in subject.variants), subject.scenarios, enough=ENOUGH)
    rest = {name: iter(outcomes) for name, outcomes in journal.outcomes.items()}
    while (asked := schedule.next()) is not None and (outcome := next(rest[asked[0]], None)) is not None:
        schedule.add(asked[0], right=outcome.verdict.right)
    return schedule


async def evaluate(
    app: ASGIApp,
    settings: Settings,
    journal: Journal,
    scenarios: Mapping[str, Scenario],
    budget: Budget,
    *,
    seconds: float,
    watch: Callable[[Schedule, str, ScenarioOutcome], object],
) -> Schedule:
    """Evaluate the variants of the journal, and return the schedule with all results.

    `seconds` is the time limit of a reply. `watch` is called after each scenario. Raises UpstreamError if the upstream
    cannot be reached, or fails `MAX_ERRORS` times in a row.
    """
    schedule = schedule_of(journal)
    by_name: dict[str, EvaluatedVariant] = {variant.name: variant for variant in journal.subject.variants}
    open_: dict[str, Measurement] = {}
    errors = 0
    while not budget.used(journal.requests) and (asked := schedule.next()) is not None:
        name, scenario = asked
        if name not in open_:
            variant = by_name[name]
            open_[name] = Measurement(
                app,
                variant.applied(settings),
                journal.subject.model,
                seconds=seconds,
                max_tokens=journal.subject.max_tokens,
                naive=variant.served is None,
            )
            await open_[name].prepare()
        outcome = await open_[name].ask(scenarios[scenario])
        errors = errors + 1 if outcome.error else 0
        if errors >= MAX_ERRORS:
            raise UpstreamError(f"{errors} scenarios in a row failed; the last error: {outcome.error}")
        journal.add(name, outcome)
        schedule.add(name, right=outcome.verdict.right)
        watch(schedule, name, outcome)
    return schedule
