"""`streamtool eval`: measure how often a model makes the right call, in each format and mode.

`streamtool.evaluation` asks the scenarios; this module shows the best variants so far, and the report at the end:
a table, JSON, a Markdown card, or settings. With `--save FILE`, every outcome is appended to a file, from which
`--resume FILE` continues an interrupted evaluation. The result is saved as a calibration, which `serve` applies.
"""

import glob
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, get_args

import anyio
from attrs import evolve, frozen

from statemachine import FORMATS
from streamtool import sample
from streamtool.asgi.types import ASGIApp
from streamtool.cli.common import Screen, print_error
from streamtool.cli.probe import ProbeFlags
from streamtool.cli.state import save_calibration
from streamtool.core.errors import SettingsError
from streamtool.core.json_value import json_line
from streamtool.evaluation import bfcl
from streamtool.evaluation import journal as journals
from streamtool.evaluation import report as reports
from streamtool.evaluation.journal import Journal, Subject
from streamtool.evaluation.measure import TOKENS, ScenarioOutcome
from streamtool.evaluation.run import Budget, evaluate
from streamtool.evaluation.scenario import Scenario, demanding, suite
from streamtool.evaluation.schedule import ENOUGH, Schedule, order_of
from streamtool.evaluation.variants import FORMATS as DEFAULT_FORMATS
from streamtool.evaluation.variants import MODES, EvaluatedMode, EvaluatedVariant, variants_of
from streamtool.models.format_aliases import find_format_name
from streamtool.probe.client import find_client
from streamtool.protocols.table import ForcingSetting
from streamtool.settings import SchemaStyle, Settings, UpstreamSettings
from streamtool.upstream.app import HttpUpstream
from streamtool.upstream.model_server import server_of

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@frozen
class Suite:
    """A set of scenarios."""

    title: str
    """Name and version; the version of our own suite changes with its scenarios."""
    groups: Callable[[], tuple[str, ...]]
    scenarios: Callable[[Sequence[str]], Iterable[Scenario]]


def _own_groups() -> tuple[str, ...]:
    return tuple(dict.fromkeys(scenario.group for scenario in suite()))


def _own(groups: Sequence[str]) -> Iterable[Scenario]:
    return (scenario for scenario in suite() if scenario.group in groups)


SUITES: Final = {
    "own": Suite("streamtool 2", _own_groups, _own),
    "bfcl": Suite("BFCL v4", lambda: bfcl.GROUPS, bfcl.scenarios),
}
SCHEMAS: Final = get_args(SchemaStyle)
FORCING: Final = get_args(ForcingSetting)
CHOICES: Final = ("auto", "required")
"""Tool choices of scenarios that expect a call and have none: the model's, or a demanded call."""
GAP: Final = "  "
"""The text between two columns of the table."""
EXPENDABLE: Final = ("retries", "95 %", "valid", "false", "demanded", "prompt", "reply", "time", "first call", "tool")
"""Columns that are left out in this order if a terminal is too narrow for the table."""
REQUESTS: Final = 200
"""Number of requests unless a budget is given: enough to find a format that is right in 90 % of cases among eight that
are right in at most 60 % (`tests/evaluation/test_schedule.py`).
"""


