"""Variants of the settings that an evaluation compares."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final, Literal

from attrs import evolve, frozen

from streamtool.protocols.table import ForcingSetting
from streamtool.settings import Mode, SchemaStyle, Settings

EvaluatedMode = Literal["emulate", "native", "naive"]

FORMATS: Final = ("invoke", "tool_call", "qwen3_coder", "object", "pythonic", "fenced", "labelled", "tag")
"""Formats that are tried unless others are named: those that a study of 51 models compared (`toolform` 0.0.1, October
2026), and the ones that our own tool prompt is most often used with.
"""


@frozen
class ModeRow:
    """A mode that an evaluation measures."""

    name: EvaluatedMode
    served: Mode | None
    """The mode of `serve`; None if it has none, so that a result cannot become a calibration."""
    title: str = ""
    """The name of its only variant in tables; empty: the variants differ in format, style of schemas and forcing."""
    default: bool = True
    """Whether it is measured unless modes are named."""


MODES: Final = {
    row.name: row
    for row in (
        ModeRow("emulate", "emulate"),
        ModeRow("native", "native", "native"),
        ModeRow("naive", None, "naive baseline", default=False),
    )
}
"""The modes by name. `naive` is the baseline in `baseline.py`, without streamtool."""


@frozen
class EvaluatedVariant:
    """One way to call tools with a model."""

    mode: EvaluatedMode = "emulate"
    format: str = ""
    """The taught format; empty unless the mode is `emulate`."""
    schema: SchemaStyle = "compact"
    forcing: ForcingSetting = "auto"
    """How a demanded call is forced."""
    select: int = 0
    """Number of tools whose parameters the tool prompt shows; 0: all."""

    @property
    def name(self) -> str:
        """The name in tables, such as `invoke` or `invoke, schema full`."""
        if title := MODES[self.mode].title:
            return title
        style = "" if self.schema == "compact" else f", schema {self.schema}"
        forcing = "" if self.forcing == "auto" else f", forcing {self.forcing}"
        select = f", select {self.select}" if self.select else ""
        return f"{self.format}{style}{forcing}{select}"

    @property
    def served(self) -> Mode | None:
        """The mode of `serve`; None for the baseline."""
        return MODES[self.mode].served

    def applied(self, settings: Settings) -> Settings:
        """Return the settings with those of this variant. The baseline has none."""
        mode = self.served
        if mode is None:
            return settings
        if mode == "native":
            return evolve(settings, mode=mode)
        upstreams = {name: evolve(upstream, forcing=self.forcing) for name, upstream in settings.upstreams.items()}
        return evolve(
            settings,
            mode=mode,
            format=self.format,
            schema=self.schema,
            upstreams=upstreams,
            select_tools=self.select,
        )


def variants_of(
    formats: Sequence[str],
    modes: Sequence[EvaluatedMode],
    schemas: Sequence[SchemaStyle],
    forcing: Sequence[ForcingSetting] = ("auto",),
    select: Sequence[int] = (0,),
) -> Iterator[EvaluatedVariant]:
    """Yield each combination of mode, format, style of schemas, method of forcing and number of selected tools."""
    for mode in modes:
        if MODES[mode].title:
            yield EvaluatedVariant(mode)
        else:
            yield from (EvaluatedVariant(mode, *ways) for ways in product(formats, schemas, forcing, select))
