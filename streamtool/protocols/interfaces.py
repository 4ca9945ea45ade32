"""What a protocol's package has to offer: `ClientProtocol` to clients, `UpstreamProtocol` to upstreams.

A package that speaks on both sides offers both. The names are those of the package itself (`chat.read_request`). No
package lists them again: it offers what it imports, and a test compares that with this module.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from attrs import frozen

from streamtool.conversation import Conversation
from streamtool.errors import StreamtoolError, UpstreamError
from streamtool.reply import Reply, ReplyEvent, Usage
from streamtool.settings import LimitSettings, ModelSettings

Json = Any  # a decoded JSON value
Headers = tuple[tuple[bytes, bytes], ...]


@frozen
class ListedModel:
    """A model of which clients are told."""

    name: str
    told: Mapping[str, Json]
    """What its upstream says of it in the client's own protocol; empty if it speaks another one."""
    context: int | None
    """Tokens that it can read, if the settings say so."""


class UpstreamReader(Protocol):
    @property
    def usage(self) -> Usage | None: ...
    def feed(self, data: bytes, /) -> list[ReplyEvent]: ...
    def close(self) -> list[ReplyEvent]: ...


class ClientWriter(Protocol):
    @property
    def response(self) -> bytes | None: ...
    def feed(self, events: Iterable[ReplyEvent], /) -> bytes: ...
    def keepalive(self) -> bytes: ...


class ClientProtocol(Protocol):
    """What the exchange needs of a protocol that its client speaks."""

    @property
    def NAME(self) -> str: ...  # noqa: N802  a constant of the module
    @property
    def REPLY_ID(self) -> str: ...  # noqa: N802
    @property
    def CALL_ID(self) -> str: ...  # noqa: N802
    @property
    def REQUEST_ID(self) -> bytes: ...  # noqa: N802
    @property
    def KEEPALIVE(self) -> bytes: ...  # noqa: N802
    @property
    def BREAK(self) -> bytes: ...  # noqa: N802
    @property
    def STREAM_HEADERS(self) -> Headers: ...  # noqa: N802
    @property
    def COMPLETE_HEADERS(self) -> Headers: ...  # noqa: N802
    @property
    def STREAMED_ERRORS(self) -> frozenset[str]: ...  # noqa: N802
    @property
    def FIELDS(self) -> frozenset[str]: ...  # noqa: N802
    @property
    def read_request(self) -> Callable[..., Conversation]: ...
    def read_unread(self, body: bytes, limits: LimitSettings) -> Conversation | None: ...
    def write_complete(
        self,
        conversation: Conversation,
        reply: Reply,
        *,
        id: str,
        created: int,
        model: str,
    ) -> bytes: ...
    def write_error(self, error: StreamtoolError, request_id: str | None) -> bytes: ...
    @property
    def ReplyWriter(self) -> Callable[..., ClientWriter]: ...  # noqa: N802  a class of the module
    @property
    def memories(self) -> Callable[[Conversation, bytes], Iterable[tuple[str, bytes]]] | None: ...


class AddressedProtocol(Protocol):
    """What a protocol offers besides whose paths tell what the body does not."""

    def at(self, target: str, /) -> Mapping[str, Any]: ...


class ListingProtocol(Protocol):
    """What a protocol offers besides whose clients are told of models at paths of its own."""

    def asked_model(self, path: str, body: bytes, /) -> str | None: ...
    def write_models(self, path: str, wanted: str | None, models: Sequence[ListedModel], /) -> bytes: ...


class CountingProtocol(Protocol):
    """What a protocol offers besides whose clients have tokens counted."""

    @property
    def NAME(self) -> str: ...  # noqa: N802
    @property
    def memories(self) -> Callable[[Conversation, bytes], Iterable[tuple[str, bytes]]] | None: ...
    @property
    def read_count(self) -> Callable[..., Conversation]: ...
    def count_path(self, model: ModelSettings, /) -> str: ...
    def write_count_request(self, conversation: Conversation, model: ModelSettings, /) -> bytes: ...
    def read_count_reply(self, body: bytes, /) -> int | None: ...
    def write_count(self, tokens: int, /) -> bytes: ...


class UpstreamProtocol(Protocol):
    """What the exchange needs of a protocol that its upstream speaks."""

    @property
    def NAME(self) -> str: ...  # noqa: N802
    @property
    def HEADERS(self) -> Headers: ...  # noqa: N802
    @property
    def KEY_HEADER(self) -> bytes: ...  # noqa: N802
    @property
    def MODELS_PATH(self) -> str: ...  # noqa: N802
    def request_path(self, model: ModelSettings, *, stream: bool) -> str: ...
    def write_request(self, conversation: Conversation, model: ModelSettings, *, stream: bool) -> bytes: ...
    def read_error(self, status: int, body: bytes) -> UpstreamError: ...
    def read_models(self, body: bytes) -> list[str]: ...
    @property
    def ReplyReader(self) -> Callable[..., UpstreamReader]: ...  # noqa: N802