@frozen
class EvalFlags:
    """Arguments and flags of `streamtool eval`."""

    url: str
    protocol: str | None = None
    model: str | None = None
    key_env: str | None = None
    formats: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    schemas: tuple[str, ...] = ()
    forcing: tuple[str, ...] = ()
    select: tuple[int, ...] = ()
    groups: tuple[str, ...] = ()
    suite: str = "own"
    choice: str = "auto"
    requests: int | None = None
    minutes: float | None = None
    seconds: float = 120.0
    max_tokens: int = TOKENS
    seed: int = 1
    save: str | None = None
    resume: str | None = None
    recordings: str | None = None
    calibrations: str | None = None
    calibrate: bool = True

    def variants(self) -> tuple[EvaluatedVariant, ...]:
        """Return the variants to compare. Raises SettingsError."""
        named = [find_format_name(name) or name for name in self.formats]
        formats = chosen("--format", named, tuple(FORMATS), DEFAULT_FORMATS)
        modes = chosen("--mode", self.modes, tuple(MODES), [row.name for row in MODES.values() if row.default])
        schemas = chosen("--schema", self.schemas, SCHEMAS, SCHEMAS[:1])
        forcing = chosen("--forcing", self.forcing, FORCING, FORCING[:1])
        return tuple(
            variants_of(
                formats,
                cast("Sequence[EvaluatedMode]", modes),
                cast("Sequence[SchemaStyle]", schemas),
                cast("Sequence[ForcingSetting]", forcing),
                tuple(dict.fromkeys((0, *self.select))),
            )
        )

    def scenarios(self) -> Mapping[str, Scenario]:
        """Return the scenarios to ask, by name. Raises SettingsError."""
        (name,) = chosen("--suite", (self.suite,), tuple(SUITES), ())
        known = SUITES[name].groups()
        groups = chosen("--group", self.groups, known, known)
        (choice,) = chosen("--choice", (self.choice,), CHOICES, ())
        found = SUITES[name].scenarios(groups)
        return {one.name: one if choice == CHOICES[0] else demanding(one) for one in found}

    @property
    def representative(self) -> bool:
        """Whether the result may become a calibration: it covers all groups of our suite as they are, and `serve` can
        apply it.
        """
        unusual = self.groups or self.forcing or self.select
        return self.suite == "own" and self.choice == CHOICES[0] and not unusual

    @property
    def command(self) -> str:
        """The command that repeats the evaluation, with URL for the server's address. Files are not part of it."""
        given: tuple[tuple[str, Iterable[object]], ...] = (
            ("--protocol", [self.protocol]),
            ("--model", [self.model]),
            ("--requests", [self.requests]),
            ("--minutes", [self.minutes]),
            ("--max-tokens", [self.max_tokens if self.max_tokens != TOKENS else None]),
            ("--seed", [self.seed if self.seed != 1 else None]),
            ("--mode", self.modes),
            ("--format", self.formats),
            ("--schema", self.schemas),
            ("--forcing", self.forcing),
            ("--select", self.select),
            ("--suite", [self.suite if self.suite != "own" else None]),
            ("--group", self.groups),
            ("--choice", [self.choice if self.choice != CHOICES[0] else None]),
        )
        words = [str(word) for flag, values in given for value in values if value is not None for word in (flag, value)]
        return shlex.join(["streamtool", "eval", "URL", *words])


def chosen(flag: str, given: Sequence[str], known: Sequence[str], default: Sequence[str]) -> tuple[str, ...]:
    """Return the names that a flag chooses, or the default ones. Raises SettingsError for an unknown name."""
    for name in given:
        if name not in known:
            raise SettingsError(f'{flag}: "{name}" is unknown; known: {", ".join(known)}', param=flag)
    return tuple(dict.fromkeys(given)) or tuple(default)


def run(flags: EvalFlags, *, as_json: bool, as_card: bool, as_settings: bool) -> None:
    """Evaluate a model and print the report. Raises StreamtoolError."""
    upstream = ProbeFlags(flags.url, flags.protocol, flags.model, flags.key_env).upstream()
    try:
        journal, schedule, only = anyio.run(_evaluate, flags, upstream)
    except KeyboardInterrupt:
        if file := flags.resume or flags.save:
            print_error(f"interrupted; continue with the same arguments and --resume {file} instead of --save")
        raise
    report = reports.report_of(journal, schedule)
    if as_json:
        print(json_line(reports.document(report)))
    elif as_card:
        print(reports.card(report), end="")
    elif as_settings:
        print(settings_of(report), end="")
    else:
        show(report)
    if flags.calibrate:
        calibrate(report, flags, only=only)


