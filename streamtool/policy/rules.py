"""What one request allows, worked out once: which calls may pass, how many, and in which form.

`Rules` is derived from the conversation and the settings alone. It is looked at for every call and never for a piece of
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
"""What a tool's name or the beginning of its description says, if it acts on files, commands or the network."""
_LOOKED_AT = 200  # characters of a description


@frozen
class Rules:
    """The rules of one exchange."""

    tools: Mapping[str, Mapping[str, Json]]
    """The calls that count: name -> JSON Schema of the arguments. With a named or narrowed choice only those."""
    aliases: Mapping[str, str] = field(factory=dict)
    """The short names of tools that stand in a group (`namespace`), as far as each is the only one."""
    native: bool = False
    """The upstream has the tools as what they are: its own calls are its business, and so is the choice."""
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
    phrases: Phrases | None = None
    """By which a denial or an announcement is recognised; None: those that come with the package."""
    watches: bool = False
    """Tools are offered and none is forced: a reply that denies them, or only announces a call, is asked for again."""
    acts: bool = False
    """Some tool acts on files, commands or the network: then nobody has to say that he cannot."""
    keeps: bool = False
    """What the model writes is kept: the reply may be continued, or its words be wanted in the next turn."""
    answers: bool = False
    """A result has come, and somebody waits for what follows from it: silence is not accepted."""
    invalid: Literal["deliver", "error"] = "deliver"
    """What becomes of a whole call whose arguments do not fit the schema, when it is not asked for again."""
    reasoning: Literal["emit", "drop", "text"] = "emit"
    truncated: Literal["reason", "error"] = "reason"
    complete: frozenset[str] = frozenset()
    """Tools whose calls go out only when their arguments are complete."""
    custom: frozenset[str] = frozenset()
    """Tools that take raw text, which is taken out of the JSON around it."""
    held: int = 256 * 1024
    """Characters of text that may wait for a forced call."""
    stop: tuple[str, ...] = ()
    """Strings at which visible text ends, and the reply with it."""

    @property
    def callable(self) -> Mapping[str, Mapping[str, Json]]:
        """The tools as the parser takes them."""
        tools = {**{short: self.tools[name] for short, name in self.aliases.items()}, **self.tools}
        return AnyName(tools) if self.unknown == "deliver" else tools


class AnyName(dict[str, Mapping[str, Json]]):
    """Tools among which every name is, except another spelling of one that is really there."""

    def __contains__(self, name: object) -> bool:
        """Whether a call by this name is to be delivered under it."""
        known = {tool.lower() for tool in self}
        return super().__contains__(name) or str(name).removeprefix("functions.").lower() not in known


def rules_for(
    conversation: Conversation, settings: Settings, *, native: bool = False, phrases: Phrases | None = None
) -> Rules:
    """The rules for this conversation. Without tools in the request, the names of its history may be called.

    `native` says that the upstream gets the tools as what they are.
    """
    choice = conversation.choice
    if conversation.tools:
        allowed = [tool for tool in conversation.tools if not choice.names or tool.name in choice.names]
    else:
        allowed = [Tool(name) for name in conversation.known_names]
    names = [tool.name for tool in allowed]
    free = bool(conversation.tools) and choice.mode == "auto" and conversation.n == 1 and not native
    unknown = settings.unknown_tools
    forced = choice.mode == "required" and not native
    if forced and unknown != "drop":
        unknown = "retry" if conversation.n == 1 else "text"
    elif unknown == "retry" and not free:
        unknown = "text"
    malformed = settings.malformed
    if malformed == "retry" and (native or conversation.n > 1 or choice.mode == "none"):
        malformed = "text"
    short = Counter(_short(tool) for tool in allowed)
    return Rules(
        tools={tool.name: CUSTOM if tool.custom else (tool.parameters or {}) for tool in allowed},
        aliases={_short(tool): tool.name for tool in allowed if tool.namespace and short[_short(tool)] == 1},
        native=native,
        forbidden=choice.mode == "none",
        forced=forced,
        single=not choice.parallel or conversation.legacy_functions,
        unknown=unknown,
        malformed=malformed,
        phrases=phrases,
        watches=free and settings.refusals == "retry",
        acts=free and any(map(_acts, conversation.tools)),
        keeps=bool(conversation.tools or conversation.has_tool_history) and conversation.n == 1 and not native,
        answers=free and turn(conversation.messages) is Turn.NEXT_DECISION,
        invalid=settings.invalid,
        reasoning=settings.reasoning,
        truncated=settings.truncated,
        complete=frozenset(name for name in names if settings.arguments_for(name) == "complete"),
        custom=frozenset(tool.name for tool in allowed if tool.custom),
        held=settings.limits.held,
        stop=conversation.stop,
    )


def _acts(tool: Tool) -> bool:
    return _ACTS.search(f"{tool.name} {tool.description[:_LOOKED_AT]}") is not None


def _short(tool: Tool) -> str:
    return tool.name.removeprefix(f"{tool.namespace}.") if tool.namespace else tool.name
