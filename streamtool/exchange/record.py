"""The record of one exchange, for logs, metrics and verdicts."""

from typing import Literal

from attrs import field

from streamtool.core.errors import StreamtoolError
from streamtool.core.reply import Reason, Usage
from streamtool.core.values import frozen

ExchangeOutcome = Literal["calls", "text", "incomplete", "unmet", "left", "passed", "error"]
"""How an exchange ended. `left` means that the client disconnected before the end, `passed` that the request and the
reply passed through unchanged.
"""

NearCallCause = Literal["not read", "format", "fence", "reasoning", "name", "unreadable", "no format"]
"""Why text that looks like a call is not one: calls in the text were not read, its format was not, it is in a fence or
in reasoning, its name is not offered, the text after a known opener cannot be read, or no format matches.
"""


@frozen
class PromptCut:
    """A prompt that the upstream has read only in part."""

    read: int
    """The number of prompt tokens that the upstream reports."""
    least: int
    """The number of tokens that the prompt has at least."""
    fix: str
    """The remedy."""

    def __str__(self) -> str:
        return f"the upstream read {self.read} of at least {self.least} tokens of the prompt; {self.fix}"


@frozen
class Interruption:
    """The end of an upstream's reply or of its readable part. Another attempt has continued the reply."""

    cause: str
    """The failure: `upstream died`, `upstream reported an error`, `upstream's own limit`, `malformed call` or
    `endless repetition`.
    """
    character: int
    """Number of characters of the reply that the model had written."""
    place: str
    """The part of the reply that the model was writing: the name of a tool, `a call` or `text`."""
    seconds: float
    """Seconds from the request to the end of the upstream's reply."""
    tokens: int = 0
    """Number of tokens that the upstream had written in this attempt, possibly an estimate."""

    def __str__(self) -> str:
        return f"{self.cause} at character {self.character:,} inside {self.place}"


@frozen
class NearCall:
    """Text in a reply without calls that looks like a call."""

    cause: NearCallCause
    character: int
    """Number of characters before it."""
    text: str = field(repr=False)
    """The text, shortened. It is the model's, so it is shown only where contents are."""
    format: str
    """Its format, or the most similar one."""
    name: str = field(repr=False)
    """The name in it that is, or may be meant as, the name of a tool. It may be empty."""
    tool: str
    """The offered tool with this name or the most similar one. It may be empty."""


@frozen
class Record:
    """The record of one exchange, for logs and metrics. It contains no message contents, except in `near`.

    The record is long and flat on purpose: each field is one fact, under its name in the log.
    """

    request_id: str
    protocol: str
    """The client's protocol."""
    upstream_protocol: str
    model: str
    upstream_model: str
    stream: bool
    mode: str
    format: str
    tools: int
    attempts: tuple[str, ...]
    """The reason for each attempt that was rejected and repeated."""
    details: tuple[str, ...]
    """The details of these failures: the phrase that was recognized, or the detail that the correction quotes."""
    unmet: str | None
    """The failure of the last attempt, if the client received its reply anyway."""
    calls: int
    formats: tuple[str, ...]
    """Formats of the calls that were found."""
    repairs: tuple[str, ...]
    discarded: tuple[tuple[str, int], ...]
    """For text that was neither shown nor part of a call: the reason, and the number of characters."""
    refused: int
    quoted: tuple[tuple[str, int], ...]
    """For calls that were quotations and therefore text: the reason, and the number of calls. For the reason
    `repeated`, they are calls, whose ids are in `repeated`.
    """
    incomplete: bool
    reason: Reason | None
    """The finish reason that the upstream reported."""
    usage: Usage
    """Token usage of the last attempt; its `retried` field is the usage of the earlier ones. Estimated if unreported.
    """
    held: int
    """Largest number of characters that were buffered before they were known to be visible."""
    tool_prompt: bool
    """Whether the tools were written into the prompt."""
    history: bool
    """Whether the conversation contains earlier calls or results."""
    turn: str
    """The state of the conversation (`core.turns.Turn`)."""
    seconds: float
    """Seconds from the request to the end."""
    first_byte: float | None
    """Seconds until the client's reply began, or None if it never did."""
    first_call: float | None
    """Seconds until the client saw the beginning of a call, or None if it never did."""
    dropped: tuple[str, ...]
    """Parts of the request that could not be honored."""
    error: StreamtoolError | None
    forced: str = ""
    """Method used to force a call in the last attempt: `prompt`, or a method from `forcing`. Empty if none was used."""
    found: tuple[tuple[str, int], ...] = ()
    """Number of calls found in each format, including calls in rejected attempts."""
    retried: tuple[float, ...] = ()
    """Seconds from the request until each rejected attempt was rejected."""
    upstream: str | None = None
    """Name of the upstream in the settings, or None if the settings name none."""
    server: str | None = None
    """Host and port of the upstream."""
    served_model: str | None = None
    """Model name that the upstream reported."""
    repeated: tuple[str, ...] = ()
    """Ids of calls that repeat a result or a tool's description, but no user's message (`quoted = "report"`)."""
    choices: int = 1
    options: tuple[tuple[str, float], ...] = ()
    """Numeric options that the client set for the reply, such as `temperature`."""
    status: int | None = None
    """Status of the response to the client, or None if none was sent or it passed through."""
    passed: bool = False
    """Whether the request and the reply passed through unchanged. If so, nothing is known about the reply."""
    done: bool = False
    """Whether the reply has ended, possibly with an error."""
    client: str = ""
    """Name of the client's key in the settings; empty if the settings name none."""
    warning: str = ""
    """A warning about many tools, in the first record with these tools and this model; empty in all others."""
    engine: str = ""
    """Name and version of the upstream's server, if it was recognized."""
    prompt_cut: PromptCut | None = None
    """How much of the prompt the upstream read, if it cut the prompt."""

    resumed: tuple[Interruption, ...] = ()
    """The interruptions of the reply that another attempt has continued."""
    near: NearCall | None = None
    """Text that looks like a call, in a reply without calls. It is searched only if the verdict is shown."""

    @property
    def outcome(self) -> ExchangeOutcome:
        """How the exchange ended, in one word."""
        if self.error is not None:
            return "error"
        if self.passed:
            return "passed"
        if not self.done:
            return "left"
        if self.unmet is not None:
            return "unmet"
        if self.incomplete:
            return "incomplete"
        return "calls" if self.calls else "text"
