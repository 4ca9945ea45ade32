"""Writes reply events as a Chat Completions stream.

What a client may rely on, whatever the upstream did (each is needed by the strictest of the clients in use): the role
once, in the first delta of a choice; choices first appear in order; id, type and name of a call once, in its first
fragment, together and with empty arguments, and after that nothing but argument text; calls counted from 0, one
finished before the next; the finish reason alone in its chunk, after everything else, and `tool_calls` exactly when
there is a call; a usage chunk exactly when it was asked for; `[DONE]` last; a broken reply ends in an error instead.

Theory of operation. A chunk is a constant prefix, one JSON string and a constant suffix; the prefix of a choice's text
and that of the open call's arguments are made once. A piece of text that carries the upstream's own event is forwarded
as it came when the choice has begun, no call stands before it, and the reply still has the upstream's own id, time and
model. White space after a call waits until it is known whether text follows.
"""

from collections.abc import Iterable
from typing import Final, assert_never

import msgspec
from attrs import define

from streamtool.conversation import Conversation
from streamtool.errors import StreamtoolError, UpstreamError
from streamtool.protocols import wire
from streamtool.protocols.chat.complete import error_fields, finish_reason, usage_fields
from streamtool.protocols.chat.signature import signed
from streamtool.reply import (
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyEnd,
    ReplyEvent,
    ReplyFailure,
    ReplyFinish,
    ReplyReasoningDelta,
    ReplyStart,
    ReplyTextDelta,
    Usage,
    UsageReport,
)
from streamtool.sse import comment

KEEPALIVE: Final = comment("keep-alive")
"""What may be sent while the upstream is silent, before the reply has begun as well."""
STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
"""Headers of a stream. `connection` is the server's business, and forbidden in HTTP/2."""
COMPLETE_HEADERS: Final = ((b"content-type", b"application/json"),)
"""Headers of a whole reply and of an error; the length is added by whoever sends it."""

_HELD: Final = 4096  # characters of white space after a call that may wait
_DONE: Final = b"data: [DONE]\n\n"
_CONTENT: Final = b'"content":'
_strict: Final = msgspec.json.Encoder().encode


def _string(text: str) -> bytes:
    try:
        return _strict(text)
    except UnicodeEncodeError:  # a lone surrogate
        return wire.encode(text)


@define(eq=False)
class _Choice:
    """Where one choice stands."""

    prefix: bytes
    """Of a chunk, up to and with the brace that opens the delta."""
    text: bytes
    """Prefix of a chunk of text."""
    calls: int = 0
    plain: bool = True
    """No call yet and not finished: text may pass."""
    finished: bool = False
    cut: bool = False
    """A call is incomplete."""
    arguments: bytes | None = None
    """Prefix of an argument chunk of the open call; None without one."""
    index: int = -1
    """The open call's number in the events."""
    custom: bool = False
    """The open call is of a custom tool."""
    blank: bool = True
    """The open call has no arguments yet but white space."""
    after: bool = False
    """Nothing but white space has followed the last call."""
    space: str = ""
    """That white space."""


