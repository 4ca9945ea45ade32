"""Log output for `debug`: one line per message, both as the client sent it and as the upstream receives it.

    req_1: as received: m, stream, 2 messages, 1 tools: ping
    req_1: [0] system    | calls -    | ids -      | -      | 24 characters
    req_1: [1] user      | calls -    | ids call_1 | result | 4 characters

The log records belong to the `streamtool.debug` logger, level DEBUG. If the settings allow contents, each line shows
the first characters of its message instead of their number, and the complete prompt and the model's text follow the
lines, unchanged. Headers are never read.
"""

import logging
from collections.abc import Iterator, Sequence

import statemachine
from streamtool.core.conversation import Conversation, MediaPart, Message, TextPart
from streamtool.core.reply import ReplyEvent
from streamtool.exchange.interfaces import UpstreamRequest
from streamtool.exchange.listener import FedText, ObservedParser, ParserOptions
from streamtool.observe.printable import printable

_log = logging.getLogger("streamtool.debug")
SHOWN = 60
"""Maximum number of characters of a message that its line shows."""
_MOST = 256 * 1024
"""Maximum number of characters of the model's text that are logged."""
_NAMES = 50


def enabled() -> bool:
    """Return whether debug lines are logged."""
    return _log.isEnabledFor(logging.DEBUG)


class DebugListener:
    """A listener that logs an exchange."""

    __slots__ = ("_contents", "_id", "_model_text", "_size")

    def __init__(self, request_id: str, conversation: Conversation, *, contents: bool) -> None:
        self._id = printable(request_id)
        self._contents = contents
        self._model_text: list[str] = []
        self._size = 0
        self._show("as received", conversation, conversation.stream)

    def attempt(self, request: UpstreamRequest, /) -> None:
        """Log the request for an attempt."""
        self.end()
        if request.conversation is not None:
            self._show(f"as sent, attempt {request.attempt}", request.conversation, True)

    def answered(self, status: int, /) -> None:
        """Log the status of the upstream's response."""
        self._say(f"the upstream answered {status}")

    def parser(self, choice: int, options: ParserOptions | None, parser: ObservedParser, /) -> int:  # noqa: ARG002  signature of a listener
        """Do nothing: parsers are not logged."""
        return choice

    def fed(self, fed: FedText, /) -> None:
        """Collect the model's text, if the settings allow contents."""
        if self._contents and self._size < _MOST:
            self._model_text.append(fed[1])
            self._size += len(fed[1])

    def closed(self, number: int, reason: str | None, events: Sequence[statemachine.Event], /) -> None:
        """Do nothing: parsers are not logged."""

    def quoted(self, choice: int, why: str, /) -> None:  # noqa: ARG002  signature of a listener
        """Log the quotation."""
        self._say(f"a call is treated as quoted text: {why}")

    def sent(self, events: Sequence[ReplyEvent], data: bytes, waits_for: str, /) -> None:
        """Do nothing: the client's reply is not logged."""

    def end(self) -> None:
        """Log the model's text, at the end of an attempt."""
        if self._model_text:
            self._say(f"the model wrote:\n{''.join(self._model_text)[:_MOST]}")
            self._model_text.clear()
            self._size = 0

    def _show(self, what: str, conversation: Conversation, stream: bool) -> None:
        tools = [tool.name for tool in conversation.tools]
        named = ", ".join([*(printable(name) for name in tools[:_NAMES]), *(["…"] if len(tools) > _NAMES else [])])
        self._say(
            f"{what}: {printable(conversation.model)}, {'stream' if stream else 'whole'}, "
            f"{len(conversation.messages)} messages, {len(tools)} tools{': ' if tools else ''}{named}"
        )
        for i, message in enumerate(conversation.messages):
            self._say(f"[{i}] {format_message(message, contents=self._contents)}")
        if self._contents:
            self._say("the prompt:\n" + "\n\n".join(_prompt_lines(conversation)))

    def _say(self, text: str) -> None:
        _log.debug("%s: %s", self._id, text)


def format_message(message: Message, *, contents: bool) -> str:
    """Return a message as one line: its role, calls, ids, other contents, and its text (if not allowed, the text's
    length).
    """
    calls = [printable(call.name) for call in message.calls]
    ids = [printable(id) for id in (*(call.id for call in message.calls), *(result.id for result in message.results))]
    extra = [
        *(["reasoning"] if message.reasoning else ()),
        *(part.kind for part in message.content if isinstance(part, MediaPart)),
        *("error" if result.error else "result" for result in message.results),
    ]
    text = _text(message)
    shown = printable(text, SHOWN) if contents else f"{len(text)} characters"
    return (
        f"{message.role:<9} | calls {', '.join(calls) or '-'} | ids {', '.join(ids) or '-'} | "
        f"{printable(', '.join(extra)) or '-'} | {shown}"
    )


def _text(message: Message) -> str:
    """Return the text of a message, including the results in it."""
    parts = (*message.content, *(part for result in message.results for part in result.content))
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))


def _prompt_lines(conversation: Conversation) -> Iterator[str]:
    for i, message in enumerate(conversation.messages):
        calls = "".join(f"\n{call.name}({call.arguments})" for call in message.calls)
        yield f"[{i}] {message.role}:\n{_text(message)}{calls}"
