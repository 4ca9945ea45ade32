"""The messages, tools and reply of an exchange as span attributes, in the JSON that the conventions for generative AI
define. They are recorded only if OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT asks for spans with contents, the
variable that OpenTelemetry's own instrumentations read.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import statemachine
from streamtool.core.conversation import Conversation, Message, TextPart
from streamtool.core.json_value import Json
from streamtool.core.reply import ReplyAccumulator, ReplyEvent
from streamtool.exchange.exchange import Exchange
from streamtool.exchange.interfaces import UpstreamRequest
from streamtool.exchange.listener import FedText, ObservedParser, ParserOptions

VARIABLE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_SPANS: Final = frozenset(("true", "span_only", "span_and_event"))
"""The values of the variable that add messages to spans, in lowercase."""


def records_contents() -> bool:
    """Return whether spans contain messages."""
    return os.environ.get(VARIABLE, "").strip().lower() in _SPANS


class SpanMessages:
    """A listener that accumulates the reply of one exchange, for the attributes of its span."""

    def __init__(self, exchange: Exchange) -> None:
        self._conversation = exchange.conversation
        self._reply = ReplyAccumulator()
        self._parsers = 0
        self.fed: Callable[[FedText], object] = _ignore

    def attempt(self, request: UpstreamRequest, /) -> None:
        """Ignore the request to the upstream."""

    def answered(self, status: int, /) -> None:
        """Ignore the status."""

    def parser(self, choice: int, options: ParserOptions | None, parser: ObservedParser, /) -> int:  # noqa: ARG002
        """Return the number of a new parser."""
        self._parsers += 1
        return self._parsers - 1

    def closed(self, number: int, reason: str | None, events: Sequence[statemachine.Event], /) -> None:
        """Ignore the end of a parser."""

    def quoted(self, choice: int, why: str, /) -> None:
        """Ignore a quotation."""

    def sent(self, events: Sequence[ReplyEvent], data: bytes, waits_for: str, /) -> None:  # noqa: ARG002
        """Add the events that the client receives."""
        self._reply.feed(events)

    def attributes(self) -> Iterator[tuple[str, str]]:
        """Yield the attributes. Call it once, after the exchange has ended."""
        yield from _request_attributes(self._conversation)
        output: list[Json] = []
        for choice in self._reply.close().choices:
            calls: list[Json] = [
                {"type": "tool_call", "id": call.id, "name": call.name, "arguments": _decoded(call.arguments)}
                for call in choice.calls
            ]
            parts: list[Json] = [_text(choice.text)] if choice.text else []
            reason = "unknown" if choice.reason is None else choice.reason.value
            output.append({"role": "assistant", "parts": parts + calls, "finish_reason": reason})
        if output:
            yield "gen_ai.output.messages", _encode(output)


def _request_attributes(conversation: Conversation) -> Iterator[tuple[str, str]]:
    system = [_text(message.text) for message in conversation.messages if message.role == "system"]
    if system:
        yield "gen_ai.system_instructions", _encode(system)
    told = [one for message in conversation.messages if message.role != "system" for one in _messages(message)]
    yield "gen_ai.input.messages", _encode(told)
    if conversation.tools:
        tools: list[Json] = [
            {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in conversation.tools
        ]
        yield "gen_ai.tool.definitions", _encode(tools)


def _messages(message: Message) -> Iterator[Json]:
    """Yield the message. The conventions put its results into a separate message."""
    if message.results:
        parts: list[Json] = [
            {"type": "tool_call_response", "id": result.id, "response": _joined(result.content)}
            for result in message.results
        ]
        yield {"role": "tool", "parts": parts}
    own: list[Json] = [{"type": "reasoning", "content": message.reasoning}] if message.reasoning else []
    own += [_text(part.text) if isinstance(part, TextPart) else {"type": part.kind} for part in message.content]
    own += [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": _decoded(call.arguments)}
        for call in message.calls
    ]
    if own or not message.results:
        yield {"role": message.role, "parts": own}


def _joined(content: Sequence[object]) -> str:
    return "\n".join(part.text for part in content if isinstance(part, TextPart))


def _text(text: str) -> Json:
    return {"type": "text", "content": text}


def _decoded(arguments: str) -> Json:
    """Return the arguments as JSON, or as text if they are incomplete."""
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _encode(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _ignore(_: FedText) -> None:
    """Ignore text that was fed to a parser."""
