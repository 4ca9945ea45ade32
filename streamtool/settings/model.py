"""What holds for one model, as the exchange reads it: every `auto` resolved."""

from typing import Literal

from attrs import evolve, frozen

from statemachine import FORMATS, OPT_IN
from streamtool.families import UNKNOWN, Family, Roles
from streamtool.protocols.registry import ForcingSetting
from streamtool.settings.tables import Mode, ResultSettings, Schema, UpstreamSettings
from streamtool.templates import Recognised

BY_SETTING = "by setting"
BY_DEFAULT = "default"


def taught_by_name(family: Family) -> str:
    """Why a format is taught that goes by the model's name."""
    return BY_DEFAULT if family is UNKNOWN else f"from the name: family {family.pattern}"


@frozen
class PromptSettings:
    """How a conversation with tools becomes a prompt."""

    schema: Schema = "compact"
    schema_budget: int | None = None
    """Characters that all tools together may take in the contract; None: no limit."""
    tokenizer: str | None = None
    """The file or folder whose tokenizer counts its tokens; None: they are estimated."""
    roles: Roles = "strict"
    system_role: bool = True
    """False: the model takes no system message."""
    media: bool = True
    """False: the upstream takes text only, and each message's text in one piece."""
    history: Literal["repair", "strict"] = "repair"
    results: ResultSettings = ResultSettings()  # noqa: RUF009  frozen, so instances may share it


@frozen
class Training:
    """What is known of how the model was trained, and how that is known."""

    family: Family = UNKNOWN
    """What the model's name says of it."""
    chat_template: str = "auto"
    """Where the model's chat template is: a path, `auto` (the upstream is asked), `none`."""
    recognised: Recognised | None = None
    """What that template tells, as far as it is known."""
    reasoning_open: bool | Literal["auto"] = "auto"
    """The prompt opens the reasoning; `auto`: if the template says so, and it is the operator's own."""
    reason: str = BY_DEFAULT
    """Why the format is taught that is taught, in words."""


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
    training: Training = Training()
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
        trained = self.training.recognised.format if self.training.recognised is not None else None
        further = {*self.training.family.listen, *(name for name in (self.format, trained) if name in OPT_IN)}
        if not further and not rival:
            return None
        return tuple(name for name in FORMATS if name != rival and (name not in OPT_IN or name in further))

    @property
    def automatic(self) -> bool:
        """The format goes by the template or the name, not by a setting."""
        return self.training.reason != BY_SETTING

    @property
    def looks_for_template(self) -> bool:
        """The upstream's chat template would tell something that is not set."""
        return self.training.chat_template == "auto" and self.mode != "native" and self.automatic

    @property
    def itself(self) -> "ModelSettings":
        """The same, its format by the template or the name, whatever a setting says."""
        family = self.training.family
        return self.taught(family.format, taught_by_name(family)).with_template(self.training.recognised)

    def taught(self, format: str, reason: str) -> "ModelSettings":
        """The same, taught this format for this reason."""
        return evolve(self, format=format, training=evolve(self.training, reason=reason))

    def with_template(self, recognised: Recognised | None) -> "ModelSettings":
        """The same, with what the chat template tells; None: it is not known."""
        if recognised is None:
            return self
        known = evolve(self, training=evolve(self.training, recognised=recognised))
        taught = recognised.taught
        if taught is None or not self.automatic:
            return known
        special = "" if taught == recognised.format else f", of {recognised.format}, whose markers are special tokens"
        reason = f"from the template: contains `{recognised.mark}`{special}"
        return known.taught(taught, reason)

    def going_on_in(self, format: str) -> "ModelSettings":
        """The same in the format in which the conversation began, unless a setting says which one to teach."""
        if format == self.format or not self.automatic:
            return self
        return self.taught(format, "the conversation began in it")

    def opener(self, *, thinking: bool | None = None) -> str:
        """The opener of reasoning that the prompt has written already; "" if it has written none.

        `thinking` is what the request asks for; None: it does not say. A name alone opens nothing: servers that take
        the reasoning out, and requests that want none, have the same names. Nor does a template that a server shows,
        since such servers take the reasoning out themselves, nor one that is not used, where we write the prompt.
        """
        known, told = self.training, self.training.recognised
        if thinking is False or known.reasoning_open is False:
            return ""
        if known.reasoning_open is True:
            return (told.opener or told.opener_on_request if told else "") or known.family.reasoning
        ours = known.chat_template not in ("auto", "none") and self.protocol != "completions"
        if told is None or not ours:
            return ""
        return told.opener_on_request if thinking else told.opener
