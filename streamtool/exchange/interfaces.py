"""Inputs and outputs of an exchange (upstream requests, response head), and the services that it uses."""

from typing import Protocol

from attrs import field

from streamtool.core.conversation import Conversation
from streamtool.core.values import frozen
from streamtool.prompting.window import CountTokens
from streamtool.protocols.interfaces import Headers
from streamtool.refusals import Phrases
from streamtool.settings import ModelSettings

MOMENT = 0.25
"""Number of seconds that a finished reply waits for the upstream's trailing usage report."""


class ClientStore(Protocol):
    """The store of a client's earlier replies, for protocols whose requests refer to them.

    Such a protocol has `store_entries`, which returns the values to store for a complete reply; its `read_request` uses
    `demand`, and its writer provides the complete reply in `response` at the end. While the store fails, `recall`
    returns None and `demand` raises StoreError, so use `demand` for values that a request cannot do without. `unstored`
    contains the values that the client does not want stored, if its connection can keep them.
    """

    @property
    def unstored(self) -> "ClientStore | None": ...

    def recall(self, id: str, /) -> bytes | None: ...
    def demand(self, id: str, /) -> bytes | None: ...
    def remember(self, id: str, value: bytes, /) -> None: ...


class Capabilities(Protocol):
    """The features that upstreams were found to lack, by client (`core.clients.client_of`)."""

    def lacks(self, client: str, upstream: str | None, model: str, ability: str, /) -> bool: ...
    def lacks_locally(self, client: str, upstream: str | None, model: str, ability: str, /) -> bool: ...
    def learn(self, client: str, upstream: str | None, model: str, ability: str, /) -> None: ...
    def forget(self, client: str, upstream: str | None, model: str, ability: str, /) -> None: ...


class Templates(Protocol):
    """The models' chat templates and calibrations, as far as they are known."""

    def inform(self, model: ModelSettings, client: str, /) -> ModelSettings: ...


class Tokenizers(Protocol):
    """The models' tokenizers, for counting prompt tokens."""

    def of(self, model: ModelSettings, /) -> CountTokens | None: ...


@frozen
class Services:
    """Services that an exchange may use in addition to its settings. A service that is not available is None."""

    store: ClientStore | None = None
    capabilities: Capabilities | None = None
    templates: Templates | None = None
    tokenizers: Tokenizers | None = None
    phrases: Phrases | None = None
    """Phrases for recognizing refusals, or None for the built-in ones."""

    def for_client(self, memory: ClientStore) -> "Services":
        """Return these services, with the store of one client."""
        return Services(memory, self.capabilities, self.templates, self.tokenizers, self.phrases)


NO_SERVICES = Services()


@frozen
class UpstreamRequest:
    """A request to the upstream, for one attempt."""

    path: str | None
    """The path, including the query if there is one, or None for the path that the client requested."""
    headers: Headers
    body: bytes = field(repr=False)
    upstream: str | None
    """Name of the upstream in the settings, or None if there is only one."""
    attempt: int
    """Number of the attempt; the first is 1."""
    conversation: Conversation | None = field(default=None, repr=False)
    """The conversation that the body expresses, or None if the body is the client's own."""


@frozen
class ResponseHead:
    """The status and headers of the reply."""

    status: int
    headers: Headers
