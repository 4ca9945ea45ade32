"""The data model of a request, independent of its protocol: messages, tools and options of the reply.

Protocol modules read a request body into a `Conversation` and write a `Conversation` as a body. `raw` fields contain
the client's JSON, so that an upstream with the same protocol receives every unchanged part verbatim: a message, a part
or an entire body with `raw` is written as received. Code that changes a message creates a new one without `raw`. These
objects are never mutated, and they hold no references to a caller's mutable objects.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from attrs import field

from streamtool.core.json_value import Json
from streamtool.core.values import frozen

Role = Literal["system", "user", "assistant"]

HOSTED = "tool of type "
"""Prefix of the note about a dropped tool that only its vendor can run; the tool's type follows."""
HOSTED_CHOICE = "tool_choice of a tool that was left out"
"""The note about a tool choice that was dropped because it requires a hosted tool that was left out."""


@frozen
class TextPart:
    """A piece of a message's text."""

    text: str


@frozen
class MediaPart:
    """A part that is not text; `kind` is `image`, `audio`, `file` or the name that the client's protocol uses.

    The content is base64 `data` with its media `type` (`image/png`), or a `url`; every protocol can write either. A
    part that has neither can be written only in the protocol that it was received in; the others just mention its kind.
    """

    kind: str
    raw: Mapping[str, Json]
    """The part as received, in the conversation's protocol."""
    type: str = ""
    data: str = field(default="", repr=False)
    url: str = ""
    name: str = ""
    """The file name."""


Part = TextPart | MediaPart


@frozen
class ToolCall:
    """A call in the history."""

    id: str
    name: str
    arguments: str
    """The JSON text as received, or the raw input of a custom tool. The text may be invalid JSON if another model wrote
    it.
    """
    custom: bool = False
    signature: str | None = field(default=None, repr=False)
    """The signature of the upstream that made the call (Gemini), which must be sent back with the call."""


@frozen
class ToolResult:
    """The result of a call."""

    id: str
    """The call's id; the function's name in a legacy function message."""
    content: tuple[Part, ...]
    error: bool = False
    name: str | None = None
    partial: bool = False
    """Whether the result is truncated."""


@frozen
class Message:
    """One turn. Calls are always in assistant messages and results in user messages, wherever the protocol puts
    them.
    """

    role: Role
    content: tuple[Part, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    reasoning: str = ""
    raw: tuple[Mapping[str, Json], ...] = field(default=(), repr=False)
    """The messages in the client's body that this message was read from; empty if it was created or changed here."""

    @property
    def text(self) -> str:
        """All text parts, joined by newlines."""
        content = self.content
        if len(content) == 1 and type(part := content[0]) is TextPart:
            return part.text
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))


@frozen
class Tool:
    """A tool that the client offers."""

    name: str
    description: str = ""
    parameters: Mapping[str, Json] | None = None
    """JSON Schema of the arguments, or None if the tool takes no arguments."""
    strict: bool = False
    custom: bool = False
    """Whether the tool accepts raw text instead of JSON."""
    namespace: str = ""
    """The tool's group (Responses) or toolset (Messages); `name` is then `group.tool`."""
    kind: str = ""
    """The type of a Responses tool that has no schema (`shell`); calls to it are items of a separate type."""
    examples: tuple[Mapping[str, Json], ...] = ()
    """Example arguments."""
    returns: Mapping[str, Json] | None = None
    """JSON Schema of the results, or None if it is unknown."""
    deferred: bool = False
    """Whether the model sees the tool only after a search has found it."""


CUSTOM_TOOL_SCHEMA: Mapping[str, Json] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
"""The schema of a custom tool's arguments as the model writes them: the raw text under a single key."""


@frozen
class ToolChoice:
    """The calls that the client allows in this reply."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()
    """The names of the allowed tools; if empty, all are allowed. A single name with `required` is a named tool
    choice.
    """
    parallel: bool = True
    """Whether the reply may contain more than one call."""


@frozen
class OutputFormat:
    """The required form of the reply's text: a JSON value."""

    schema: Mapping[str, Json] | None = None
    """JSON Schema of the value. If None, any JSON object is allowed."""
    name: str = "answer"
    strict: bool = False
    foreign: bool = False
    """Whether this form exists only in the client's protocol (a grammar): it is written as received, or dropped."""


ForcingMethod = Literal["prefill", "schema", "guided", "structural_tag", "grammar"]
"""A method of forcing a call, in addition to the prompt."""


@frozen
class Forcing:
    """A constraint that makes the upstream's model write a call."""

    way: ForcingMethod
    value: Json
    """The beginning of the reply (prefill), the JSON Schema of the entire reply, a structural tag, or a grammar in
    GBNF.
    """
    triggers: tuple[str, ...] = ()
    """Strings that activate a grammar; if empty, it applies from the start. For a prefill: the text at the start of a
    reply that begins the call again instead of continuing the prefill.
    """
    follows: str = ""
    """The text that a reply must begin with to count as a continuation of the prefill; if empty, any reply does."""
    grammar: str = ""
    """The grammar, in GBNF, of the text that follows a prefill; if empty, any text may follow."""


@frozen
class Options:
    """Options of the reply. An option that the client did not set is None.

    Each field and each key of `sampling` is a row in the table of options (`streamtool.protocols.options`).
    """

    n: int = 1
    """The number of choices."""
    stop: tuple[str, ...] = ()
    """Sequences that end the visible text."""
    max_tokens: int | None = None
    sampling: Mapping[str, float] = field(factory=dict)
    """Numeric options such as `temperature`, by name."""
    effort: str | None = None
    """The amount of reasoning: `none`, `minimal`, `low`, `medium`, `high`, `xhigh`."""
    thinking: bool | None = None
    """Whether the model reasons. If None, the model's chat template decides."""
    user: str | None = None
    output: OutputFormat | None = None
    """The form of the reply's text, or None for plain text."""


@frozen
class Conversation:
    """A client's request."""

    protocol: str
    """The name of the client's protocol (`chat`)."""
    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = ToolChoice()
    stream: bool = False
    background: bool = False
    """Whether the reply is created in the background, as a stream that is stored until clients request it."""
    include_usage: bool = False
    """Whether a stream ends with the token usage, in protocols where that is optional (Chat)."""
    legacy_functions: bool = False
    """Chat: whether the client sent `functions` and therefore expects a `function_call`."""
    options: Options = Options()
    forcing: Forcing | None = None
    """The constraint that forces a call, or None if only the prompt does. If it is a prefill, its text is the last
    message, too.
    """
    volatile: str = ""
    """Text that the client changes with each request, moved from the messages; it follows the last message."""
    dropped: tuple[str, ...] = ()
    """The dropped parts of the request, for the log; a hosted tool is listed as `HOSTED` and its type."""
    raw: Mapping[str, Json] = field(factory=dict, repr=False)
    """The body as received."""

    @property
    def has_tool_history(self) -> bool:
        """Whether an earlier turn contains a call or a result."""
        return any(message.calls or message.results for message in self.messages)

    @property
    def known_names(self) -> Sequence[str]:
        """The names of the offered tools, each once, in order; without tools, the names of the calls in the history."""
        if self.tools:
            return [tool.name for tool in self.tools]
        return list(dict.fromkeys(call.name for message in self.messages for call in message.calls))
