"""Figures of an evaluation: one row per variant, and the sentence that compares the best two."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final

from attrs import asdict, frozen

from streamtool.core.json_value import Json
from streamtool.evaluation.journal import Journal, Subject
from streamtool.evaluation.measure import ScenarioOutcome
from streamtool.evaluation.schedule import CLEAR, Schedule
from streamtool.evaluation.statistics import paired, wilson
from streamtool.evaluation.variants import EvaluatedVariant
from streamtool.settings import Calibration


@frozen
class RightCases:
    """The number of cases of one kind, and how many of them are right."""

    right: int
    cases: int


@frozen
class Figures:
    """The figures of one variant. Shares are between 0 and 1; None if no case counts."""

    variant: str
    cases: int
    right: int
    interval: tuple[float, float]
    """Wilson's interval of the share of right cases."""
    called: float | None
    """Share of the cases with an expected call in which one was made."""
    right_tool: float | None
    """Share of these in which the first call is one of the expected tools."""
    valid: float | None
    """Share of the cases with calls in which all arguments match their schemas."""
    false_calls: float | None
    """Share of the cases without an expected call in which one was made."""
    demanded: RightCases
    """The cases with a demanded call."""
    groups: Mapping[str, RightCases]
    """The cases of each group."""
    retries: int
    repeated: int
    """Number of cases with a reply that was ended because the model repeated itself."""
    prompt_tokens: float | None
    """Median of the first prompts."""
    reply_tokens: float | None
    """Median of all replies of a case."""
    first_byte: float | None
    """Median, in seconds."""
    first_call: float | None
    """Median, in seconds."""
    seconds: float | None
    """Median, in seconds."""
    dropped: bool
    """Whether the variant was dropped because another one was clearly better."""


@frozen
class Report:
    """The figures of an evaluation."""

    subject: Subject
    figures: tuple[Figures, ...]
    """The best variant first."""
    requests: int
    chance: float | None
    """The probability that the best two differ by chance; None if only one was compared."""

    @property
    def served(self) -> tuple[Figures, ...]:
        """The figures of the variants that `serve` can apply: all except the baseline. The best one is first."""
        return tuple(one for one in self.figures if self._variant(one).served is not None)

    @property
    def best(self) -> EvaluatedVariant | None:
        """The best variant that `serve` can apply; None if only the baseline was measured."""
        return self._variant(self.served[0]) if self.served else None

    def _variant(self, figures: Figures) -> EvaluatedVariant:
        return next(one for one in self.subject.variants if one.name == figures.variant)

    @property
    def clear(self) -> bool:
        """Whether the best variant is clearly better than the next one."""
        return self.chance is not None and self.chance <= CLEAR

    @property
    def silent(self) -> bool:
        """Whether calls were expected, and no variant made the model call."""
        return all(one.called == 0 for one in self.figures)

    @property
    def conclusion(self) -> str:
        """One sentence about the best two variants."""
        if self.silent:
            return "The model made no call in any variant: the figures only show how often no call was right."
        best, *others = self.figures
        share = f"{best.variant}: {percent(best.right / best.cases if best.cases else None)} of {best.cases} right"
        if not others:
            return f"{share}."
        if not self.clear:
            return (
                f"No clear difference between {best.variant} and {others[0].variant} (p = {self.chance:.3f}). {share}."
            )
        return f"{share}, and better than {others[0].variant} (p = {self.chance:.3f})."


def report_of(journal: Journal, schedule: Schedule) -> Report:
    """Return the report of an evaluation."""
    ranked = list(schedule.ranking())
    figures = tuple(_figures(name, journal.outcomes[name], dropped=name in schedule.dropped) for name in ranked)
    chance = None
    if len(ranked) > 1:
        one, other = (schedule.results[name] for name in ranked[:2])
        shared = min(len(one), len(other))
        chance = paired(one[:shared], other[:shared])
    return Report(journal.subject, figures, journal.requests, chance)