class ReplyWriter:
    """Writes one streamed reply.

    `id`, `created` and `model` name it unless its `ReplyStart` does. The ids of its calls are the exchange's.
    `forwards` says that what the upstream sent is of this protocol too, so that its own events may be passed on.
    """

    __slots__ = (
        "_call_suffix", "_choices", "_conversation", "_created", "_custom", "_ended", "_forwards", "_id",
        "_legacy", "_model", "_n", "_same", "_started", "_suffix", "_tail", "_usage",
    )  # fmt: skip
    response: Final = None
    """The whole reply as one object, in protocols that have one in their stream."""

    def __init__(
        self,
        conversation: Conversation,
        *,
        id: str,
        created: int,
        model: str,
        forwards: bool = False,
    ) -> None:
        self._conversation = conversation
        self._id, self._created, self._model = id, created, model
        self._n = conversation.n
        self._legacy = conversation.legacy_functions
        self._custom = frozenset(tool.name for tool in conversation.tools if tool.custom)
        self._choices: list[_Choice] = []  # those that have begun
        self._usage = Usage()
        self._same = forwards
        self._forwards = False  # and id, created and model are the upstream's own
        self._started = False
        self._ended = False
        self._tail = b',"usage":null}\n\n' if conversation.include_usage else b"}\n\n"
        self._suffix = b'},"logprobs":null,"finish_reason":null}]' + self._tail
        self._call_suffix = (b"}" if self._legacy else b"}}]") + self._suffix

    def feed(self, events: Iterable[ReplyEvent]) -> bytes:
        """What the client receives for `events`, in one piece; b"" when there is nothing to say yet."""
        out: list[bytes] = []
        for event in events:
            kind = type(event)
            if kind is ReplyTextDelta:
                self._text(event, out)  # type: ignore[arg-type]  # narrowed by `kind`, which is faster than isinstance
            elif kind is ReplyArgumentsDelta:
                self._arguments(event, out)  # type: ignore[arg-type]  # as above
            elif not self._ended:
                self._other(event, out)
        return b"".join(out)

    def keepalive(self) -> bytes:
        """What may be sent between two feeds while the upstream is silent."""
        return KEEPALIVE

    def _text(self, event: ReplyTextDelta, out: list[bytes]) -> None:
        if event.choice < len(self._choices):
            choice = self._choices[event.choice]
        elif self._ended or not event.text:
            return
        else:
            choice = self._choice(event.choice, out)
        if choice.plain:
            if event.raw is not None and self._forwards:
                out.append(event.raw)
            elif event.text:
                out += (choice.text, _string(event.text), self._suffix)
        elif event.text and not choice.finished:
            self._text_after_call(choice, event.text, out)

    def _arguments(self, event: ReplyArgumentsDelta, out: list[bytes]) -> None:
        choice = self._choices[event.choice]
        if choice.arguments is None or event.index != choice.index or not event.text:
            return  # of a call that this protocol cannot express, or empty
        if choice.blank:
            choice.blank = event.text.isspace()
        out += (choice.arguments, _string(event.text), self._call_suffix)

    def _other(self, event: ReplyEvent, out: list[bytes]) -> None:
        match event:
            case ReplyStart():
                self._start(event, out)
            case ReplyReasoningDelta():
                choice = self._choice(event.choice, out)
                if event.text and not choice.finished:
                    out += (choice.prefix, b'"reasoning_content":', _string(event.text), self._suffix)
            case ReplyCallStart():
                self._open(event, out)
            case ReplyCallEnd():
                choice = self._choice(event.choice, out)
                if choice.arguments is not None and event.index == choice.index:
                    self._close(choice, out, complete=event.complete)
            case ReplyFinish():
                self._finish(event, out)
            case UsageReport():
                self._usage = event.usage
            case ReplyFailure():
                self._fail(event.error, out)
            case ReplyEnd():
                self._end(out)
            case ReplyTextDelta() | ReplyArgumentsDelta():
                pass  # `feed` has taken them
            case _:
                assert_never(event)

    # --- the beginning

    def _start(self, event: ReplyStart, out: list[bytes]) -> None:
        if self._started:  # another attempt: the reply keeps its name, and what this one sends is written anew
            same = (event.id, event.created, event.model) == (self._id, self._created, self._model)
            self._forwards = self._forwards and same
        else:
            named = event.id is not None and event.created is not None and event.model is not None
            self._forwards = self._same and named
            self._id = event.id or self._id
            self._created = self._created if event.created is None else event.created
            self._model = event.model or self._model
        self._choice(0, out)

    def _choice(self, index: int, out: list[bytes]) -> _Choice:
        """The choice, begun; those before it are begun first, because clients count them by their appearance."""
        self._started = True
        while index >= len(self._choices):
            prefix = self._head() + b'"choices":[{"index":%d,"delta":{' % len(self._choices)
            self._choices.append(_Choice(prefix, prefix + _CONTENT))
            out += (prefix, b'"role":"assistant","content":""', self._suffix)
        return self._choices[index]

    def _head(self) -> bytes:
        fields = {
            "id": self._id,
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
            "system_fingerprint": None,
        }
        return b"data: " + wire.encode(fields)[:-1] + b","

    # --- calls

    def _open(self, event: ReplyCallStart, out: list[bytes]) -> None:
        choice = self._choice(event.choice, out)
        if choice.finished or (self._legacy and choice.calls):
            return  # the older protocol has room for one call
        if choice.arguments is not None:
            self._close(choice, out, complete=False)
        number = choice.calls
        choice.calls += 1
        choice.index = event.index
        choice.plain = False
        choice.blank = choice.after = True
        choice.space = ""
        choice.custom = event.name in self._custom
        name = _string(event.name)
        if self._legacy:
            choice.arguments = choice.prefix + b'"function_call":{"arguments":'
            out += (choice.prefix, b'"function_call":{"name":', name, b',"arguments":""}', self._suffix)
            return
        identity = wire.encode(event.id)
        kind, value = (b"custom", b"input") if choice.custom else (b"function", b"arguments")
        entry = b'"tool_calls":[{"index":%d,' % number
        choice.arguments = choice.prefix + entry + b'"%b":{"%b":' % (kind, value)
        fields = b'"id":%b,"type":"%b","%b":{"name":%b,"%b":""}' % (identity, kind, kind, name, value)
        if event.signature is not None:
            fields += b"," + wire.encode(signed({}, event.signature))[1:-1]
        opener = entry + fields + b"}]"
        out += (choice.prefix, opener, self._suffix)

    def _close(self, choice: _Choice, out: list[bytes], *, complete: bool) -> None:
        if not complete:
            choice.cut = True
        elif choice.blank and not choice.custom and choice.arguments is not None:
            out += (choice.arguments, b'"{}"', self._call_suffix)
        choice.arguments = None

    def _text_after_call(self, choice: _Choice, text: str, out: list[bytes]) -> None:
        if choice.arguments is not None:
            self._close(choice, out, complete=False)
        if choice.after and text.isspace() and len(choice.space) < _HELD:
            choice.space += text
            return
        out += (choice.text, _string(choice.space + text), self._suffix)
        choice.after, choice.space = False, ""

    # --- the end

    def _finish(self, event: ReplyFinish, out: list[bytes]) -> None:
        choice = self._choice(event.choice, out)
        if choice.finished:
            return
        if choice.arguments is not None:
            self._close(choice, out, complete=False)
        choice.finished = True
        choice.plain = False
        reason = finish_reason(event.reason, calls=choice.calls > 0, cut=choice.cut, legacy=self._legacy)
        out += (choice.prefix, b'},"logprobs":null,"finish_reason":"%b"}]' % reason.encode(), self._tail)

    def _end(self, out: list[bytes]) -> None:
        if len(self._choices) < self._n or not all(choice.finished for choice in self._choices):
            self._fail(UpstreamError("The reply ended without saying why.", code="upstream_closed"), out)
            return
        self._stop()
        if self._conversation.include_usage:
            out += (self._head(), b'"choices":[],"usage":', wire.encode(usage_fields(self._usage)), b"}\n\n")
        out.append(_DONE)

    def _fail(self, error: StreamtoolError, out: list[bytes]) -> None:
        self._stop()
        out += (b"data: ", wire.encode(error_fields(error)), b"\n\n")

    def _stop(self) -> None:
        """Nothing more leaves."""
        self._ended = True
        for choice in self._choices:
            choice.finished, choice.plain, choice.arguments = True, False, None
