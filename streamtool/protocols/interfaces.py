"""What a protocol's package has to offer: `ClientProtocol` to clients, `UpstreamProtocol` to upstreams.

A package that speaks on both sides offers both. The names are those of the package itself (`chat.read_request`). No
package lists them again: it offers what it imports, and a test compares that with this module.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from streamtool.conversation import Conversation
from streamtool.errors import StreamtoolError, UpstreamError
from streamtool.reply import Reply, ReplyEvent, Usage
from streamtool.settings import LimitSettings, ModelSettings

Headers = tuple[tuple[bytes, bytes], ...]


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