def calibrate(report: reports.Report, flags: EvalFlags, *, only: bool) -> None:
    """Save the report's calibration, and print where. `only` is whether the server lists only this model. Raises
    SettingsError.

    A share of few cases is too uncertain to change the settings of a server.
    """
    best = next(iter(report.served), None)
    if best is None:
        why = "only the baseline was measured"
    elif best.cases < ENOUGH:
        why = f"it has {best.cases} cases, and {ENOUGH} are needed"
    elif not best.right:
        why = "no case is right"
    elif report.silent:
        why = "the model made no call"
    elif not flags.representative:
        why = "it was measured with --suite, --group, --choice, --forcing or --select"
    else:
        why = ""
    if why:
        print_error(f"the result is not saved for streamtool serve: {why}")
        return
    path = save_calibration(flags.calibrations, reports.calibration_of(report, only=only))
    print_error(f"the result is saved in {path}; streamtool serve applies it unless mode, format or schema is set")


async def _evaluate(flags: EvalFlags, upstream: UpstreamSettings) -> tuple[Journal, Schedule, bool]:
    """Return the outcomes, the schedule with their results, and whether the server lists only this model."""
    scenarios = flags.scenarios()
    async with AsyncExitStack() as stack:
        client = await find_client(upstream, flags.model, stack, seconds=flags.seconds)
        upstream = evolve(upstream, protocol=client.protocol)
        app: ASGIApp = sample.app
        if upstream.url != "sample":
            app = await stack.enter_async_context(HttpUpstream(upstream))
        journal = await _journal(flags, upstream, client.model.name, app, scenarios)
        end = None if flags.minutes is None else anyio.current_time() + 60 * flags.minutes
        budget = Budget(flags.requests or (None if flags.minutes else REQUESTS), end)
        settings = Settings(upstreams={upstream.name: upstream}, recordings=flags.recordings)
        with progress(journal, budget, sys.stderr.isatty()) as watch:
            schedule = await evaluate(app, settings, journal, scenarios, budget, seconds=flags.seconds, watch=watch)
    return journal, schedule, client.models == (client.model.name,)


async def _journal(
    flags: EvalFlags, upstream: UpstreamSettings, model: str, app: ASGIApp, scenarios: Mapping[str, Scenario]
) -> Journal:
    """Return the journal to continue, or a new one. Raises SettingsError."""
    import streamtool  # noqa: PLC0415  slow: reads the distribution's metadata

    server = await server_of(app) or upstream.url
    if flags.resume is not None:
        journal = journals.read_journal(Path(flags.resume))
        then = journal.subject
        if (then.model, then.server) != (model, server):
            raise SettingsError(
                f"{flags.resume} measures {then.model} on {then.server}, not {model} on {server}", param="--resume"
            )
        if not scenarios.keys() >= set(then.scenarios) or then.choice != flags.choice:
            raise SettingsError(
                f"{flags.resume} asks other scenarios; repeat its --suite, --group and --choice", param="--resume"
            )
        if then.max_tokens != flags.max_tokens:
            raise SettingsError(
                f"{flags.resume} limits replies to {then.max_tokens} tokens; repeat its --max-tokens", param="--resume"
            )
        return journal
    groups = {name: scenario.group for name, scenario in scenarios.items()}
    subject = Subject(
        model,
        server,
        upstream.url,
        upstream.wire_protocol,
        time.strftime("%Y-%m-%d"),
        streamtool.__version__,
        flags.seed,
        SUITES[flags.suite].title,
        flags.variants(),
        order_of(tuple(scenarios), groups, flags.seed),
        flags.choice,
        flags.max_tokens,
        flags.command,
    )
    journal = Journal(subject, None if flags.save is None else Path(flags.save))
    journal.create()
    return journal


# ---- progress


