"""Counts the tokens of a request (`POST /v1/messages/count_tokens`, `/v1/responses/input_tokens`, Gemini's
`countTokens`) as they will be: with the tool prompt.

An upstream that speaks the client's protocol is asked, with the tools and results as the text that it would get. Every
other upstream cannot be asked, and the count is that of `prompting.window`.
"""

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Final

from attrs import frozen

from streamtool import prompting
from streamtool.conversation import Conversation
from streamtool.errors import StreamtoolError
from streamtool.exchange import Services, decode_body
from streamtool.http.asgi import ASGIApp, Receive, Scope, ask
from streamtool.http.off_loop import off_loop, sized
from streamtool.prompting.window import CountTokens, prompt_tokens
from streamtool.protocols import wire
from streamtool.protocols.interfaces import CountingProtocol
from streamtool.protocols.registry import upstream_name
from streamtool.settings import ModelSettings, Settings
from streamtool.state.clients import client_of

_KEPT: Final = (b"anthropic-", *wire.KEY_HEADERS, b"traceparent", b"user-agent")


@frozen
class TokenCount:
    """A request to count, and what an upstream is asked for it."""

    protocol: CountingProtocol
    """The client's."""
    projected: Conversation
    """What is counted: the tools and results as text."""
    model: ModelSettings
    tokenizer: CountTokens | None
    request: bytes | None
    """For the path of the count; None: the upstream cannot be asked."""
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
        """The request of a client. Raises RequestError for what cannot be read or projected."""
        given = tuple((name.lower(), value) for name, value in headers)
        recall = () if services.memory is None or protocol.memories is None else (services.memory.demand,)
        conversation = protocol.read_count(decode_body(body, given, settings.limits.body), settings.limits, *recall)
        model = settings.for_model(conversation.model)
        if services.templates is not None:
            model = model.with_template(services.templates.of(model, client_of(given)))
        tokenizer = None if services.tokenizers is None else services.tokenizers.of(model)
        projected = prompting.project(conversation, model, model.format, open_end=True)
        if upstream_name(protocol.NAME, model.protocol) != protocol.NAME:
            return cls(protocol, projected, model, tokenizer, None, ())
        written = protocol.write_count_request(projected, model)
        kept = [pair for pair in given if pair[0].startswith(_KEPT)]
        length = str(len(written)).encode()
        return cls(
            protocol,
            projected,
            model,
            tokenizer,
            written,
            (*kept, (b"content-type", b"application/json"), (b"content-length", length)),
        )

    def answer(self, told: bytes | None) -> bytes:
        """The body for the client: what the upstream told, if it is a count, else the estimate."""
        count = None if told is None else self.protocol.read_count_reply(told)
        return self.protocol.write_count(prompt_tokens(self.projected, self.tokenizer) if count is None else count)

    @property
    def path(self) -> str:
        """Where the upstream is asked."""
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
    """The JSON body that answers the count; `blocks`: what is remembered may take long to read.

    Raises RequestError for what cannot be read or projected.
    """
    read = partial(TokenCount.read, settings, protocol, body, scope["headers"], services)
    counting = await (off_loop(read) if blocks else sized(read, len(body)))
    told = None
    if counting.request is not None:
        inner = dict(scope)
        if counting.model.upstream is not None:
            inner[upstream_key] = counting.model.upstream.name
        with suppress(StreamtoolError):  # it cannot count, or is not there; whoever asks for the reply will be told
            answer = await ask(
                app, inner, "POST", counting.path, body=counting.request, headers=counting.headers,
                receive=receive,
            )  # fmt: skip
            told = answer.body if answer.status == 200 else None
    return await sized(partial(counting.answer, told), len(body))
