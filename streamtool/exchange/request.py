"""The requests that an exchange sends to the upstream: one per attempt, made from the client's request and the plan.

Conversation ─▶ project ─▶ write_request (the upstream's protocol) ─▶ UpstreamRequest
"""

import sys
from collections.abc import Callable, Mapping
from typing import Final

from attrs import evolve

from streamtool import prompting
from streamtool.core.conversation import Conversation, Forcing, Message, TextPart
from streamtool.exchange.call_forcing import constrained, forced
from streamtool.exchange.encoding import decode_body
from streamtool.exchange.interfaces import Tokenizers, UpstreamRequest
from streamtool.exchange.plan import Plan
from streamtool.exchange.received import Received
from streamtool.exchange.resumption import Resumption, grammar_after
from streamtool.filters import continues_beginning
from streamtool.prompting.window import CountTokens, limit_max_tokens, needed_window
from streamtool.protocols.completions.request import open_turn
from streamtool.protocols.completions.templates import TEMPLATES
from streamtool.protocols.interfaces import Headers
from streamtool.protocols.registry import PROTOCOLS
from streamtool.protocols.shared import wire
from streamtool.settings import ModelSettings

_DROPPED: Final = frozenset(
    (b"content-length", b"content-encoding", b"transfer-encoding", b"accept-encoding", b"expect", b"content-type")
)
_OF_PROTOCOLS: Final = (b"anthropic-", b"openai-", b"x-stainless-", b"x-goog-api-client")
"""Prefixes of headers that have no meaning in other protocols."""
_OF_TOOLS: Final = frozenset(
    {"tools", "functions", "tool_choice", "function_call", "parallel_tool_calls", "toolConfig", "tool_config"}
)
"""Fields of request bodies that concern tools, in all protocols."""
_OF_MESSAGES: Final = frozenset(
    {"model", "messages", "system", "input", "instructions", "contents", "systemInstruction", "prompt"}
    | {"previous_response_id", "conversation"}
)
"""Fields of request bodies that contain or refer to messages, and the model's name, in all protocols."""
_ANY_SIZE: Final = sys.maxsize - 1
"""Limit for a body whose size has been checked before."""


def unchanged(received: Received, plan: Plan) -> UpstreamRequest:
    """Return the client's request, unchanged except for the model name, volatile text and an empty list of tools.

    Some upstreams reject an empty list. It is omitted unless the upstream receives tools as the client sends them (mode
    `native`).
    """
    asked, model = received.conversation, plan.model
    upstream = _upstream_name(plan)
    if model.name == asked.model and not plan.stabilized:
        body = _without_empty_tools(received) if received.plain and model.mode != "native" else received.body
        headers = received.headers if body is received.body else _headers(received, plan, body)
        return UpstreamRequest(None, headers, body, upstream, 1)
    body = plan.upstream.write_request(prompting.with_correction(asked, None), model, stream=asked.stream)
    if plan.stabilized:
        body = _with_messages_of(body, received, plan)
    path = _path(plan, stream=asked.stream)
    return UpstreamRequest(path, _headers(received, plan, body), body, upstream, 1)


def _with_messages_of(body: bytes, received: Received, plan: Plan) -> bytes:
    """Return the client's body, but with the fields for the model and the messages of another `body`."""
    raw, written = received.conversation.raw, wire.decode(body)
    left_out = _OF_TOOLS if received.plain and plan.model.mode != "native" else frozenset[str]()
    kept = {key: value for key, value in raw.items() if key not in _OF_MESSAGES and key not in left_out}
    return wire.encode_request({**kept, **{key: value for key, value in written.items() if key in _OF_MESSAGES}})


def _without_empty_tools(received: Received) -> bytes:
    """Return the body of a request without tools. If it has an empty list of tools, omit all fields about tools."""
    raw = received.conversation.raw
    if raw.get("tools") is None and raw.get("functions") is None:
        return received.body
    fields = wire.decode(decode_body(received.body, received.headers, _ANY_SIZE))
    return wire.encode_request({key: value for key, value in fields.items() if key not in _OF_TOOLS})


def with_forcing(plan: Plan, received: Received, lacks: Callable[[str], bool]) -> Plan:
    """Return the plan, including the forcing for the next attempt. Calls are forced only if the tools are sent as
    text. `lacks` returns whether the upstream is known to lack a method or constraint.
    """
    if not plan.emulates:
        return plan
    forcing = forced(plan.forcing, received.conversation, plan.model, plan.upstream.NAME, lacks)
    return plan if forcing is plan.forcing else evolve(plan, forcing=forcing)