class ProgressLines:
    """Progress without a terminal: one line at the end of each tenth of the budget."""

    def __init__(self, journal: Journal, budget: Budget) -> None:
        self._journal = journal
        self._step = max(1, (budget.requests or REQUESTS) // 10)
        self._next = self._step

    def __enter__(self) -> Callable[[Schedule, str, ScenarioOutcome], None]:
        return self._watch

    def __exit__(self, *_: object) -> None:
        """End the progress."""

    def _watch(self, schedule: Schedule, _variant: str, _outcome: ScenarioOutcome) -> None:
        if self._journal.requests >= self._next:
            self._next = self._journal.requests + self._step
            print_error(f"{self._journal.requests} requests; {standing(schedule)}")


class ProgressBar:
    """Progress on a terminal: a bar with the best variants so far and the remaining time."""

    def __init__(self, journal: Journal, budget: Budget) -> None:
        self._journal = journal
        self._budget = budget
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Callable[[Schedule, str, ScenarioOutcome], None]:
        from rich.console import Console  # noqa: PLC0415  imported on demand
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415
        from rich.table import Column  # noqa: PLC0415

        # In a narrow terminal, only the last column is cut.
        columns: list[Any] = [
            BarColumn(12),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True)),
        ]
        self._bar = Progress(*columns, console=Console(file=sys.stderr), expand=True)
        self._bar.start()
        self._task = self._bar.add_task("", total=self._budget.requests, completed=self._journal.requests)
        return self._watch

    def __exit__(self, *_: object) -> None:
        """End the progress."""
        if self._bar is not None:
            self._bar.stop()

    def _watch(self, schedule: Schedule, _variant: str, _outcome: ScenarioOutcome) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._journal.requests, description=standing(schedule))


def progress(journal: Journal, budget: Budget, terminal: bool) -> ProgressLines | ProgressBar:
    """Return the progress to show."""
    return ProgressBar(journal, budget) if terminal else ProgressLines(journal, budget)


def standing(schedule: Schedule) -> str:
    """Return the best variants so far, with their shares."""
    names = [name for name in schedule.ranking() if schedule.results[name]][:3]
    shares = ((name, schedule.results[name]) for name in names)
    text = ", ".join(f"{name} {sum(results)}/{len(results)}" for name, results in shares)
    return f"{text}; {len(schedule.open)} of {len(schedule.variants)} compared"


# ---- the report


def show(report: reports.Report) -> None:
    """Print the report as a table."""
    screen = Screen()
    subject = report.subject
    screen.line((f"{subject.model} on {subject.server}", "bold"), f", {report.requests} requests, seed {subject.seed}")
    rows = [reports.COLUMNS, *reports.rows(report)]
    shown = fitting(rows, shutil.get_terminal_size().columns if screen.is_terminal else None)
    cells = [[row[column] for column in shown] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for index, row in enumerate(cells):
        line = GAP.join(
            f"{cell:<{width}}" if not column else f"{cell:>{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        screen.line((line, "dim" if not index else "bold" if index == 1 else ""))
    screen.line(report.conclusion)
    if len(shown) < len(reports.COLUMNS):
        screen.line(("The terminal is too narrow for all columns; --json and --card contain them.", "dim"))
    screen.line()
    level = len(report.figures) > 1 and not report.clear
    heading = "# Settings of the first row; no variant is clearly better" if level else "# Settings for this model"
    screen.line((heading, "bold cyan"))
    screen.line(settings_of(report), end="")


def fitting(rows: Sequence[Sequence[str]], width: int | None) -> list[int]:
    """Return the indexes of the columns that fit into a line of this width (None: any), in their order."""
    sizes = [max(map(len, column)) + len(GAP) for column in zip(*rows, strict=True)]
    shown = list(range(len(sizes)))
    for name in EXPENDABLE:
        if width is None or sum(sizes[column] for column in shown) - len(GAP) <= width:
            break
        shown.remove(rows[0].index(name))
    return shown


def settings_of(report: reports.Report) -> str:
    """Return the settings of the best variant as TOML; a comment if only the baseline was measured, or the model never
    called.
    """
    best = report.best
    if best is None:
        return "# The baseline has no settings.\n"
    if report.silent:
        return "# No settings: the model made no call. `streamtool probe URL` shows its replies.\n"
    lines = ["[[model]]", f"match = {json_line(glob.escape(report.subject.model))}", f"mode = {json_line(best.mode)}"]
    if best.mode != "native":
        lines += [f"format = {json_line(best.format)}", f"schema = {json_line(best.schema)}"]
        lines += [f"forcing = {json_line(best.forcing)}"] if best.forcing != "auto" else []
        lines += [f"select_tools = {best.select}"] if best.select else []
    return "\n".join(lines) + "\n"
