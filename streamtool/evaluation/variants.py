"""Variants of the settings that an evaluation compares."""

from collections.abc import Iterator, Sequence
from typing import Final

from attrs import evolve, frozen

from streamtool.settings import Mode, SchemaStyle, Settings

FORMATS: Final = ("invoke", "tool_call", "qwen3_coder", "object", "pythonic", "fenced", "labelled", "tag")
"""Formats that are tried unless others are named: those that a study of 51 models compared (`toolform` 0.0.1, October
2026), and the ones that our own tool prompt is most often used with.
"""


@frozen
class Variant:
    """One way to serve a model."""

    mode: Mode = "emulate"
    format: str = ""
    """The taught format; empty in `native` mode."""
    schema: SchemaStyle = "compact"

    @property
    def name(self) -> str:
        """The name in tables, such as `invoke` or `invoke, schema full`."""
        style = "" if self.schema == "compact" or self.mode == "native" else f", schema {self.schema}"
        return (self.format if self.mode == "emulate" else self.mode) + style

    def applied(self, settings: Settings) -> Settings:
        """Return the settings with those of this variant."""
        if self.mode == "native":
            return evolve(settings, mode="native")
        return evolve(settings, mode=self.mode, format=self.format, schema=self.schema)


def variants_of(formats: Sequence[str], modes: Sequence[Mode], schemas: Sequence[SchemaStyle]) -> Iterator[Variant]:
    """Yield each combination of mode, format and style of schemas."""
    for mode in modes:
        if mode == "native":
            yield Variant("native")
            continue
        for format in formats:
            for schema in schemas:
                yield Variant(mode, format, schema)
