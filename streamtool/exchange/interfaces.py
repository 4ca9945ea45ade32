"""What goes in and out of an exchange: requests to the upstream, the head of the reply, the record; what it uses."""

from typing import Literal, Protocol

from attrs import field, frozen

from streamtool.conversation import Conversation, Options
from streamtool.errors import StreamtoolError
from streamtool.policy.refusals import Phrases
from streamtool.prompting.window import CountTokens
from streamtool.protocols.interfaces import Headers
from streamtool.reply import Reason, Usage
from streamtool.settings import ModelSettings
from streamtool.templates import Recognised

Outcome = Literal["calls", "text", "incomplete", "unmet", "left", "passed", "error"]
"""`left`: the client went before the end; `passed`: there was nothing to do."""

MOMENT = 0.25
"""Seconds that a reply which is over waits for the upstream's counts of tokens."""


class Memory(Protocol):
    """What is remembered of earlier replies of the same client, for protocols that refer to them.

    Such a protocol has `memories`, which tells what is to be remembered of a whole reply; its `read_request` takes
    `demand`, and its writer has the whole reply in `response` once it is over. While the store fails, `recall` finds
    nothing and `demand` raises StoreError: for what the request cannot do without. `unstored` takes what the client
    says is not to be stored, if its connection can remember.
    """

    @property
    def unstored(self) -> "Memory | None": ...

    def recall(self, id: str, /) -> bytes | None: ...
    def demand(self, id: str, /) -> bytes | None: ...
    def remember(self, id: str, value: bytes, /) -> None: ...


class Capabilities(Protocol):
    """What upstreams were found unable to do when they were asked for a client (`state.clients.client_of`)."""

    def lacks(self, client: str, upstream: str | None, model: str, ability: str, /) -> bool: ...
    def lacked_here(self, client: str, upstream: str | None, model: str, ability: str, /) -> bool: ...
    def learn(self, client: str, upstream: str | None, model: str, ability: str, /) -> None: ...
    def forget(self, client: str, upstream: str | None, model: str, ability: str, /) -> None: ...


class Templates(Protocol):
    """What is known of the models' chat templates."""

    def of(self, model: ModelSettings, client: str, /) -> Recognised | None: ...


class Tokenizers(Protocol):
    """What counts the tokens of the models' prompts."""

    def of(self, model: ModelSettings, /) -> CountTokens | None: ...


@frozen
class Services:
    """What an exchange may use beside its settings; None: there is no such thing."""

    memory: Memory | None = None
    capabilities: Capabilities | None = None
    templates: Templates | None = None
    tokenizers: Tokenizers | None = None
    phrases: Phrases | None = None
    """By which refusals are recognised; None: by those that come with the package."""


NO_SERVICES = Services()


@frozen
class UpstreamRequest:
    """One attempt, as the upstream is to receive it."""

    path: str | None
    """With its query, if it has one; None: the path that the client asked for."""
    headers: Headers
    body: bytes = field(repr=False)
    upstream: str | None
    """Name of the upstream in the settings; None: there is only one."""
    attempt: int
    """1 for the first."""
    conversation: Conversation | None = field(default=None, repr=False)
    """What the body says; None: it is the client's own."""


@frozen
class ResponseHead:
    """Status and headers of the reply."""

    status: int
    headers: Headers


@frozen
class Record:
    """What happened in one exchange; for logs and metrics. Holds no contents.

    It is flat and long on purpose: each field is one fact, under the name that the log has for it.
    """

    request_id: str
    protocol: str
    """What the client speaks."""
    upstream_protocol: str
    model: str
    upstream_model: str
    stream: bool
    mode: str
    format: str
    tools: int
    attempts: tuple[str, ...]
    """For each attempt that was not accepted and repeated, why."""
    details: tuple[str, ...]
    """The same: the phrase that gave it away, or what the model was told."""
    unmet: str | None
    """What the last attempt still lacked; the client got it as it was."""
    calls: int
    formats: tuple[str, ...]
    """Formats in which calls were found."""
    repairs: tuple[str, ...]
    discarded: tuple[tuple[str, int], ...]
    """Reason and number of characters of what was neither shown nor part of a call."""
    refused: int
    quoted: tuple[tuple[str, int], ...]
    """Why calls were quotations, and text, and how many."""
    incomplete: bool
    reason: Reason | None
    """The upstream's own reason."""
    usage: Usage
    """Of the last attempt, and what the earlier ones cost. What the upstream did not tell is estimated."""
    held: int
    """Characters that were held back before they were known to be visible, at most."""
    contract: bool
    """The tools were written into the prompt."""
    history: bool
    """The conversation holds earlier calls or results."""
    turn: str
    """Where the conversation stood (`turns.Turn`)."""
    seconds: float
    """From the request to the end."""
    first_byte: float | None
    """Seconds until the client's reply began; None: it did not."""
    first_call: float | None
    """Seconds until the client saw a call begin."""
    dropped: tuple[str, ...]
    """Parts of the request that could not be honoured."""
    error: StreamtoolError | None
    forced: str = ""
    """How the last attempt held the model to a call: `prompt`, or a way of `forcing`; "": not at all."""
    found: tuple[tuple[str, int], ...] = ()
    """Formats, and how many calls were found in each, those of attempts that were not accepted included."""
    retried: tuple[float, ...] = ()
    """For each attempt that was not accepted, the second in which that was known."""
    upstream: str | None = None
    """Its name in the settings; None: they name none."""
    server: str | None = None
    """Its host and port."""
    served_model: str | None = None
    """The model's name as the upstream told it."""
    choices: int = 1
    options: tuple[tuple[str, float], ...] = ()
    """The numbers that the client gave for the reply (`temperature`), as far as it gave any."""
    status: int | None = None
    """What the client was answered with; None: with nothing, or with what just passed."""
    passed: bool = False
    """There was nothing to do: request and reply passed as they were, and what came of them is not known."""
    done: bool = False
    """The reply came to its end, be it an error."""
    client: str = ""
    """Whose key it was, by the name in the settings; "": they name none."""

    @property
    def outcome(self) -> Outcome:
        """How it ended, in one word."""
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


def numbers(options: Options) -> tuple[tuple[str, float], ...]:
    """Those of the options that are numbers and were given."""
    return tuple(
        (name, value)
        for name in ("max_tokens", "temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty")
        if (value := getattr(options, name)) is not None
    )
