"""Writes reply events as a Responses stream.

What a client may rely on, whatever the upstream did (each is needed by the strictest of the clients in use):
`response.created` first; the name of an event equal to its type; sequence numbers 0, 1, 2 …; items one after the other,
each with its own id and its index, added before anything of it is sent and done before the next; a `done` event and the
final response that hold, byte for byte, what was streamed; arguments that are one JSON object, unless the call is
incomplete; one terminal event, last, which is `response.completed`, `response.incomplete` or, after an `error` event,
`response.failed`.

Theory of operation. One item is open at a time: a message, reasoning, or a call. A delta of it is a template, made when
the item is opened, and one JSON string; the string is kept as it was written, behind those before it, and the events
that close the item are made of them. So what was sent is what is repeated, and a delta costs the same wherever it
stands. The ids of items are the reply's own id with a number: they need no chance, and are new in the conversation
because the reply's id is. White space after a call waits until it is known whether text follows.
"""

import re
from collections.abc import Iterable
from typing import Final, Literal, assert_never

import msgspec

from streamtool.conversation import Conversation
from streamtool.errors import StreamtoolError, UpstreamError
from streamtool.protocols import wire
from streamtool.protocols.body_sniffer import too_large
from streamtool.protocols.responses.response import ResponseObject, error_code
from streamtool.reply import (
    Reason,
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
from streamtool.sse import HELD, comment

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

Kind = Literal["message", "reasoning", "function_call", "custom_tool_call"]

_HELD: Final = 4096  # characters of white space after a call that may wait
_LONGEST: Final = 40  # characters of the reply's id in the id of an item, which has at most 64
_PREFIXES: Final = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
_FOREIGN: Final = re.compile("[^A-Za-z0-9_-]")
_strict: Final = msgspec.json.Encoder().encode


def _string(text: str) -> bytes:
    try:
        return _strict(text)
    except UnicodeEncodeError:  # a lone surrogate
        return wire.encode(text)


def _template(name: str, place: str, key: str, more: str = "") -> bytes:
    """An event of which only the sequence number and one string are missing."""
    return f'event: {name}\ndata: {{"type":"{name}","sequence_number":%d,{place},"{key}":%b{more}}}\n\n'.encode()


class ReplyWriter:
    """Writes one streamed reply.

    `id`, `created` and `model` name it unless its `ReplyStart` does. The ids of its calls are the exchange's. Every
    event is written anew, whether or not the upstream speaks this protocol too (`forwards`): its sequence numbers are
    its own.
    """

    __slots__ = (
        "_after", "_blank", "_call", "_conversation", "_core", "_created", "_cut", "_ended", "_held", "_id", "_index",
        "_item", "_kind", "_model", "_namespaces", "_output", "_place", "_reason", "_response", "_said", "_sequence",
        "_space", "_template", "_usage", "response",
    )  # fmt: skip

    def __init__(
        self,
        conversation: Conversation,
        *,
        id: str,
        created: int,
        model: str,
        forwards: bool = False,  # noqa: ARG002  the protocols' writers are made alike
    ) -> None:
        self.response: bytes | None = None
        """The final response object; None before the reply is whole, and when it failed."""
        self._conversation = conversation
        self._id, self._created, self._model = id, created, model
        # tools that the client knows by another name, or whose input is not JSON
        self._namespaces = {tool.name: tool for tool in conversation.tools if tool.namespace or tool.custom}
        self._response: ResponseObject | None = None  # None: not begun
        self._core = ""  # the reply's id without its prefix
        self._sequence = 0
        self._usage = Usage()
        self._output: list[bytes] = []  # the items that are done
        self._held = 0  # bytes of all strings in the reply
        self._reason: Reason | None = None
        self._cut = False  # a call is incomplete
        self._ended = False
        # the open item
        self._kind: Kind | None = None
        self._item = ""  # its id
        self._place = ""  # its id and index, as they stand in its events
        self._template = b""  # of its deltas
        # the strings of its deltas, without quotes; in one buffer, since a list takes ten times the memory
        self._said = bytearray()
        self._call = b""  # the fields that name the call
        self._index = -1  # the call's number in the events; -1: no call
        self._blank = True  # the call has no arguments yet but white space
        # white space after a call
        self._after = False  # nothing but white space has followed the last call
        self._space = ""

    def feed(self, events: Iterable[ReplyEvent]) -> bytes:
        """What the client receives for `events`, in one piece; b"" when there is nothing to say yet."""
        out: list[bytes] = []
        for event in events:
            kind = type(event)
            if kind is ReplyTextDelta:
                self._text(event, out)  # type: ignore[arg-type]  # narrowed by `kind`, which is faster than isinstance
            elif kind is ReplyArgumentsDelta:
                self._arguments(event, out)  # type: ignore[arg-type]  # as above
            elif not self._ended and not getattr(event, "choice", 0):
                self._other(event, out)
        return b"".join(out)

    def keepalive(self) -> bytes:
        """What may be sent between two feeds while the upstream is silent."""
        return KEEPALIVE

    def _text(self, event: ReplyTextDelta, out: list[bytes]) -> None:
        text = event.text
        if not text or event.choice:
            return
        if self._kind != "message":
            if self._ended or self._reason is not None:
                return
            self._leave(out)
            if self._after:
                if text.isspace() and len(self._space) < _HELD:
                    self._space += text
                    return
                text = self._space + text
                self._after, self._space = False, ""
            self._open_message(out)
        self._delta(text, out)

    def _arguments(self, event: ReplyArgumentsDelta, out: list[bytes]) -> None:
        if event.index != self._index or not event.text or event.choice:
            return  # of a call that is not open, or empty
        if self._blank:
            self._blank = event.text.isspace()
        self._delta(event.text, out)

    def _delta(self, text: str, out: list[bytes]) -> None:
        string = _string(text)
        self._said += string[1:-1]
        out.append(self._template % (self._sequence, string))
        self._sequence += 1
        self._held += len(string)
        if self._held > HELD:
            self._fail(too_large(), out)

    def _other(self, event: ReplyEvent, out: list[bytes]) -> None:
        match event:
            case ReplyStart():
                self._begin(event, out)
            case ReplyReasoningDelta():
                self._think(event, out)
            case ReplyCallStart():
                self._open_call(event, out)
            case ReplyCallEnd():
                if event.index == self._index:
                    self._close(out, complete=event.complete)
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

    def _begin(self, event: ReplyStart | None, out: list[bytes]) -> ResponseObject:
        """The response object; the reply is begun. It keeps its name when another attempt starts."""
        if self._response is None:
            if event is not None:
                self._id = event.id or self._id
                self._created = self._created if event.created is None else event.created
                self._model = event.model or self._model
            self._core = _FOREIGN.sub("", self._id.removeprefix("resp_"))[-_LONGEST:]
            self._response = ResponseObject(self._conversation, id=self._id, created=self._created, model=self._model)
            response = b'"response":' + self._response.write(b"in_progress")
            self._send(b"response.created", response, out)
            self._send(b"response.in_progress", response, out)
        return self._response

    def _send(self, name: bytes, fields: bytes, out: list[bytes]) -> None:
        out.append(b'event: %b\ndata: {"type":"%b","sequence_number":%d,%b}\n\n' % (name, name, self._sequence, fields))
        self._sequence += 1

    # --- items

    def _open(self, kind: Kind, fields: bytes, out: list[bytes]) -> None:
        """Begin an item; `fields` are those that stand in it besides id, type and status."""
        self._begin(None, out)
        self._kind = kind
        self._item = f"{_PREFIXES[kind]}_{self._core}_{len(self._output)}"
        self._place = f'"item_id":"{self._item}","output_index":{len(self._output)}'
        self._said = bytearray()
        item = self._whole(b"in_progress", fields)
        self._send(b"response.output_item.added", b'"output_index":%d,"item":%b' % (len(self._output), item), out)

    def _whole(self, status: bytes, fields: bytes) -> bytes:
        kind = (self._kind or "").encode()
        return b'{"id":"%b","type":"%b","status":"%b",%b}' % (self._item.encode(), kind, status, fields)

    def _close(self, out: list[bytes], *, complete: bool) -> None:
        """End the open item, if there is one. A call that is incomplete never says that its arguments are done."""
        match self._kind:
            case None:
                return
            case "message":
                fields = self._message_done(out)
            case "reasoning":
                fields = self._reasoning_done(out)
            case "function_call" | "custom_tool_call":
                fields = self._call_done(out, complete=complete)
            case _:
                assert_never(self._kind)
        item = self._whole(b"completed" if complete else b"incomplete", fields)
        self._send(b"response.output_item.done", b'"output_index":%d,"item":%b' % (len(self._output), item), out)
        self._output.append(item)
        self._kind, self._index, self._said = None, -1, bytearray()

    def _leave(self, out: list[bytes]) -> None:
        """End the open item, if there is one, because the reply goes on to something else; a call is cut by that."""
        self._close(out, complete=self._index < 0)

    def _joined(self) -> bytes:
        """What the open item holds, as a JSON string."""
        return b'"%b"' % bytes(self._said)

    def _open_message(self, out: list[bytes]) -> None:
        self._open("message", b'"role":"assistant","content":[]', out)
        place = self._place + ',"content_index":0'
        part = b'%b,"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]}' % place.encode()
        self._send(b"response.content_part.added", part, out)
        self._template = _template("response.output_text.delta", place, "delta", ',"logprobs":[]')

    def _message_done(self, out: list[bytes]) -> bytes:
        text, place = self._joined(), (self._place + ',"content_index":0').encode()
        part = b'{"type":"output_text","text":%b,"annotations":[],"logprobs":[]}' % text
        self._send(b"response.output_text.done", b'%b,"text":%b,"logprobs":[]' % (place, text), out)
        self._send(b"response.content_part.done", b'%b,"part":%b' % (place, part), out)
        return b'"role":"assistant","content":[%b]' % part

    def _think(self, event: ReplyReasoningDelta, out: list[bytes]) -> None:
        if not event.text or self._reason is not None:
            return
        if self._kind != "reasoning":
            self._leave(out)
            self._open("reasoning", b'"summary":[]', out)
            place = self._place + ',"summary_index":0'
            part = b'%b,"part":{"type":"summary_text","text":""}' % place.encode()
            self._send(b"response.reasoning_summary_part.added", part, out)
            self._template = _template("response.reasoning_summary_text.delta", place, "delta")
        self._delta(event.text, out)

    def _reasoning_done(self, out: list[bytes]) -> bytes:
        text, place = self._joined(), (self._place + ',"summary_index":0').encode()
        part = b'{"type":"summary_text","text":%b}' % text
        self._send(b"response.reasoning_summary_text.done", b'%b,"text":%b' % (place, text), out)
        self._send(b"response.reasoning_summary_part.done", b'%b,"part":%b' % (place, part), out)
        return b'"summary":[%b]' % part

    def _open_call(self, event: ReplyCallStart, out: list[bytes]) -> None:
        if self._reason is not None:
            return
        self._leave(out)
        self._begin(None, out)
        tool = self._namespaces.get(event.name)
        names = {"call_id": event.id or f"call_{self._core}_{len(self._output)}", "name": event.name}
        if tool is not None and tool.namespace:
            names["name"] = event.name[len(tool.namespace) + 1 :]
            names["namespace"] = tool.namespace
        self._call = wire.encode(names)[1:-1]
        custom = tool is not None and tool.custom
        key = "input" if custom else "arguments"
        self._open("custom_tool_call" if custom else "function_call", b'"%b":"",%b' % (key.encode(), self._call), out)
        name = "response.custom_tool_call_input.delta" if custom else "response.function_call_arguments.delta"
        self._template = _template(name, self._place, "delta")
        self._index = event.index
        self._blank = self._after = True
        self._space = ""

    def _call_done(self, out: list[bytes], *, complete: bool) -> bytes:
        custom = self._kind == "custom_tool_call"
        if not complete:
            self._cut = True
        elif self._blank and not custom:
            self._said += b"{}"
            out.append(self._template % (self._sequence, b'"{}"'))
            self._sequence += 1
        arguments = b'"%b":%b' % (b"input" if custom else b"arguments", self._joined())
        if complete:
            name = b"response.custom_tool_call_input.done" if custom else b"response.function_call_arguments.done"
            self._send(name, b"%b,%b" % (self._place.encode(), arguments), out)
        return b"%b,%b" % (arguments, self._call)

    # --- the end

    def _finish(self, event: ReplyFinish, out: list[bytes]) -> None:
        if self._reason is not None:
            return
        self._begin(None, out)
        stopped = event.reason not in (Reason.LENGTH, Reason.FILTER)
        self._close(out, complete=stopped and self._index < 0)
        self._reason = event.reason

    def _end(self, out: list[bytes]) -> None:
        response = self._begin(None, out)
        if self._reason is None:
            self._fail(UpstreamError("The reply ended without saying why.", code="upstream_closed"), out)
            return
        self._ended = True
        output = b",".join(self._output)
        if self._reason is Reason.FILTER:
            why = "content_filter"
        elif self._cut or self._reason is Reason.LENGTH:
            why = "max_output_tokens"
        else:
            self.response = response.write(b"completed", output, usage=self._usage)
            self._send(b"response.completed", b'"response":' + self.response, out)
            return
        self.response = response.write(b"incomplete", output, usage=self._usage, why=why)
        self._send(b"response.incomplete", b'"response":' + self.response, out)

    def _fail(self, error: StreamtoolError, out: list[bytes]) -> None:
        """The reply breaks: what is open ends as incomplete, so that no client takes it for whole."""
        if self._ended:
            return
        self._ended = True
        response = self._begin(None, out)
        self._close(out, complete=False)
        code = error_code(error)
        fields = {"code": error.code or code, "message": error.message, "param": error.param}
        self._send(b"error", wire.encode(fields)[1:-1], out)
        failed = response.write(b"failed", b",".join(self._output), error={"code": code, "message": error.message})
        self._send(b"response.failed", b'"response":' + failed, out)
