"""A request, whatever its protocol: what the client said, with which tools, and how it wants the reply.

Protocol modules read a body into a `Conversation` and write one as a body. `raw` fields keep what the client sent, so
that towards an upstream of the same protocol everything that nobody changed travels untouched: a message, a part or a
whole body whose `raw` is set is written as it came. Whoever changes a message makes a new one without `raw`. Nothing
here is ever mutated, and the caller's objects are never kept where somebody could mutate them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from attrs import field, frozen

Role = Literal["system", "user", "assistant"]
Json = Any  # a decoded JSON value: the one place where types end

HOSTED = "tool of type "
"""How the note begins that a tool was left out because only the origin can run it."""
HOSTED_CHOICE = "tool_choice of a tool that was left out"
"""The note that such a tool is to be called."""


@frozen
class TextPart:
    """A piece of text."""

    text: str


@frozen
class MediaPart:
    """A part that is not text; `kind` is `image`, `audio`, `file` or the wire's own word.

    What it holds is said once more without any protocol, so that every protocol can write it: base64 `data` with its
    media `type` (`image/png`), or a `url`. A part of which neither is known can only be named.
    """

    kind: str
    raw: Mapping[str, Json]
    """The part as it came, in the protocol of the conversation."""
    type: str = ""
    data: str = field(default="", repr=False)
    url: str = ""
    name: str = ""
    """Of a file."""


Part = TextPart | MediaPart


@frozen
class ToolCall:
    """A call that stands in the history."""

    id: str
    name: str
    arguments: str
    """JSON text as it came; for a custom tool its raw input. May be invalid JSON when another model wrote it."""
    custom: bool = False
    signature: str | None = field(default=None, repr=False)
    """What the upstream that made it signed it with (Gemini), and wants back with it."""


@frozen
class ToolResult:
    """What a call gave back."""

    id: str
    """The id of the call; for a legacy function message the function's name."""
    content: tuple[Part, ...]
    error: bool = False
    name: str | None = None
    partial: bool = False
    """There would have been more of it."""


@frozen
class Message:
    """One turn. Calls stand in assistant messages, results in user messages (each wire has its own place for them)."""

    role: Role
    content: tuple[Part, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    reasoning: str = ""
    raw: tuple[Mapping[str, Json], ...] = field(default=(), repr=False)
    """The wire messages that this one was read from; () when it was made or changed here."""

    @property
    def text(self) -> str:
        """All text parts, joined by a newline."""
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))


@frozen
class Tool:
    """A tool that the client offers."""

    name: str
    description: str = ""
    parameters: Mapping[str, Json] | None = None
    """JSON Schema of the arguments; None means that it takes none."""
    strict: bool = False
    custom: bool = False
    """A custom tool takes raw text instead of JSON."""
    namespace: str = ""
    """The group in which the tool was offered (Responses), or its toolset (Messages); `name` is `group.tool`."""
    kind: str = ""
    """Responses: the type that offered the tool without a schema (`shell`); its calls are items of their own."""
    examples: tuple[Mapping[str, Json], ...] = ()
    """Arguments of calls that make sense."""
    returns: Mapping[str, Json] | None = None
    """JSON Schema of what a call gives back; None: nobody says."""
    deferred: bool = False
    """The model is not offered it before a search has found it."""


@frozen
class ToolChoice:
    """Which calls the client allows in this reply."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()
    """The allowed tools; () means all. One name with `required` is a named choice."""
    parallel: bool = True
    """False: at most one call in the reply."""


@frozen
class OutputFormat:
    """The form of the reply's text: a JSON value."""

    schema: Mapping[str, Json] | None = None
    """JSON Schema of it; None: any JSON object."""
    name: str = "answer"
    strict: bool = False
    foreign: bool = False
    """Of a kind that only the client's own protocol knows (a grammar): written as it came, or not at all."""


ForcingMethod = Literal["prefill", "schema", "guided", "structural_tag", "grammar"]
"""How a model is held to a call, beside the words of the prompt."""


@frozen
class Forcing:
    """What the upstream is to do so that the model writes a call."""

    way: ForcingMethod
    value: Json
    """The beginning of the reply; the JSON Schema of the whole reply; a structural tag; a grammar in GBNF."""
    triggers: tuple[str, ...] = ()
    """From which a grammar holds; () means from the start. Of a beginning: what a reply that repeats it begins with."""
    follows: str = ""
    """What a reply begins with that goes on behind a beginning; "": anything."""


@frozen
class Options:
    """How the reply is to be made; what the client did not say is None."""

    n: int = 1
    """How many choices there are to be."""
    stop: tuple[str, ...] = ()
    """Sequences that end the visible text."""
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    effort: str | None = None
    """How much reasoning: `none`, `minimal`, `low`, `medium`, `high`, `xhigh`."""
    thinking: bool | None = None
    """Whether there is to be any reasoning; None: as the model's chat template has it."""
    user: str | None = None
    output: OutputFormat | None = None
    """None: plain text."""


@frozen
class Conversation:
    """What the client asks for."""

    protocol: str
    """Name of the protocol it came in (`chat`)."""
    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = ToolChoice()
    stream: bool = False
    background: bool = False
    """The reply is made whether or not somebody reads it: as a stream, which is remembered for whoever asks for it."""
    include_usage: bool = False
    """A stream is to tell its counts of tokens where the protocol does so on demand only (Chat)."""
    legacy_functions: bool = False
    """Chat: tools came as `functions`; the call goes back as `function_call`."""
    options: Options = Options()
    forcing: Forcing | None = None
    """None: nothing but words. A beginning of the reply is the last message, too."""
    dropped: tuple[str, ...] = ()
    """What could not be honoured and was left out, for the log; a hosted tool as `HOSTED` and its type."""
    raw: Mapping[str, Json] = field(factory=dict, repr=False)
    """The body as it came."""

    @property
    def has_tool_history(self) -> bool:
        """True if an earlier turn holds a call or a result."""
        return any(message.calls or message.results for message in self.messages)

    @property
    def known_names(self) -> Sequence[str]:
        """Names of the offered tools, else the names seen in the history, each once, in order."""
        if self.tools:
            return [tool.name for tool in self.tools]
        return list(dict.fromkeys(call.name for message in self.messages for call in message.calls))
