"""The rules for one request, determined once: which calls may pass, how many, and in which form.

The rules depend only on the conversation and the settings. The filters' stages consult them for every call, but not for
every delta of text or arguments.
"""

import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

from attrs import field

from statemachine.names import is_spelling
from streamtool.core.bounded_cache import SharedList
from streamtool.core.conversation import CUSTOM_TOOL_SCHEMA, Conversation, Tool
from streamtool.core.json_value import Json
from streamtool.core.turns import Turn, turn_of
from streamtool.core.values import frozen
from streamtool.prompting.selection import SEARCH_SCHEMA, search_name
from streamtool.refusals import Phrases, Topics
from streamtool.schemas.answer_form import AnswerForm
from streamtool.schemas.validator import Validator
from streamtool.settings import Settings

_ACTS = re.compile(
    r"file|path|dir|folder|read|writ|edit|patch|run|exec|bash|shell|command|terminal|process|code|python|script|repo"
    r"|git|grep|glob|search|browse|web|http|url|fetch|download|page|internet|online|computer|screen|system",
    re.IGNORECASE,
)
"""Words in a tool's name or early in its description which indicate that it acts on files, commands or the network."""
_SEARCHED_CHARACTERS = 200  # number of characters of a description that are searched
_KNOWN_TOOLS = 1000  # number of tools whose search result is cached


@frozen
class CallableTools:
    """The tools that may be called; if the tool choice names some tools, only those."""

    schemas: Mapping[str, Mapping[str, Json]]
    """JSON Schema of the arguments, by tool name."""
    aliases: Mapping[str, str] = field(factory=dict)
    """Full names of grouped tools (`namespace`), keyed by their short names; ambiguous short names are omitted."""
    complete: frozenset[str] = frozenset()
    """Tools whose calls are emitted only once their arguments are complete."""
    edits: bool = False
    """Whether the name of a call may differ in one character from the only tool that fits."""
    custom: frozenset[str] = frozenset()
    """Tools that accept raw text, which is extracted from the JSON around it."""


@frozen
class RefusalRules:
    """Rules for recognizing refusals."""

    watch: bool = False
    """Whether the model is asked again after it denies having tools; this requires that tools are offered and none is
    forced.
    """
    announcements: bool = False
    """Whether the model is asked again after a reply that only announces a call."""
    environment: bool = False
    """Whether some tool acts on files, commands or the network, so that a reply that denies access to these is
    wrong.
    """
    phrases: Phrases | None = None
    """Phrases that indicate a denial or an announcement, or None for the built-in ones."""
    topics: Topics | None = None
    """The words that name what the offered tools do, or None if the reply follows a tool result: the model then knows
    that it has tools, and "I can't access the database" may be a finding.
    """


@frozen
class TextRules:
    """Rules for text and reasoning."""

    reasoning: Literal["emit", "drop", "text"] = "emit"
    stop: tuple[str, ...] = ()
    """Strings that end the visible text and thus the reply."""
    max_buffered: int = 256 * 1024
    """Maximum number of characters of text to buffer."""
    requires_answer: bool = False
    """Whether a reply that contains only reasoning is rejected; set only if the tool choice is free."""
    form: AnswerForm | None = None
    """The required form of an answer. The answer is buffered until it is complete, and rejected if its form is
    wrong.
    """
    store_transcript: bool = False
    """Whether to store what the model writes, because the reply may be continued or the next prompt may repeat it."""


@frozen
class Rules:
    """The rules for one exchange."""

    tools: CallableTools
    whole: bool = False
    """Whether the client receives the reply at once, at its end."""
    native: bool = False
    """Whether the upstream receives the tools natively and is itself responsible for calls and the tool choice."""
    forbidden: bool = False
    """Whether calls are discarded (tool choice `none`)."""
    forced: bool = False
    """Whether text is buffered until the reply has committed to a call (tool choice `required`, or a named tool)."""
    single: bool = False
    """Whether at most one call is allowed; the reply then ends after it."""
    unknown: Literal["retry", "text", "drop", "deliver"] = "text"
    """How to treat a call to a tool that is not offered."""
    malformed: Literal["text", "drop", "retry"] = "text"
    """How to treat markup that never became a call."""
    invalid: Literal["deliver", "error"] = "deliver"
    """How to treat a complete call whose arguments do not match the schema, if the model is not asked again."""
    truncated: Literal["reason", "error"] = "reason"
    """How a reply that was truncated inside a call ends: with a finish reason, or with an error."""
    repeated: int = 3
    """Number of times that the model writes the same calls before the reply ends; below 2: no limit."""
    repetition: int = 0
    """Number of bytes in a call's arguments that may be repetitions of one passage; 0: no limit."""
    answer_due: bool = False
    """Whether an empty reply is rejected."""
    search: str = ""
    """Name of the tool that searches for tools, whose calls the client does not receive; empty without selection."""
    refusals: RefusalRules = RefusalRules()
    text: TextRules = TextRules()

    @property
    def callable(self) -> Mapping[str, Mapping[str, Json]]:
        """The tools in the form that the parser accepts."""
        schemas, aliases = self.tools.schemas, self.tools.aliases
        tools = {**{short: schemas[name] for short, name in aliases.items()}, **schemas} if aliases else schemas
        if self.search:
            tools = {**tools, self.search: SEARCH_SCHEMA}
        return AnyName(tools) if self.unknown == "deliver" else tools

    @property
    def delivers_at_last(self) -> bool:
        """Whether a call to an unknown tool is delivered if the model insists on it in the last of several attempts, so
        that the client tells the model that it has no such tool.
        """
        return self.unknown == "retry" and not (self.forced or self.forbidden)


