"""Findings of `probe`: a field for each question, with a one-word answer and an excerpt from the upstream's text that
supports the answer.
"""

from collections.abc import Mapping
from typing import Literal

from attrs import frozen

from streamtool.protocols.table import PROTOCOLS

Word = Literal["yes", "no", "refused", "failed", "unclear"]
"""`refused`: the upstream rejected the request; `failed`: no reply arrived; `unclear`: the reply shows neither yes nor
no.
"""


@frozen
class ProbeAnswer:
    """Answer to one question."""

    word: Word
    said: str = ""


@frozen
class Stream:
    """How replies arrive."""

    word: Literal["streamed", "buffered", "whole", "failed"]
    """`buffered`: as a stream whose pieces all arrive at the same time; `whole`: as one document."""
    first: float = 0.0
    """Seconds to the first byte."""
    seconds: float = 0.0
    """Seconds to the last byte."""
    pieces: int = 0
    """Number of body pieces that contained text."""
    said: str = ""


@frozen
class ToolFindings:
    """How the upstream handles a native tool."""

    word: Literal["calls", "leaks", "ignored", "denied", "none", "refused", "failed", "unclear"]
    """`leaks`: the call is in the text; `denied`: the upstream reports that it does not support tools; `none`: its
    protocol does not include tools.
    """
    format: str | None = None
    """Format of the call in the text, for `leaks`."""
    said: str = ""


@frozen
class Taught:
    """How the model handles a format that it was taught."""

    format: str
    word: Literal["obeyed", "other", "wrong", "no call", "refused", "failed", "unclear"]
    """Result of the best try. `other`: the right call in another format, or as a native call; `wrong`: another call."""
    obeyed: int = 0
    tries: int = 1
    said: str = ""


@frozen
class ShownTemplate:
    """Chat template that the upstream exposes."""

    where: str
    """Path of the template; "" if the upstream does not expose one."""
    format: str | None = None
    """Format that the model was trained on; None if it is not evident from the template."""
    mark: str = ""
    """Marker in the template that identified the format."""
    taught: str | None = None
    """Format to teach, according to the template."""
    opener: str = ""
    """Opener of a reasoning section that the prompt leaves open."""


@frozen
class ProbeTarget:
    """The upstream and model that were probed."""

    url: str
    protocol: str
    model: str
    models: tuple[str, ...] | None
    """Models that the upstream lists; None if it does not provide a list."""
    template: ShownTemplate
    """The model's chat template, if the upstream exposes it."""


@frozen
class Findings:
    """All findings about an upstream."""

    target: ProbeTarget
    stream: Stream
    tools: ToolFindings
    system: ProbeAnswer
    """Whether the model obeys instructions in a system message."""
    neighbours: ProbeAnswer
    """Whether a user message may directly follow another one."""
    markers: Mapping[str, Word]
    """Marker → whether the model repeats it unchanged."""
    prefill: ProbeAnswer
    """Whether the model continues an assistant message at the end of the prompt."""
    json_schema: ProbeAnswer
    """Whether a JSON Schema determines the form of the reply."""
    stop: ProbeAnswer
    """Whether a stop string ends the reply."""
    formats: tuple[Taught, ...]
    system_role: bool
    """Whether the tool prompt may be in a system message."""
    requests: int
    """Number of requests sent."""

    @property
    def forcing(self) -> Literal["schema", "prefill"] | None:
        """Method of forcing a call; the stronger one if both work, None if neither does."""
        if self.json_schema.word == "yes":
            return "schema"
        return "prefill" if self.prefill.word == "yes" and PROTOCOLS[self.target.protocol].prefill else None

    @property
    def confirmed(self) -> bool | None:
        """Whether the model obeys its template's format; None if the format is unknown or no try was conclusive."""
        tried = next((taught for taught in self.formats if taught.format == self.target.template.taught), None)
        if tried is None or tried.word in ("refused", "failed", "unclear"):
            return None
        return tried.obeyed > 0

    @property
    def format(self) -> str | None:
        """Format to teach: the first of the formats that were obeyed most often; None if no format was obeyed."""
        best = max(self.formats, key=lambda taught: taught.obeyed)
        return best.format if best.obeyed else None
