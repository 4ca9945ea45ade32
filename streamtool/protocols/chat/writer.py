"""Writer for a Chat Completions stream.

Guarantees to the client, whatever the upstream sends (each is required by at least one client in use):
- The role appears once, in the first delta of a choice. Choices first appear in order.
- A call's id, type and name appear together, only in the call's first fragment, with empty arguments. Later fragments
  contain only argument text. Calls are numbered from 0, and each ends before the next begins.
- The arguments of an incomplete call end in a way that nothing can repair (`UNREPAIRABLE`).
- The finish reason is alone in its chunk and follows everything else in its choice.
- A usage chunk is sent if, and only if, the client requested it. `[DONE]` is sent last.
- If the reply fails, an error replaces all remaining chunks.

Theory of operation. A chunk consists of a constant prefix, one JSON string and a constant suffix. The prefixes for a
choice's text and for the open call's arguments are each built once. A text delta that carries the upstream's original
event is forwarded verbatim if its choice has begun and contains no call yet, and if the reply still has the upstream's
own id, time and model. Whitespace after a call is buffered until text follows.
"""

from functools import cache
from typing import Final

from attrs import Factory, define

from streamtool.core.conversation import Conversation
from streamtool.core.errors import StreamtoolError
from streamtool.core.reply import (
    NO_USAGE,
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyFinish,
    ReplyReasoningDelta,
    ReplyStart,
    ReplyTextDelta,
    Usage,
)
from streamtool.protocols.chat.complete import error_fields, finish_reason, usage_fields
from streamtool.protocols.chat.signature import add_signature
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.stream import (
    UNREPAIRABLE,
    Out,
    SpaceAfterCall,
    StreamWriter,
    ascii_string,
    json_string,
    merge_start,
    no_reason_error,
)

_DONE: Final = b"data: [DONE]\n\n"
_FAILED: Final = 500
"""The lowest status of an error that clients may answer by trying again."""
_CONTENT: Final = b'"content":'


@define(eq=False)
class _Choice:
    """State of one choice."""

    text: bytes
    """Prefix of a text chunk."""
    reasoning: bytes | None = None
    """Prefix of a reasoning chunk; None before the first."""
    calls: int = 0
    plain: bool = True
    """Whether text may be forwarded, because the choice is unfinished and contains no call yet."""
    finished: bool = False
    arguments: bytes | None = None
    """Prefix of an argument chunk of the open call; None if no call is open."""
    index: int = -1
    """Index of the open call in the reply events."""
    custom: bool = False
    """Whether the open call is a call to a custom tool."""
    blank: bool = True
    """Whether the open call's arguments have been only whitespace so far."""
    space: SpaceAfterCall = Factory(SpaceAfterCall)

    @property
    def prefix(self) -> bytes:
        """Beginning of a chunk, including the opening brace of its delta."""
        return self.text[: -len(_CONTENT)]