class AnyName(dict[str, Mapping[str, Json]]):
    """A mapping of tools that claims to contain every name except variant spellings of a known name."""

    def __contains__(self, name: object) -> bool:
        """Return whether a call with this name is to be delivered under this very name."""
        return super().__contains__(name) or sum(is_spelling(str(name), tool) for tool in self) != 1


def rules_for(
    conversation: Conversation,
    settings: Settings,
    *,
    native: bool = False,
    one_object: bool = False,
    phrases: Phrases | None = None,
    selects: bool = False,
) -> Rules:
    """Return the rules for this conversation. If the request offers no tools, the tools named in its history may be
    called.

    `native` means that the upstream receives the tools natively, `one_object` that the entire reply, including
    reasoning, must be one object. `selects` means that the prompt shows the parameters of only some tools, so that the
    model may search for others, unless the tool choice names the tools to call.
    """
    choice = conversation.choice
    offered = bool(conversation.tools)
    alone = conversation.options.n == 1 and not native
    may_deny = offered and choice.mode == "auto" and conversation.options.n == 1
    free = may_deny and alone
    correctable = alone and choice.mode != "none"
    forced = choice.mode == "required" and not native
    turn = turn_of(conversation.messages) if may_deny else None
    return Rules(
        tools=_callable_tools(conversation, settings),
        whole=not conversation.stream,
        native=native,
        forbidden=choice.mode == "none",
        forced=forced,
        single=not choice.parallel or conversation.legacy_functions,
        unknown=_unknown_tool_policy(settings, forced=forced, free=free, alone=alone),
        malformed="text" if settings.malformed == "retry" and not correctable else settings.malformed,
        invalid=settings.invalid,
        truncated=settings.truncated,
        repeated=settings.repeated_calls,
        repetition=settings.limits.repetition,
        search=search_name(conversation) if selects and not choice.names else "",
        # A continued answer may already be complete, and the agent itself rejects replies that are not one object.
        answer_due=free and (turn is Turn.NEXT_DECISION or not (turn is Turn.FINAL or one_object)),
        refusals=RefusalRules(
            watch=may_deny and settings.refusals == "retry",
            announcements=free and settings.refusals == "retry",
            environment=may_deny
            and any(
                _acts_on_environment(tool.name, tool.description[:_SEARCHED_CHARACTERS]) for tool in conversation.tools
            ),
            phrases=phrases,
            topics=Topics(conversation.tools) if may_deny and turn is not Turn.NEXT_DECISION else None,
        ),
        text=TextRules(
            reasoning=settings.reasoning,
            stop=conversation.options.stop,
            max_buffered=settings.limits.held,
            requires_answer=free and not one_object,
            form=_required_answer_form(conversation, settings) if alone else None,
            store_transcript=(offered or conversation.has_tool_history) and alone,
        ),
    )


def _required_answer_form(conversation: Conversation, settings: Settings) -> AnswerForm | None:
    """Return the form that an answer must have, or None if the form is not checked. The upstream cannot enforce it,
    because calls are text too.
    """
    output = conversation.options.output
    emulated = conversation.tools or conversation.has_tool_history
    wanted = settings.answers == "check" and output is not None and not output.foreign and emulated
    return AnswerForm.of(output) if wanted and output is not None else None


def _callable_tools(conversation: Conversation, settings: Settings) -> CallableTools:
    """Return the tools that may be called. Requests with the same tools share them; without tools, they depend on the
    history.
    """
    names, offered = conversation.choice.names, conversation.raw.get("tools")
    may_share = conversation.tools and not (names or settings.checks_arguments)
    shared = offered if type(offered) is SharedList and may_share else None
    key = ("callable", settings.tool_names)
    if shared is not None:
        known: tuple[tuple[Tool, ...], CallableTools] | None = shared.made.get(key)
        if known is not None and known[0] is conversation.tools:
            return known[1]
    if conversation.tools:
        allowed = [tool for tool in conversation.tools if tool.name in names] if names else conversation.tools
    else:
        allowed = [Tool(name) for name in conversation.known_names]
    grouped = [tool for tool in allowed if tool.namespace]
    short = Counter(map(_short_name, allowed)) if grouped else {}
    schemas: dict[str, Mapping[str, Json]] = {}
    complete, custom = [], []
    for tool in allowed:
        schemas[tool.name] = CUSTOM_TOOL_SCHEMA if tool.custom else (tool.parameters or {})
        if tool.custom:
            custom.append(tool.name)
        if settings.checks_arguments and settings.arguments_for(tool.name) == "complete":
            complete.append(tool.name)
            Validator.of(schemas[tool.name])  # compiled now, rather than during a delta
    found = CallableTools(
        schemas,
        aliases={_short_name(tool): tool.name for tool in grouped if short[_short_name(tool)] == 1} if grouped else {},
        complete=frozenset(complete),
        edits=settings.tool_names == "edit",
        custom=frozenset(custom),
    )
    if shared is not None:
        shared.keep(key, (conversation.tools, found))
    return found


def _unknown_tool_policy(
    settings: Settings, *, forced: bool, free: bool, alone: bool
) -> Literal["retry", "text", "drop", "deliver"]:
    """Return how to treat a call to a tool that is not offered: a forced tool choice is enforced; otherwise the setting
    applies.
    """
    if forced and settings.unknown_tools != "drop":
        return "retry" if alone else "text"
    if settings.unknown_tools == "retry" and not free:
        return "text"
    return settings.unknown_tools


@lru_cache(_KNOWN_TOOLS)
def _acts_on_environment(name: str, description: str) -> bool:
    return _ACTS.search(f"{name} {description}") is not None


def _short_name(tool: Tool) -> str:
    return tool.name.removeprefix(f"{tool.namespace}.") if tool.namespace else tool.name