def attempt(
    received: Received,
    plan: Plan,
    number: int,
    *,
    tokenizers: Tokenizers | None = None,
    correction: str | None = None,
    continued: str | None = None,
    searches: tuple[prompting.ToolSearch, ...] = (),
    prompt: Conversation | None = None,
    resumption: Resumption | None = None,
) -> UpstreamRequest:
    """Return the request for attempt `number`, counted from 1. Raises RequestError if the tool prompt exceeds the
    context.

    `correction` is the message to the model about the previous attempt. `continued` is the text that the client has
    already received from previous attempts. `searches` are the model's searches for tools so far. With a `resumption`,
    the attempt continues the reply to `prompt`.
    """
    asked, model = received.conversation, plan.model
    options = asked.options
    if options.stop:  # only the choice filters know which text is visible
        options = evolve(options, stop=())
    if options.output is not None and options.output.foreign and not plan.same:
        options = evolve(options, output=None)
    usage = asked.include_usage or plan.asks_usage
    if options is not asked.options or usage != asked.include_usage:
        asked = evolve(asked, options=options, include_usage=usage)
    if resumption is not None and prompt is not None:
        projected = _continuing(asked, plan, prompt, resumption)
    elif not plan.emulates:
        projected = prompting.with_correction(asked, correction) if correction or asked.volatile else asked
    else:
        projected = prompting.project(
            asked,
            model,
            model.format,
            correction=correction,
            continued=continued,
            open_end=True,  # the client protocol's reader has rejected calls without results
            recall=None if plan.transcripts is None else plan.transcripts.recall,
            searches=searches,
        )
        projected = constrained(projected, plan.forcing.current)
    if model.context is not None or model.chooses_window:
        tokenizer = None if tokenizers is None else tokenizers.of(model)
        if model.context is not None:
            projected = limit_max_tokens(projected, model.context, tokenizer)
        if model.chooses_window:
            model = _with_window(model, projected, tokenizer)
    if plan.emulates and model.engine is not None and (fields := model.engine.engine.special_tokens):
        model = evolve(model, fields=fields)
    body = plan.upstream.write_request(projected, model, stream=True)
    return UpstreamRequest(
        _path(plan, stream=True), _headers(received, plan, body), body, _upstream_name(plan), number, projected
    )


def _continuing(asked: Conversation, plan: Plan, prompt: Conversation, resumption: Resumption) -> Conversation:
    """Return the conversation for an attempt that continues the reply to this prompt. Its only constraint is a grammar
    of the text that may follow: any other would apply to the continuation as if the reply began there.
    """
    text, messages, forced = resumption.text[: resumption.cut], prompt.messages, prompt.forcing
    if forced is not None and forced.way == "prefill":
        messages = messages[:-1]
        if continues_beginning(resumption.text, forced) is not False:
            text = forced.value + text
    if plan.upstream.NAME == "completions":
        text = open_turn(text, TEMPLATES[plan.model.template])
    elif (opener := plan.opener(asked)) and not text.lstrip().startswith(opener):
        text = opener + text
    if text:
        messages = (*messages, Message("assistant", (TextPart(text),)))
    return evolve(
        prompt,
        messages=messages,
        forcing=Forcing("prefill", text, grammar=grammar_after(plan, asked, resumption)) if text else forced,
        options=evolve(prompt.options, max_tokens=resumption.limit),
    )


def _with_window(model: ModelSettings, projected: Conversation, tokenizer: CountTokens | None) -> ModelSettings:
    """Return the settings with the window that the request asks for, or without one if the client chooses it."""
    given = projected.raw.get("options") if projected.protocol == "ollama" else None
    if model.engine is None or (isinstance(given, Mapping) and given.get("num_ctx") is not None):
        return evolve(model, context=None)
    return evolve(model, context=model.engine.window_for(model.name, needed_window(projected, tokenizer)))


def _upstream_name(plan: Plan) -> str | None:
    """Return the upstream's name in the settings, or None if the settings name none."""
    upstream = plan.model.upstream
    return None if upstream is None else upstream.name


def _path(plan: Plan, *, stream: bool) -> str | None:
    """Return the path to request, or None for the client's own path, which can be used unless it names the model."""
    if plan.same and not PROTOCOLS[plan.upstream.NAME].model_in_path:
        return None
    return plan.upstream.request_path(plan.model, stream=stream)


def _headers(received: Received, plan: Plan, body: bytes) -> Headers:
    """Return the headers for a request with this body."""
    upstream = plan.upstream
    kept = [pair for pair in received.headers if pair[0] not in _DROPPED]
    if not plan.same:
        kept = wire.with_key([pair for pair in kept if not pair[0].startswith(_OF_PROTOCOLS)], upstream.KEY_HEADER)
    if upstream.HEADERS:
        given = {name for name, _ in kept}
        kept += [pair for pair in upstream.HEADERS if pair[0] not in given]
    return (
        *kept,
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"accept-encoding", b"identity"),
    )