class ReplyWriter(StreamWriter):
    """Writer for one streamed reply.

    `id`, `created` and `model` are used unless the `ReplyStart` contains its own values. Call ids come from the
    exchange. `forwards` means that the upstream speaks this protocol too, so its events may be forwarded.
    """

    __slots__ = (
        "_call_suffix",
        "_choices",
        "_conversation",
        "_name",
        "_same",
        "_started",
        "_suffix",
        "_tail",
        "_usage",
    )

    def __init__(
        self,
        conversation: Conversation,
        *,
        id: str,
        created: int,
        model: str,
        forwards: bool = False,
    ) -> None:
        super().__init__()
        self._conversation = conversation
        self._name = ReplyStart(id, created, model)
        self._choices: list[_Choice] = []  # the choices that have begun
        self._usage = NO_USAGE
        self._same = forwards
        self._started = False
        self._tail, self._suffix, self._call_suffix = _suffixes(
            usage=conversation.include_usage, legacy=conversation.legacy_functions
        )

    def text(self, event: ReplyTextDelta) -> bytes:
        choices = self._choices
        if event.choice >= len(choices):
            return self._first_text(event)
        choice = choices[event.choice]
        if not choice.plain:
            return self._text_after_call(choice, event.text)
        if event.raw is not None and self._forwards:
            return event.raw
        return b"".join((choice.text, json_string(event.text), self._suffix)) if event.text else b""

    def _first_text(self, event: ReplyTextDelta) -> bytes:
        """Return the bytes that begin a choice and write text to it."""
        if self._ended or not event.text:
            return b""
        out: Out = []
        self._choice(event.choice, out)
        out.append(self.text(event))
        return b"".join(out)

    def arguments(self, event: ReplyArgumentsDelta) -> bytes:
        choice, text = self._choices[event.choice], event.text
        prefix = choice.arguments
        if prefix is None or event.index != choice.index or not text:
            return b""  # a call that this protocol cannot express, or an empty delta
        if choice.blank:
            choice.blank = text.isspace()
        return b"".join((prefix, ascii_string(text) if text.isascii() else json_string(text), self._call_suffix))

    def _reasoning(self, event: ReplyReasoningDelta, out: Out) -> None:
        choice = self._choice(event.choice, out)
        if event.text and not choice.finished:
            if choice.reasoning is None:
                choice.reasoning = choice.prefix + b'"reasoning_content":'
            out += (choice.reasoning, json_string(event.text), self._suffix)

    # --- the beginning

    def _start(self, event: ReplyStart, out: Out) -> None:
        if self._started:  # another attempt: the reply keeps its id, and this attempt's events are not forwarded
            self._forwards = self._forwards and event == self._name
        else:
            # Whether the id, time and model are the upstream's own.
            self._forwards = self._same and None not in (event.id, event.created, event.model)
            self._name = merge_start(event, self._name)
        self._choice(0, out)

    def _choice(self, index: int, out: Out) -> _Choice:
        """Return the choice. If it is new, begin it and all earlier choices, because clients number choices in order of
        appearance.
        """
        self._started = True
        while index >= len(self._choices):
            prefix = self._head() + b'"choices":[{"index":%d,"delta":{' % len(self._choices)
            self._choices.append(_Choice(prefix + _CONTENT))
            out += (prefix, b'"role":"assistant","content":""', self._suffix)
        return self._choices[index]

    def _head(self) -> bytes:
        fields = {
            "id": self._name.id,
            "object": "chat.completion.chunk",
            "created": self._name.created,
            "model": self._name.model,
            "system_fingerprint": None,
        }
        return b"data: " + wire.encode(fields)[:-1] + b","

    # --- calls

    def _open_call(self, event: ReplyCallStart, out: Out) -> None:
        choice = self._choice(event.choice, out)
        if choice.finished or (self._conversation.legacy_functions and choice.calls):
            return  # the older form can contain only one call
        if choice.arguments is not None:
            self._close(choice, out, complete=False)
        number = choice.calls
        choice.calls += 1
        choice.index = event.index
        choice.plain = False
        choice.blank = True
        choice.space.call_written()
        choice.custom = any(tool.custom and tool.name == event.name for tool in self._conversation.tools)
        name = json_string(event.name)
        if self._conversation.legacy_functions:
            choice.arguments = choice.prefix + b'"function_call":{"arguments":'
            out += (choice.prefix, b'"function_call":{"name":', name, b',"arguments":""}', self._suffix)
            return
        identity = wire.encode(event.id)
        kind, value = (b"custom", b"input") if choice.custom else (b"function", b"arguments")
        entry = b'"tool_calls":[{"index":%d,' % number
        choice.arguments = choice.prefix + entry + b'"%b":{"%b":' % (kind, value)
        fields = b'"id":%b,"type":"%b","%b":{"name":%b,"%b":""}' % (identity, kind, kind, name, value)
        if event.signature is not None:
            fields += b"," + wire.encode(add_signature({}, event.signature))[1:-1]
        opener = entry + fields + b"}]"
        out += (choice.prefix, opener, self._suffix)

    def _close_call(self, event: ReplyCallEnd, out: Out) -> None:
        choice = self._choice(event.choice, out)
        if choice.arguments is not None and event.index == choice.index:
            self._close(choice, out, complete=event.complete)

    def _close(self, choice: _Choice, out: Out, *, complete: bool) -> None:
        if not complete:
            if choice.arguments is not None and not choice.custom:
                out += (choice.arguments, UNREPAIRABLE, self._call_suffix)
        elif choice.blank and not choice.custom and choice.arguments is not None:
            out += (choice.arguments, b'"{}"', self._call_suffix)
        choice.arguments = None

    def _text_after_call(self, choice: _Choice, text: str) -> bytes:
        if not text or choice.finished:
            return b""
        out: Out = []
        if choice.arguments is not None:
            self._close(choice, out, complete=False)
        text = choice.space.feed(text)
        if text:
            out += (choice.text, json_string(text), self._suffix)
        return b"".join(out)

    # --- the end

    def _finish(self, event: ReplyFinish, out: Out) -> None:
        choice = self._choice(event.choice, out)
        if choice.finished:
            return
        if choice.arguments is not None:
            self._close(choice, out, complete=False)
        choice.finished = True
        choice.plain = False
        legacy = self._conversation.legacy_functions
        reason = finish_reason(event.reason, calls=choice.calls > 0, legacy=legacy)
        out += (choice.prefix, b'},"logprobs":null,"finish_reason":"%b"}]' % reason.encode(), self._tail)

    def _count(self, usage: Usage) -> None:
        self._usage = usage

    def _end(self, out: Out) -> None:
        if len(self._choices) < self._conversation.options.n or not all(choice.finished for choice in self._choices):
            self._fail(no_reason_error(), out)
            return
        self._stop()
        if self._conversation.include_usage:
            out += (self._head(), b'"choices":[],"usage":', wire.encode(usage_fields(self._usage)), b"}\n\n")
        out.append(_DONE)

    def _fail(self, error: StreamtoolError, out: Out) -> None:
        self._stop()
        fields = error_fields(error)
        if error.status >= _FAILED:  # a stream has no status; Continue and opencode read the type
            fields["error"]["type"] = "server_error"
        out += (b"data: ", wire.encode(fields), b"\n\n")

    def _stop(self) -> None:
        """Stop writing, and discard all later events."""
        self._ended = True
        for choice in self._choices:
            choice.finished, choice.plain, choice.arguments = True, False, None


@cache
def _suffixes(*, usage: bool, legacy: bool) -> tuple[bytes, bytes, bytes]:
    """Return the ends of a chunk: after its choices, after a text, and after a piece of arguments."""
    tail = b',"usage":null}\n\n' if usage else b"}\n\n"
    suffix = b'},"logprobs":null,"finish_reason":null}]' + tail
    return tail, suffix, (b"}" if legacy else b"}}]") + suffix
