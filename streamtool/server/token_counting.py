"""Counts the tokens of a request as it will be sent, including the tool prompt (`POST /v1/messages/count_tokens`,
`/v1/responses/input_tokens`, Gemini's `countTokens`).

If the upstream uses the client's protocol, it counts the tokens, with tools and results already converted to text.
Otherwise, a recognized server counts those of the text if it can, or `prompting.window` estimates the count.
"""

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Final

import anyio
from attrs import frozen

from streamtool import prompting
from streamtool.asgi.off_loop import off_loop, sized, sized_request
from streamtool.asgi.types import ASGIApp, Receive, Scope, ask
from streamtool.core.clients import client_of
from streamtool.core.conversation import Conversation
from streamtool.core.errors import StreamtoolError
from streamtool.exchange.encoding import decode_body, decoded_size
from streamtool.exchange.interfaces import Services
from streamtool.models.engines import read_count
from streamtool.prompting.window import MESSAGE_TOKENS, CountTokens, prompt_tokens
from streamtool.protocols.interfaces import CountingProtocol
from streamtool.protocols.shared import wire
from streamtool.protocols.table import upstream_name
from streamtool.settings import ModelSettings, Settings
from streamtool.upstream.app import OUTSIDE_VERSION

_SECONDS: Final = 5.0
"""Maximum number of seconds for a server to count."""
_FORWARDED: Final = (b"anthropic-", *wire.KEY_HEADERS, b"traceparent", b"user-agent")


@frozen
class TokenCount:
    """A client's request for a token count, and the upstream request that can answer it."""

    protocol: CountingProtocol
    """The client's protocol."""
    projected: Conversation
    """The conversation to count, with its tools and results as text."""
    model: ModelSettings
    tokenizer: CountTokens | None
    request: bytes | None
    """The request body for the upstream; None if the upstream uses another protocol."""
    headers: tuple[tuple[bytes, bytes], ...]

    @classmethod
    def read(
        cls,
        settings: Settings,
        protocol: CountingProtocol,
        body: bytes,
        headers: Iterable[tuple[bytes, bytes]],
        services: Services,
    ) -> "TokenCount":
        """Read a client's request. Raises RequestError if it cannot be read or projected."""
        given = tuple((name.lower(), value) for name, value in headers)
        recall = () if services.store is None or protocol.store_entries is None else (services.store.demand,)
        conversation = protocol.read_count(decode_body(body, given, settings.limits.body), settings.limits, *recall)
        model = settings.for_model(conversation.model)
        if services.templates is not None:
            model = services.templates.inform(model, client_of(given))
        tokenizer = None if services.tokenizers is None else services.tokenizers.of(model)
        if settings.stable_prefix and (model.upstream is None or not model.upstream.is_vendor):
            conversation = prompting.stabilize(conversation)
        projected = prompting.project(conversation, model, model.format, open_end=True)
        if upstream_name(protocol.NAME, model.protocol) != protocol.NAME:
            return cls(protocol, projected, model, tokenizer, None, ())
        written = protocol.write_count_request(projected, model)
        kept = [pair for pair in given if pair[0].startswith(_FORWARDED)]
        length = str(len(written)).encode()
        return cls(
            protocol,
            projected,
            model,
            tokenizer,
            written,
            (*kept, (b"content-type", b"application/json"), (b"content-length", length)),
        )

    def answer(self, upstream_body: bytes | None) -> bytes:
        """Return the response body: the upstream's count if `upstream_body` contains one, or an estimate if not."""
        count = None if upstream_body is None else self.protocol.read_count_reply(upstream_body)
        return self.protocol.write_count(prompt_tokens(self.projected, self.tokenizer) if count is None else count)

    @property
    def text(self) -> str:
        """The text of all messages."""
        return "\n".join(message.text for message in self.projected.messages)

    def answer_counted(self, counted: int) -> bytes:
        """Return the response body for a number of tokens in the text."""
        return self.protocol.write_count(counted + MESSAGE_TOKENS * len(self.projected.messages))

    @property
    def path(self) -> str:
        """The upstream's path for the request."""
        return self.protocol.count_path(self.model)


async def count_tokens(
    settings: Settings,
    protocol: CountingProtocol,
    app: ASGIApp,
    scope: Scope,
    body: bytes,
    *,
    receive: Receive,
    upstream_key: str,
    services: Services,
    blocks: bool,
) -> bytes:
    """Count the tokens of a request, and return the response body as JSON. `blocks` means that reading the store may
    take a long time.

    Raises RequestError if the request cannot be read or projected.
    """
    read = partial(TokenCount.read, settings, protocol, body, scope["headers"], services)
    counting = await (off_loop(read) if blocks else sized_request(read, body, decoded_size(body, scope["headers"])))
    told = None
    if counting.request is not None:
        inner = dict(scope)
        if counting.model.upstream is not None:
            inner[upstream_key] = counting.model.upstream.name
        with suppress(StreamtoolError):  # fall back to an estimate; a request for a reply reports such errors
            answer = await ask(
                app,
                inner,
                "POST",
                counting.path,
                body=counting.request,
                headers=counting.headers,
                receive=receive,
            )
            told = answer.body if answer.status == 200 else None
    elif counting.tokenizer is None and (
        counted := await _count_at_server(app, scope, counting, receive, upstream_key)
    ):
        return counting.answer_counted(counted)
    return await sized(partial(counting.answer, told), len(body))


async def _count_at_server(
    app: ASGIApp, scope: Scope, counting: TokenCount, receive: Receive, upstream_key: str
) -> int | None:
    """Return the number of tokens in the text according to the model's server, or None if it does not count them."""
    model = counting.model
    if model.engine is None or model.engine.engine.counter is None or model.upstream is None:
        return None
    counter = model.engine.engine.counter
    body = wire.encode({"model": model.name, counter.member: counting.text})
    headers = [pair for pair in scope["headers"] if pair[0].lower() in wire.KEY_HEADERS]
    inner = {**scope, upstream_key: model.upstream.name, OUTSIDE_VERSION: True}
    with suppress(StreamtoolError, ValueError), anyio.move_on_after(_SECONDS):
        answer = await ask(
            app,
            inner,
            "POST",
            counter.path,
            body=body,
            headers=(*headers, (b"content-type", b"application/json")),
            receive=receive,
        )
        if answer.status == 200:
            return read_count(wire.decode_tolerant(answer.body))
    return None
