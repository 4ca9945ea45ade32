"""What one request allows, worked out once: which calls may pass, how many, and in which form.

The conversation and the settings alone decide the rules. Stages look at them for every call, and never for a piece of
text or arguments.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from attrs import field, frozen

from streamtool.conversation import Conversation, Json, Tool
from streamtool.policy.refusals import Phrases
from streamtool.settings import Settings
from streamtool.turns import Turn, turn
from streamtool.validation.answer_form import AnswerForm
from streamtool.validation.validator import Validator

CUSTOM: Mapping[str, Json] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""The arguments of a custom tool as the model writes them: its raw text under one key."""


_ACTS = re.compile(
    r"file|path|dir|folder|read|writ|edit|patch|run|exec|bash|shell|command|terminal|process|code|python|script|repo"
    r"|git|grep|glob|search|browse|web|http|url|fetch|download|page|internet|online|computer|screen|system",
    re.IGNORECASE,
)
"""Words in the name, or the beginning of the description, of a tool that acts on files, commands or the network."""
_LOOKED_AT = 200  # characters of a description


@frozen
class CallableTools:
    """The calls that count. With a named or narrowed choice, only the tools of the choice."""

    schemas: Mapping[str, Mapping[str, Json]]
    """Name -> JSON Schema of the arguments."""
    aliases: Mapping[str, str] = field(factory=dict)
    """The short names of tools that stand in a group (`namespace`), where a short name means one tool only."""
    complete: frozenset[str] = frozenset()
    """Tools whose calls go out only when their arguments are complete."""
    custom: frozenset[str] = frozenset()
    """Tools that take raw text, which is taken out of the JSON around it."""


@frozen
class RefusalRules:
    """How refusals are recognised."""

    watched: bool = False
    """Tools are offered and none is forced: a reply that denies them is asked for again."""
    announcements: bool = False
    """So is one that only announces a call."""
    environment: bool = False
    """Some tool acts on files, commands or the network, so the model need not say that it cannot."""
    phrases: Phrases | None = None
    """What a denial or an announcement is recognised by; None: the phrases that come with the package."""


@frozen
class TextRules:
    """What becomes of text and reasoning."""

    reasoning: Literal["emit", "drop", "text"] = "emit"
    stop: tuple[str, ...] = ()
    """Strings at which visible text ends, and the reply with it."""
    held: int = 256 * 1024
    """Characters of text that may wait for a forced call."""
    answers: bool = False
    """The choice is free, and reasoning alone is no answer."""
    form: AnswerForm | None = None
    """An answer waits until it is whole, and is not accepted if it has another form."""
    kept: bool = False
    """What the model writes is kept: the reply may be continued, and the next prompt may repeat it."""


@frozen
class Rules:
    """The rules of one exchange."""

    tools: CallableTools
    native: bool = False
    """The upstream gets the tools natively: its own calls are its business, and so is the choice."""
    forbidden: bool = False
    """Tool choice none: a call is discarded."""
    forced: bool = False
    """Tool choice required or named: text waits until the call has committed."""
    single: bool = False
    """At most one call; the reply ends after it."""
    unknown: Literal["retry", "text", "drop", "deliver"] = "text"
    """What becomes of a call whose name is not offered."""
    malformed: Literal["text", "drop", "retry"] = "text"
    """What becomes of markup that never became a call."""
    invalid: Literal["deliver", "error"] = "deliver"
    """What becomes of a whole call whose arguments do not match the schema, when it is not asked for again."""
    truncated: Literal["reason", "error"] = "reason"
    """How a reply ends that was cut inside a call."""
    answer_due: bool = False
    """A result has come, and the client waits for what follows from it: an empty reply is not accepted."""
    refusals: RefusalRules = RefusalRules()
    text: TextRules = TextRules()

    @property
    def callable(self) -> Mapping[str, Mapping[str, Json]]:
        """The tools as the parser takes them."""
        schemas, aliases = self.tools.schemas, self.tools.aliases
        tools = {**{short: schemas[name] for short, name in aliases.items()}, **schemas}
        return AnyName(tools) if self.unknown == "deliver" else tools


