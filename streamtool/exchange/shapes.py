"""What goes in and out of an exchange: the request to the upstream, the head of the reply, the record; and `Wire`."""

from collections.abc import Callable, Iterable
from typing import Protocol

from attrs import field, frozen

from streamtool.conversation import Conversation
from streamtool.errors import StreamtoolError, UpstreamError
from streamtool.reply import Reason, Reply, ReplyEvent, Usage
from streamtool.settings import Limits

Headers = tuple[tuple[bytes, bytes], ...]


class Reader(Protocol):
    def feed(self, data: bytes, /) -> list[ReplyEvent]: ...
    def close(self) -> list[ReplyEvent]: ...


class Writer(Protocol):
    def feed(self, events: Iterable[ReplyEvent], /) -> bytes: ...


class Wire(Protocol):
    """What the exchange needs of a protocol module."""

    @property
    def NAME(self) -> str: ...  # noqa: N802  a constant of the module
    @property
    def PATH(self) -> str: ...  # noqa: N802
    @property
    def REPLY_ID(self) -> str: ...  # noqa: N802
    @property
    def CALL_ID(self) -> str: ...  # noqa: N802
    @property
    def KEEPALIVE(self) -> bytes: ...  # noqa: N802
    @property
    def STREAM_HEADERS(self) -> Headers: ...  # noqa: N802
    @property
    def WHOLE_HEADERS(self) -> Headers: ...  # noqa: N802
    def read_request(self, body: bytes, limits: Limits) -> Conversation: ...
    def read_unread(self, body: bytes, limits: Limits) -> Conversation | None: ...
    def write_request(self, conversation: Conversation, *, model: str, stream: bool) -> bytes: ...
    def write_whole(
        self,
        conversation: Conversation,
        reply: Reply,
        *,
        id: str,
        created: int,
        model: str,
    ) -> bytes: ...
    def write_error(self, error: StreamtoolError, request_id: str | None) -> bytes: ...
    def read_error(self, status: int, body: bytes) -> UpstreamError: ...
    @property
    def ReplyReader(self) -> Callable[..., Reader]: ...  # noqa: N802  a class of the module
    @property
    def ReplyWriter(self) -> Callable[..., Writer]: ...  # noqa: N802


@frozen
class UpstreamRequest:
    """One attempt, as the upstream is to receive it."""

    path: str
    headers: Headers
    body: bytes = field(repr=False)
    upstream: str | None
    """Name of the upstream in the settings; None: there is only one."""
    attempt: int
    """1 for the first."""


@frozen
class Head:
    """Status and headers of the reply."""

    status: int
    headers: Headers


@frozen
class Record:
    """What happened in one exchange; for logs and metrics. Holds no contents."""

    request_id: str
    protocol: str
    model: str
    upstream_model: str
    stream: bool
    mode: str
    format: str
    tools: int
    attempts: tuple[str, ...]
    """For each attempt that was not accepted and repeated, why."""
    unmet: str | None
    """What the last attempt still lacked; the client got it as it was."""
    calls: int
    formats: tuple[str, ...]
    """Formats in which calls were found."""
    repairs: tuple[str, ...]
    discarded: tuple[tuple[str, int], ...]
    """Reason and number of characters of what was neither shown nor part of a call."""
    refused: int
    incomplete: bool
    reason: Reason | None
    """The upstream's own reason."""
    usage: Usage
    usage_estimated: bool
    """The upstream was stopped before it told its counts."""
    held: int
    """Characters that waited for a forced call, at most."""
    dropped: tuple[str, ...]
    """Parts of the request that could not be honoured."""
    error: StreamtoolError | None