def calibration_of(report: Report, *, only: bool) -> Calibration:
    """Return the calibration for the best variant. `only` is whether the server lists only this model. Raises
    ValueError if only the baseline was measured.
    """
    subject, variant = report.subject, report.best
    if variant is None or variant.served is None:
        raise ValueError("serve cannot apply the baseline")
    best, following = report.served[0], next((one for one in report.served[1:] if one.cases), None)
    taught = variant.mode != "native"
    return Calibration(
        model=subject.model,
        match="*" if only else subject.model,
        url=subject.url,
        protocol=subject.protocol,
        date=subject.date,
        mode=variant.served,
        cases=best.cases,
        right=best.right,
        version=subject.version,
        server=None if subject.server == subject.url else subject.server,
        format=variant.format if taught else None,
        schema=variant.schema if taught else None,
        next=following.variant if following else None,
        next_cases=following.cases if following else 0,
        next_right=following.right if following else 0,
    )


def _figures(variant: str, outcomes: Sequence[ScenarioOutcome], *, dropped: bool) -> Figures:
    verdicts = [outcome.verdict for outcome in outcomes]
    expecting = [verdict for verdict in verdicts if verdict.expected]
    calling = [verdict for verdict in verdicts if verdict.called or verdict.false_call]
    silent = [verdict for verdict in verdicts if not verdict.expected]
    right = sum(verdict.right for verdict in verdicts)
    return Figures(
        variant,
        len(verdicts),
        right,
        wilson(right, len(verdicts)),
        called=_share([verdict.called for verdict in expecting]),
        right_tool=_share([verdict.right_tool for verdict in expecting]),
        valid=_share([verdict.valid for verdict in calling]),
        false_calls=_share([verdict.false_call for verdict in silent]),
        demanded=_right_cases([outcome for outcome in outcomes if outcome.demanded]),
        groups={
            group: _right_cases([outcome for outcome in outcomes if outcome.group == group])
            for group in sorted({outcome.group for outcome in outcomes})
        },
        retries=sum(outcome.retries for outcome in outcomes),
        repeated=sum(outcome.repeated for outcome in outcomes),
        prompt_tokens=_median([outcome.prompt_tokens for outcome in outcomes if outcome.prompt_tokens]),
        reply_tokens=_median([outcome.reply_tokens for outcome in outcomes if not outcome.error]),
        first_byte=_median([outcome.first_byte for outcome in outcomes if outcome.first_byte is not None]),
        first_call=_median([outcome.first_call for outcome in outcomes if outcome.first_call is not None]),
        seconds=_median([outcome.seconds for outcome in outcomes if not outcome.error]),
        dropped=dropped,
    )


def _right_cases(outcomes: Sequence[ScenarioOutcome]) -> RightCases:
    return RightCases(sum(outcome.verdict.right for outcome in outcomes), len(outcomes))


def _share(found: Sequence[bool]) -> float | None:
    return sum(found) / len(found) if found else None


def _median(found: Sequence[float]) -> float | None:
    return median(found) if found else None


def percent(share: float | None) -> str:
    """Return a share as a percentage, or a dash."""
    return "–" if share is None else f"{100 * share:.0f} %"


COLUMNS: Final = (
    "variant",
    "right",
    "95 %",
    "called",
    "tool",
    "valid",
    "false",
    "demanded",
    "retries",
    "prompt",
    "reply",
    "first call",
    "time",
)


def rows(report: Report) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each variant, in the order of `COLUMNS`."""
    for one in report.figures:
        low, high = one.interval
        yield (
            one.variant,
            f"{one.right}/{one.cases}",
            f"{100 * low:.0f}–{100 * high:.0f}",
            percent(one.called),
            percent(one.right_tool),
            percent(one.valid),
            percent(one.false_calls),
            f"{one.demanded.right}/{one.demanded.cases}",
            str(one.retries),
            _number(one.prompt_tokens),
            _number(one.reply_tokens),
            _seconds(one.first_call),
            _seconds(one.seconds),
        )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"


def document(report: Report) -> Json:
    """Return the report as JSON. The scenarios' names are left out, because suite, groups and seed determine them."""
    found = asdict(report)
    del found["subject"]["scenarios"]
    return found


def card(report: Report) -> str:
    """Return a Markdown card that can be pasted into an issue."""
    subject = report.subject
    lines = [
        f"### {subject.model} on {subject.server}, measured {subject.date}",
        "",
        f"streamtool {subject.version}, suite {subject.suite}, {report.requests} requests: `{subject.command}`.",
        report.conclusion,
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join(cells) + " |" for cells in rows(report)),
    ]
    return "\n".join(lines) + "\n"