class AnyName(dict[str, Mapping[str, Json]]):
    """Tools that contain every name, except another spelling of a tool that is really there."""

    def __contains__(self, name: object) -> bool:
        """Whether a call by this name is to be delivered under it."""
        known = {tool.lower() for tool in self}
        return super().__contains__(name) or str(name).removeprefix("functions.").lower() not in known


def rules_for(
    conversation: Conversation,
    settings: Settings,
    *,
    native: bool = False,
    one_object: bool = False,
    phrases: Phrases | None = None,
) -> Rules:
    """The rules for this conversation. Without tools in the request, the names of its history may be called.

    `native` says that the upstream gets the tools natively, `one_object` that a reply is to be one object, reasoning
    and all.
    """
    choice = conversation.choice
    offered = bool(conversation.tools)
    alone = conversation.options.n == 1 and not native
    may_deny = offered and choice.mode == "auto" and conversation.options.n == 1
    free = may_deny and alone
    correctable = alone and choice.mode != "none"
    forced = choice.mode == "required" and not native
    return Rules(
        tools=_callable_tools(conversation, settings),
        native=native,
        forbidden=choice.mode == "none",
        forced=forced,
        single=not choice.parallel or conversation.legacy_functions,
        unknown=_unknown(settings, forced=forced, free=free, alone=alone),
        malformed="text" if settings.malformed == "retry" and not correctable else settings.malformed,
        invalid=settings.invalid,
        truncated=settings.truncated,
        answer_due=free and turn(conversation.messages) is Turn.NEXT_DECISION,
        refusals=RefusalRules(
            watched=may_deny and settings.refusals == "retry",
            announcements=free and settings.refusals == "retry",
            environment=may_deny and any(map(_acts, conversation.tools)),
            phrases=phrases,
        ),
        text=TextRules(
            reasoning=settings.reasoning,
            stop=conversation.options.stop,
            held=settings.limits.held,
            answers=free and not one_object,
            form=_form(conversation, settings) if alone else None,
            kept=(offered or conversation.has_tool_history) and alone,
        ),
    )


def _form(conversation: Conversation, settings: Settings) -> AnswerForm | None:
    """The form of an answer that no upstream is held to, since calls are text, too."""
    output = conversation.options.output
    emulated = conversation.tools or conversation.has_tool_history
    wanted = settings.answers == "check" and output is not None and not output.foreign and emulated
    return AnswerForm.of(output) if wanted and output is not None else None


def _callable_tools(conversation: Conversation, settings: Settings) -> CallableTools:
    names = conversation.choice.names
    if conversation.tools:
        allowed = [tool for tool in conversation.tools if not names or tool.name in names]
    else:
        allowed = [Tool(name) for name in conversation.known_names]
    short = Counter(_short(tool) for tool in allowed)
    complete = [tool for tool in allowed if settings.arguments_for(tool.name) == "complete"]
    for tool in complete:
        Validator.of(CUSTOM if tool.custom else (tool.parameters or {}))  # now, so that no delta waits for it
    return CallableTools(
        {tool.name: CUSTOM if tool.custom else (tool.parameters or {}) for tool in allowed},
        aliases={_short(tool): tool.name for tool in allowed if tool.namespace and short[_short(tool)] == 1},
        complete=frozenset(tool.name for tool in complete),
        custom=frozenset(tool.name for tool in allowed if tool.custom),
    )


def _unknown(
    settings: Settings, *, forced: bool, free: bool, alone: bool
) -> Literal["retry", "text", "drop", "deliver"]:
    """What becomes of a call that is not offered: a forced choice is insisted on, other choices follow the setting."""
    if forced and settings.unknown_tools != "drop":
        return "retry" if alone else "text"
    if settings.unknown_tools == "retry" and not free:
        return "text"
    return settings.unknown_tools


def _acts(tool: Tool) -> bool:
    return _ACTS.search(f"{tool.name} {tool.description[:_LOOKED_AT]}") is not None


def _short(tool: Tool) -> str:
    return tool.name.removeprefix(f"{tool.namespace}.") if tool.namespace else tool.name
