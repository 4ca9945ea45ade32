"""What `debug` adds to the log: a line for each message, as the client sent it and as the upstream gets it.

    req_1: as it came: m, stream, 2 messages, 1 tools: ping
    req_1: [0] system    | calls -    | ids -      | -      | 24 characters
    req_1: [1] user      | calls -    | ids call_1 | result | 4 characters

The records are those of the logger `streamtool.debug`, level DEBUG. Only where contents are allowed does a line end in
the first characters of its message, and only there follow the whole prompt and what the model wrote, as it wrote it.
Headers are not looked at at all.
"""

import logging
from collections.abc import Iterator, Sequence

import statemachine
from streamtool.conversation import Conversation, MediaPart, Message, TextPart
from streamtool.exchange import Fed, ObservedParser, ParserOptions, UpstreamRequest
from streamtool.observe.logs import plain
from streamtool.reply import ReplyEvent

_log = logging.getLogger("streamtool.debug")
SHOWN = 60
"""Characters of a message on its line."""
_MOST = 256 * 1024
"""Characters of the model's text that are kept for the log."""
_NAMES = 50


def enabled() -> bool:
    """Whether anybody reads such lines."""
    return _log.isEnabledFor(logging.DEBUG)


class Debug:
    """The trace of an exchange that goes into the log."""

    __slots__ = ("_contents", "_id", "_said", "_size")

    def __init__(self, request_id: str, conversation: Conversation, *, contents: bool) -> None:
        self._id = plain(request_id)
        self._contents = contents
        self._said: list[str] = []
        self._size = 0
        self._show("as it came", conversation, conversation.stream)

    def attempt(self, request: UpstreamRequest, /) -> None:
        """Show what is sent."""
        self.end()
        if request.conversation is not None:
            self._show(f"as it is sent, attempt {request.attempt}", request.conversation, True)

    def answered(self, status: int, /) -> None:
        """Say with which status the upstream answered."""
        self._say(f"the upstream answered {status}")

    def parser(self, choice: int, options: ParserOptions | None, parser: ObservedParser, /) -> int:  # noqa: ARG002  as a trace has it
        """Nothing is to be said of it."""
        return choice

    def fed(self, fed: Fed, /) -> None:
        """Keep what the model says, if it may be shown."""
        if self._contents and self._size < _MOST:
            self._said.append(fed[1])
            self._size += len(fed[1])

    def closed(self, number: int, reason: str | None, events: Sequence[statemachine.Event], /) -> None:
        """Nothing is to be said of it."""

    def quoted(self, choice: int, why: str, /) -> None:  # noqa: ARG002  as a trace has it
        """Say it."""
        self._say(f"a call is a quotation, and text: {why}")

    def sent(self, events: Sequence[ReplyEvent], data: bytes, waits_for: str, /) -> None:
        """Nothing is to be said of it."""

    def end(self) -> None:
        """Say what the model has said."""
        if self._said:
            self._say(f"the model wrote:\n{''.join(self._said)[:_MOST]}")
            self._said.clear()
            self._size = 0

    def _show(self, what: str, conversation: Conversation, stream: bool) -> None:
        tools = [tool.name for tool in conversation.tools]
        named = ", ".join([*(plain(name) for name in tools[:_NAMES]), *(["…"] if len(tools) > _NAMES else [])])
        self._say(
            f"{what}: {plain(conversation.model)}, {'stream' if stream else 'whole'}, "
            f"{len(conversation.messages)} messages, {len(tools)} tools{': ' if tools else ''}{named}"
        )
        for i, message in enumerate(conversation.messages):
            self._say(f"[{i}] {line(message, contents=self._contents)}")
        if self._contents:
            self._say("the prompt:\n" + "\n\n".join(_whole(conversation)))

    def _say(self, text: str) -> None:
        _log.debug("%s: %s", self._id, text)


def line(message: Message, *, contents: bool) -> str:
    """A message on one line: role, calls, ids, what else it holds, and its text if that is allowed."""
    calls = [plain(call.name) for call in message.calls]
    ids = [plain(id) for id in (*(call.id for call in message.calls), *(result.id for result in message.results))]
    extra = [
        *(["reasoning"] if message.reasoning else ()),
        *(part.kind for part in message.content if isinstance(part, MediaPart)),
        *("error" if result.error else "result" for result in message.results),
    ]
    text = _text(message)
    shown = plain(text, SHOWN) if contents else f"{len(text)} characters"
    return (
        f"{message.role:<9} | calls {', '.join(calls) or '-'} | ids {', '.join(ids) or '-'} | "
        f"{plain(', '.join(extra)) or '-'} | {shown}"
    )


def _text(message: Message) -> str:
    """The text of a message and of its results."""
    parts = (*message.content, *(part for result in message.results for part in result.content))
    return "\n".join(part.text for part in parts if isinstance(part, TextPart))


def _whole(conversation: Conversation) -> Iterator[str]:
    for i, message in enumerate(conversation.messages):
        calls = "".join(f"\n{call.name}({call.arguments})" for call in message.calls)
        yield f"[{i}] {message.role}:\n{_text(message)}{calls}"
