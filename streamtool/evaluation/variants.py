"""Variants of the settings that an evaluation compares."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final

from attrs import evolve, frozen

from streamtool.protocols.table import ForcingSetting
from streamtool.settings import Mode, SchemaStyle, Settings

FORMATS: Final = ("invoke", "tool_call", "qwen3_coder", "object", "pythonic", "fenced", "labelled", "tag")
"""Formats that are tried unless others are named: those that a study of 51 models compared (`toolform` 0.0.1, October
2026), and the ones that our own tool prompt is most often used with.
"""


@frozen
class EvaluatedVariant:
    """One way to serve a model."""

    mode: Mode = "emulate"
    format: str = ""
    """The taught format; empty in `native` mode."""
    schema: SchemaStyle = "compact"
    forcing: ForcingSetting = "auto"
    """How a demanded call is forced."""

    @property
    def name(self) -> str:
        """The name in tables, such as `invoke` or `invoke, schema full`."""
        if self.mode == "native":
            return self.mode
        style = "" if self.schema == "compact" else f", schema {self.schema}"
        forcing = "" if self.forcing == "auto" else f", forcing {self.forcing}"
        return f"{self.format}{style}{forcing}"

    def applied(self, settings: Settings) -> Settings:
        """Return the settings with those of this variant."""
        if self.mode == "native":
            return evolve(settings, mode="native")
        upstreams = {name: evolve(upstream, forcing=self.forcing) for name, upstream in settings.upstreams.items()}
        return evolve(settings, mode=self.mode, format=self.format, schema=self.schema, upstreams=upstreams)


def variants_of(
    formats: Sequence[str],
    modes: Sequence[Mode],
    schemas: Sequence[SchemaStyle],
    forcing: Sequence[ForcingSetting] = ("auto",),
) -> Iterator[EvaluatedVariant]:
    """Yield each combination of mode, format, style of schemas and method of forcing."""
    for mode in modes:
        if mode == "native":
            yield EvaluatedVariant("native")
        else:
            yield from (EvaluatedVariant(mode, *ways) for ways in product(formats, schemas, forcing))
