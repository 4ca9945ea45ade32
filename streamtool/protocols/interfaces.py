"""Interfaces of a protocol package: `ClientProtocol` faces clients, `UpstreamProtocol` faces upstreams.

A package that serves both sides implements both interfaces, as module attributes (`chat.read_request`). It does not
list these attributes in `__all__`: the names that it imports and defines are its attributes, and a test compares them
with the interfaces.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from attrs import frozen

from streamtool.core.conversation import Conversation
from streamtool.core.errors import StreamtoolError, UpstreamError
from streamtool.core.excerpt import Excerpt
from streamtool.core.json_value import Json
from streamtool.core.reply import Reply, ReplyArgumentsDelta, ReplyEvent, ReplyTextDelta, Usage
from streamtool.protocols.decisions import RequestFields
from streamtool.settings import LimitSettings, ModelSettings

Headers = tuple[tuple[bytes, bytes], ...]
Recall = Callable[[str], bytes | None]
"""Function that returns the value stored under an id, or None if the value is missing or has expired."""


@frozen
class ListedModel:
    """Model in the list of models that clients can request."""

    name: str
    upstream_fields: Mapping[str, Json]
    """The upstream's own description of the model; empty unless the upstream speaks the client's protocol."""
    context: int | None
    """Context length in tokens, if configured."""


class UpstreamReader(Protocol):
    tool_names: Collection[str]

    @property
    def usage(self) -> Usage | None: ...
    def feed(self, data: bytes, /) -> list[ReplyEvent]: ...
    def close(self) -> list[ReplyEvent]: ...


class ClientWriter(Protocol):
    excerpt: Callable[[int], Excerpt]

    @property
    def WRITES_ALONE(self) -> bool: ...  # noqa: N802  a constant
    @property
    def response(self) -> bytes | None: ...
    def feed(self, events: Iterable[ReplyEvent], /) -> bytes: ...
    def text(self, event: ReplyTextDelta, /) -> bytes: ...
    def arguments(self, event: ReplyArgumentsDelta, /) -> bytes: ...
    def stop_forwarding(self) -> None: ...
    def keepalive(self) -> bytes: ...


class ClientProtocol(Protocol):
    """Functions and constants of a protocol that clients can speak."""

    @property
    def NAME(self) -> str: ...  # noqa: N802  a module constant
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
    def REQUEST_FIELDS(self) -> RequestFields: ...  # noqa: N802
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
    def ReplyWriter(self) -> Callable[..., ClientWriter]: ...  # noqa: N802  a class in the module
    @property
    def store_entries(self) -> Callable[[Conversation, bytes], Iterable[tuple[str, bytes]]] | None: ...


class AddressedProtocol(Protocol):
    """Additional function of a protocol whose paths carry information that the body lacks."""

    def at(self, target: str, /) -> Mapping[str, Any]: ...


class ListingProtocol(Protocol):
    """Additional functions of a protocol with separate paths for listing models."""

    def requested_model(self, path: str, body: bytes, /) -> str | None: ...
    def write_models(self, path: str, wanted: str | None, models: Sequence[ListedModel], /) -> bytes: ...


class CountingProtocol(Protocol):
    """Additional functions of a protocol whose clients can count tokens."""

    @property
    def NAME(self) -> str: ...  # noqa: N802
    @property
    def store_entries(self) -> Callable[[Conversation, bytes], Iterable[tuple[str, bytes]]] | None: ...
    @property
    def read_count(self) -> Callable[..., Conversation]: ...
    def count_path(self, model: ModelSettings, /) -> str: ...
    def write_count_request(self, conversation: Conversation, model: ModelSettings, /) -> bytes: ...
    def read_count_reply(self, body: bytes, /) -> int | None: ...
    def write_count(self, tokens: int, /) -> bytes: ...


class UpstreamProtocol(Protocol):
    """Functions and constants of a protocol that upstreams can speak."""

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
