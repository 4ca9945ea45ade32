"""What holds for one model, as the exchange reads it: every `auto` resolved."""

from typing import Literal

from attrs import frozen

from statemachine import FORMATS, OPT_IN
from streamtool.families import UNKNOWN, Family
from streamtool.protocols.registry import ForcingSetting
from streamtool.settings.tables import Mode, ResultSettings, Schema, UpstreamSettings


@frozen
class PromptSettings:
    """How a conversation with tools becomes a prompt."""

    schema: Schema = "compact"
    schema_budget: int | None = None
    """Characters that all tools together may take in the contract; None: no limit."""
    system_role: bool = True
    """False: the upstream knows no system role or demands strictly alternating roles."""
    media: bool = True
    """False: the upstream takes text only, and each message's text in one piece."""
    history: Literal["repair", "strict"] = "repair"
    results: ResultSettings = ResultSettings()  # noqa: RUF009  frozen, so instances may share it


@frozen
class ModelSettings:
    """What holds for one model: the general settings with the first matching rule laid over them."""

    name: str
    """The name at the upstream."""
    upstream: UpstreamSettings | None = None
    """None: no upstream is configured (the middleware has its app, the proxy its sample)."""
    protocol: str | None = None
    """What the upstream speaks; None: what the client speaks, if an upstream can."""
    template: str = "chatml"
    forcing: ForcingSetting = "auto"
    mode: Mode = "emulate"
    format: str = "tool_call"
    """The format that is taught; `auto` has been resolved."""
    formats: tuple[str, ...] | None = None
    """The formats that are listened for besides the taught one; None: all that are on by default."""
    family: Family = UNKNOWN
    """What the model's name says of it."""
    calls_in_reasoning: bool = False
    """Calls inside of reasoning count; `auto` has been resolved."""
    context: int | None = None
    """Tokens that the model can read; None: not known, nothing is checked."""
    prompt: PromptSettings = PromptSettings()

    @property
    def listens(self) -> tuple[str, ...] | None:
        """The formats that the parser is to know, the taught one among them; None: the parser's own default.

        What is off by default is on when it is taught or when the family writes it. Of two formats that look alike the
        taught one is meant.
        """
        rival = FORMATS[self.format].alias_of
        if self.formats is not None:
            return self.formats if self.format in self.formats else (*self.formats, self.format)
        further = (*self.family.listen, *((self.format,) if self.format in OPT_IN else ()))
        if not further and not rival:
            return None
        return tuple(name for name in FORMATS if name != rival and (name not in OPT_IN or name in further))
