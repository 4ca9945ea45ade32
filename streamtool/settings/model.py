"""The settings for one model, as the exchange uses them, with each `auto` resolved."""

from collections.abc import Mapping
from typing import Literal

from attrs import evolve, field, frozen

from statemachine import FORMATS, OPT_IN
from statemachine.formats import DEFAULT, find_format, rivals_of
from streamtool.core.errors import SettingsError
from streamtool.core.json_value import Json
from streamtool.models.chat_templates import Recognised
from streamtool.models.engines import FoundEngine
from streamtool.models.families import UNKNOWN, Family, Roles
from streamtool.models.response_templates import Described
from streamtool.protocols.table import PROTOCOLS, ForcingSetting
from streamtool.settings.calibrations import Calibration
from streamtool.settings.tables import Mode, ResultSettings, SchemaStyle, UpstreamSettings

BY_SETTING = "by setting"
BY_DEFAULT = "default"


def reason_by_name(family: Family) -> str:
    """Return the reason for a format that was chosen by the model's name."""
    return BY_DEFAULT if family is UNKNOWN else f"from the name: family {family.pattern}"


@frozen
class PromptSettings:
    """Settings that affect how a conversation with tools is turned into a prompt."""

    schema: SchemaStyle = "compact"
    schema_budget: int | None = None
    """Maximum total number of characters for the tools in the tool prompt; None means no limit."""
    select_tools: int = 0
    """Number of tools whose parameters the tool prompt shows; 0: all."""
    tokenizer: str | None = None
    """The tokenizer file or folder used to count prompt tokens; None: the number is estimated."""
    roles: Roles = "strict"
    system_role: bool = True
    """False if the model does not support a system message."""
    media: bool = True
    """False if the upstream accepts only text, with each message as a single string."""
    history: Literal["repair", "strict"] = "repair"
    results: ResultSettings = ResultSettings()  # noqa: RUF009  frozen, so instances may share it


@frozen
class Training:
    """Facts about the model's training, and how they were found."""

    family: Family = UNKNOWN
    """The family identified by the model's name."""
    chat_template: str = "auto"
    """Where to find the model's chat template: a path, `auto` (request it from the upstream), or `none`."""
    response_template: str | Described = "auto"
    """Where to find the model's response template: a path, `auto` (next to the chat template), or `none`; or what it
    describes.
    """
    teaches_described: bool = False
    """Whether the format of the response template is taught even if it uses special tokens."""
    recognised: Recognised | None = None
    """The result of analyzing the chat template and the response template; None if neither is known."""
    reasoning_open: bool | Literal["auto"] = "auto"
    """Whether the prompt opens the reasoning. `auto`: only if the operator has set a template that does so."""
    reason: str = BY_DEFAULT
    """A human-readable reason for the choice of the taught format."""


@frozen
class ModelSettings:
    """The settings for one model: the general settings, overridden by the first matching rule."""

    name: str
    """The upstream's name for the model."""
    upstream: UpstreamSettings | None = None
    """None if no upstream is configured. The middleware then uses its app, and the proxy uses the embedded sample."""
    protocol: str | None = None
    """The upstream's protocol; None: the client's protocol, if an upstream can speak it."""
    template: str = "chatml"
    forcing: ForcingSetting = "auto"
    mode: Mode = "emulate"
    format: str = UNKNOWN.format
    """The taught format, with `auto` resolved."""
    formats: tuple[str, ...] | None = None
    """Formats to recognize in addition to the taught one; None means all that are enabled by default."""
    training: Training = Training()
    calls_in_reasoning: bool | tuple[str, ...] = False
    """Recognize calls inside reasoning, with `auto` resolved: all of them, none, or those in native formats of the
    model and, if there are any, in the taught format.
    """
    context: int | None = None
    """Size of the model's context window, in tokens; None if unknown, in which case prompts are not checked."""
    resume: int = 2
    """Maximum number of attempts within one exchange that continue an unfinished reply."""
    prompt: PromptSettings = PromptSettings()
    calibration: Calibration | None = None
    """The measurement that chose mode, format and schema."""
    uncalibrated: "ModelSettings | None" = None
    """The settings without that measurement."""
    engine: FoundEngine | None = None
    """The server that was recognized; None if it is unknown."""
    constrains_free: bool = True
    """Whether a method of forcing that leaves text unconstrained is also used if the tool choice is free."""
    chooses_window: bool = False
    """Whether each request asks for a window that fits its prompt, of at most `context` tokens."""
    fields: Mapping[str, Json] = field(factory=dict)
    """Fields that the server needs in a request whose calls are text. A client's own value takes precedence."""

    @property
    def listened_formats(self) -> tuple[str, ...] | None:
        """The formats for the parser, including the taught one; None: the parser's default.

        Formats that are disabled by default are enabled if they are taught or if the family writes them. If two formats
        look alike, the taught one takes precedence.
        """
        trained = self.training.recognised.format if self.training.recognised is not None else None
        if self.format not in FORMATS or (trained is not None and trained not in FORMATS):
            return self._listened_with_described
        rival = FORMATS[self.format].alias_of
        if self.formats is not None:
            return self.formats if self.format in self.formats else (*self.formats, self.format)
        further = {*self.training.family.listen, *(name for name in (self.format, trained) if name in OPT_IN)}
        if not further and not rival:
            return None
        return tuple(name for name in FORMATS if name != rival and (name not in OPT_IN or name in further))

    @property
    def _listened_with_described(self) -> tuple[str, ...]:
        """The formats for the parser if a response template describes one that is not in the table. It takes precedence
        over formats that look alike.
        """
        known = self.training.recognised
        found = dict.fromkeys((self.format, *((known.format,) if known is not None and known.format else ())))
        described = [name for name in found if name not in FORMATS]
        rivals = {rival for name in described for rival in rivals_of(find_format(name))}
        others = (*(DEFAULT if self.formats is None else self.formats), *self.training.family.listen, *found)
        return tuple(name for name in dict.fromkeys(others) if name not in rivals)

    @property
    def automatic(self) -> bool:
        """Whether the format was derived from the template or the name, rather than set explicitly or measured."""
        measured = None if self.calibration is None else self.calibration.reason
        return self.training.reason not in (BY_SETTING, measured)

    @property
    def looks_for_template(self) -> bool:
        """Whether the upstream's chat template could supply information that is not set."""
        return self.training.chat_template == "auto" and self.mode != "native" and self.automatic

    @property
    def with_own_format(self) -> "ModelSettings":
        """The same settings with the format that the template or the name indicates, even if a setting chooses another
        one.
        """
        family = self.training.family
        return self.teaching(family.format, reason_by_name(family)).with_template(self.training.recognised)

    @property
    def with_described_format(self) -> "ModelSettings":
        """The same settings with the format that the response template describes.

        Raises SettingsError if the model has no response template.
        """
        known = self.training.recognised
        if known is None or not known.described or known.format is None:
            raise SettingsError(f"format: no response_template is known for {self.name}", param="format")
        return self.teaching(known.format, BY_SETTING)

    def teaching(self, format: str, reason: str) -> "ModelSettings":
        """Return the same settings, but with this taught format and reason."""
        return evolve(self, format=format, training=evolve(self.training, reason=reason))

    def calibrated(self, measured: Calibration) -> "ModelSettings":
        """Return the same settings, but with the mode, the format and the schema style of a measurement."""
        return evolve(
            self.teaching(measured.format or self.format, measured.reason),
            mode=measured.mode,
            prompt=evolve(self.prompt, schema=measured.schema or self.prompt.schema),
            calibration=measured,
            uncalibrated=self,
        )

    def with_engine(self, found: FoundEngine, *, speaks: bool = True) -> "ModelSettings":
        """Return the same settings, with the properties of a recognized server where nothing was set. `speaks` is
        whether its own protocol may be used.
        """
        row, protocol = found.engine, self.protocol
        automatic = self.upstream is not None and self.upstream.protocol == "auto"
        if speaks and automatic and (self.forcing == "auto" or self.forcing in PROTOCOLS[row.protocol].forcing):
            protocol = row.protocol
        return evolve(
            self,
            engine=found,
            protocol=protocol,
            forcing=row.forcing_over.get(protocol or "", row.forcing) if self.forcing == "auto" else self.forcing,
            context=self.context or found.window(self.name),
            constrains_free=row.constrains_free or self.forcing != "auto",
            chooses_window=row.grows and self.context is None and protocol == row.protocol,
        )

    def with_template(self, recognised: Recognised | None) -> "ModelSettings":
        """Return the same settings, but with the properties recognized in the chat template (None: unknown)."""
        if recognised is None:
            return self
        known = evolve(self, training=evolve(self.training, recognised=recognised))
        if recognised.calls_end_reasoning and recognised.format and isinstance(self.calls_in_reasoning, tuple):
            known = evolve(known, calls_in_reasoning=(*self.calls_in_reasoning, recognised.format))
        if recognised.described and self.training.teaches_described and recognised.format is not None:
            return known.teaching(recognised.format, BY_SETTING)
        if recognised.format is None or not self.automatic:
            return known
        taught = recognised.taught or self.training.family.format
        special = "" if taught == recognised.format else f", a marker of {recognised.format}, which uses special tokens"
        if recognised.described:
            special = "" if taught == recognised.format else f", whose format, {recognised.format}, uses special tokens"
            return known.teaching(taught, f"from the response template{special}")
        reason = f"from the template: contains `{recognised.mark}`{special}"
        return known.teaching(taught, reason)

    def continuing_in(self, format: str) -> "ModelSettings":
        """Return the same settings, but with the format that the conversation began in, unless a setting chooses the
        format.
        """
        if format == self.format or not self.automatic:
            return self
        return self.teaching(format, "the conversation began in it")

    def opener(self, *, thinking: bool | None = None) -> str:
        """Return the reasoning opener that the prompt already contains, or "".

        `thinking` is whether the request asks for reasoning; None if it does not specify. The model's name alone does
        not imply an opener, since servers that strip the reasoning and requests that disable it use the same name.
        Neither does a template reported by a server, because such a server strips the reasoning itself, nor a template
        that is not used because streamtool writes the prompt.
        """
        known, told = self.training, self.training.recognised
        if thinking is False or known.reasoning_open is False:
            return ""
        if known.reasoning_open is True:
            return (told.opener or told.opener_on_request if told else "") or known.family.reasoning
        ours = known.chat_template not in ("auto", "none") and self.protocol != "completions"
        ours = ours or known.response_template not in ("auto", "none")
        if told is None or not ours:
            return ""
        return told.opener_on_request if thinking else told.opener
