"""Writes reply events as a Responses stream.

What a client may rely on, whatever the upstream did (each is needed by the strictest of the clients in use):
`response.created` first; the name of an event equal to its type; sequence numbers 0, 1, 2 …; items one after the other,
each with its own id and its index, added before anything of it is sent and done before the next; a `done` event and the
final response that hold, byte for byte, what was streamed; arguments that are one JSON object, unless the call is
incomplete; one terminal event, last, which is `response.completed`, `response.incomplete` or, after an `error` event,
`response.failed`. No event is known for a response that was cancelled: it is `response.failed` without an error, and
the response in it says `cancelled`.

Theory of operation. One item is open at a time: a message, reasoning, or a call. A delta of it is a template, made when
the item is opened, and one JSON string; the string is kept as it was written, behind those before it, and the events
that close the item are made of them. So what was sent is what is repeated, and a delta costs the same wherever it
stands. The call of a typed tool is kept until it is whole; the commands of a shell flow, too (`typed_calls`). The ids
of items are the reply's own id with a number: they need no chance, and are new in the conversation because the reply's
id is. White space after a call waits until it is known whether text follows.
"""

import re
from typing import Final, Literal, assert_never

from attrs import Factory, define

from streamtool.conversation import Conversation
from streamtool.errors import ReplyCancelled, StreamtoolError
from streamtool.protocols import wire
from streamtool.protocols.body_sniffer import too_large
from streamtool.protocols.responses.response import ResponseObject, error_code
from streamtool.protocols.responses.typed_calls import SPELLINGS, Spelling, TypedCall
from streamtool.protocols.stream import Out, SpaceAfterCall, StreamWriter, named, no_reason, string
from streamtool.reply import (
    Reason,
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyFinish,
    ReplyReasoningDelta,
    ReplyStart,
    ReplyTextDelta,
    Usage,
)
from streamtool.sse import HELD

Kind = Literal["message", "reasoning", "function_call", "custom_tool_call", "typed"]

_LONGEST: Final = 40  # characters of the reply's id in the id of an item, which has at most 64
_PREFIXES: Final = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
_FOREIGN: Final = re.compile("[^A-Za-z0-9_-]")


def _template(name: str, place: str, key: str, more: str = "") -> bytes:
    """An event of which only the sequence number and one string are missing."""
    return f'event: {name}\ndata: {{"type":"{name}","sequence_number":%d,{place},"{key}":%b{more}}}\n\n'.encode()


@define(eq=False)
class _Item:
    """The item that is open; `kind` None: none is."""

    kind: Kind | None = None
    id: str = ""
    place: str = ""
    """Its id and index, as they stand in its events."""
    template: bytes = b""
    """Of its deltas."""
    said: bytearray = Factory(bytearray)
    """The strings of its deltas, without quotes; in one buffer, since a list takes ten times the memory."""
    fields: bytes = b""
    """Those that name the call."""
    call: int = -1
    """The call's number in the events; -1: no call."""
    blank: bool = True
    """The call has no arguments yet but white space."""
    typed: TypedCall | None = None
    """The call of a typed tool, whose item goes out when it is whole; `call` is not set."""

    @property
    def is_call(self) -> bool:
        """Whatever ends it but its own end cuts it."""
        return self.call >= 0 or self.typed is not None

    def write(self, status: bytes, fields: bytes) -> bytes:
        """The item as JSON."""
        kind = (self.typed.spelling.item if self.typed is not None else self.kind or "").encode()
        return b'{"id":"%b","type":"%b","status":"%b",%b}' % (self.id.encode(), kind, status, fields)

    def joined(self) -> bytes:
        """What it holds, as a JSON string."""
        return b'"%b"' % bytes(self.said)


@define(eq=False)
class _Output:
    """The items that are done, and the name of the next one."""

    core: str = ""
    """The reply's id without its prefix."""
    done: list[bytes] = Factory(list)
    held: int = 0
    """Bytes of all strings, those of the open item included."""
    cut: bool = False
    """A call is incomplete."""

    def id(self, prefix: str) -> str:
        """An id for the next item."""
        return f"{prefix}_{self.core}_{len(self.done)}"

    def joined(self) -> bytes:
        """The items as JSON, without the brackets around them."""
        return b",".join(self.done)


class ReplyWriter(StreamWriter):
    """Writes one streamed reply.

    `id`, `created` and `model` name it unless its `ReplyStart` does. The ids of its calls are the exchange's. Every
    event is written anew, whether or not the upstream speaks this protocol too (`forwards`): its sequence numbers are
    its own.
    """

    __slots__ = (
        "_conversation", "_item", "_name", "_output", "_reason", "_response", "_sequence", "_space", "_tools", "_usage",
        "response",
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
        super().__init__()
        self.response: bytes | None = None
        """The final response object; None before the reply is whole, and when it failed."""
        self._conversation = conversation
        self._name = ReplyStart(id, created, model)
        # tools that the client knows by another name, whose input is not JSON, or whose calls are items of their own
        self._tools = {tool.name: tool for tool in conversation.tools if tool.namespace or tool.custom or tool.kind}
        self._response: ResponseObject | None = None  # None: not begun
        self._sequence = 0
        self._usage = Usage()
        self._item = _Item()
        self._output = _Output()
        self._reason: Reason | None = None
        self._space = SpaceAfterCall()

    def _text(self, event: ReplyTextDelta, out: Out) -> None:
        text = event.text
        if not text or event.choice:
            return
        if self._item.kind != "message":
            if self._ended or self._reason is not None:
                return
            self._leave(out)
            text = self._space.feed(text)
            if not text:
                return
            self._open_message(out)
        self._delta(text, out)

    def _arguments(self, event: ReplyArgumentsDelta, out: Out) -> None:
        if event.index != self._item.call or not event.text or event.choice:
            self._typed_arguments(event, out)  # if not, they are of a call that is not open, or empty
            return
        if self._item.blank:
            self._item.blank = event.text.isspace()
        self._delta(event.text, out)

    def _delta(self, text: str, out: Out) -> None:
        said = string(text)
        item, output = self._item, self._output
        item.said += said[1:-1]
        out.append(item.template % (self._sequence, said))
        self._sequence += 1
        output.held += len(said)
        if output.held > HELD:
            self._fail(too_large(), out)

    # --- the beginning

    def _start(self, event: ReplyStart, out: Out) -> None:
        """The reply keeps its name when another attempt starts."""
        if self._response is None:
            self._name = named(event, self._name)
            self._begin(out)

    def _begin(self, out: Out) -> ResponseObject:
        """The response object; the reply is begun."""
        if self._response is None:
            identity, created, model = self._name.id or "", self._name.created or 0, self._name.model or ""
            self._output.core = _FOREIGN.sub("", identity.removeprefix("resp_"))[-_LONGEST:]
            self._response = ResponseObject(self._conversation, id=identity, created=created, model=model)
            response = b'"response":' + self._response.write(b"in_progress")
            self._send(b"response.created", response, out)
            self._send(b"response.in_progress", response, out)
        return self._response

    def _send(self, name: bytes, fields: bytes, out: Out) -> None:
        out.append(b'event: %b\ndata: {"type":"%b","sequence_number":%d,%b}\n\n' % (name, name, self._sequence, fields))
        self._sequence += 1

    # --- items

    def _open(self, kind: Kind, fields: bytes, out: Out) -> None:
        """Begin an item; `fields` are those that stand in it besides id, type and status."""
        self._begin(out)
        index = len(self._output.done)
        typed = self._item.typed
        prefix = _PREFIXES[kind] if typed is None else typed.spelling.prefix
        self._item = _Item(kind, self._output.id(prefix), typed=typed)
        self._item.place = f'"item_id":"{self._item.id}","output_index":{index}'
        item = self._item.write(b"in_progress", fields)
        self._send(b"response.output_item.added", b'"output_index":%d,"item":%b' % (index, item), out)

    def _end_item(self, out: Out, *, complete: bool) -> None:
        """End the open item, if there is one. A call that is incomplete never says that its arguments are done."""
        match self._item.kind:
            case None:
                return
            case "message":
                fields = self._message_done(out)
            case "reasoning":
                fields = self._reasoning_done(out)
            case "function_call" | "custom_tool_call":
                fields = self._call_done(out, complete=complete)
            case "typed":
                self._end_typed(self._item.typed, out, complete=complete)
                return
            case _:
                assert_never(self._item.kind)
        self._item_done(fields, out, complete=complete)

    def _item_done(self, fields: bytes, out: Out, *, complete: bool) -> None:
        item = self._item.write(b"completed" if complete else b"incomplete", fields)
        index = len(self._output.done)
        self._send(b"response.output_item.done", b'"output_index":%d,"item":%b' % (index, item), out)
        self._output.done.append(item)
        self._item = _Item()

    def _leave(self, out: Out) -> None:
        """End the open item, if there is one, because the reply goes on to something else; a call is cut by that."""
        self._end_item(out, complete=not self._item.is_call)

    def _open_message(self, out: Out) -> None:
        self._open("message", b'"role":"assistant","content":[]', out)
        place = self._item.place + ',"content_index":0'
        part = b'%b,"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]}' % place.encode()
        self._send(b"response.content_part.added", part, out)
        self._item.template = _template("response.output_text.delta", place, "delta", ',"logprobs":[]')

    def _message_done(self, out: Out) -> bytes:
        text, place = self._item.joined(), (self._item.place + ',"content_index":0').encode()
        part = b'{"type":"output_text","text":%b,"annotations":[],"logprobs":[]}' % text
        self._send(b"response.output_text.done", b'%b,"text":%b,"logprobs":[]' % (place, text), out)
        self._send(b"response.content_part.done", b'%b,"part":%b' % (place, part), out)
        return b'"role":"assistant","content":[%b]' % part

    def _reasoning(self, event: ReplyReasoningDelta, out: Out) -> None:
        if not event.text or event.choice or self._reason is not None:
            return
        if self._item.kind != "reasoning":
            self._leave(out)
            self._open("reasoning", b'"summary":[]', out)
            place = self._item.place + ',"summary_index":0'
            part = b'%b,"part":{"type":"summary_text","text":""}' % place.encode()
            self._send(b"response.reasoning_summary_part.added", part, out)
            self._item.template = _template("response.reasoning_summary_text.delta", place, "delta")
        self._delta(event.text, out)

    def _reasoning_done(self, out: Out) -> bytes:
        text, place = self._item.joined(), (self._item.place + ',"summary_index":0').encode()
        part = b'{"type":"summary_text","text":%b}' % text
        self._send(b"response.reasoning_summary_text.done", b'%b,"text":%b' % (place, text), out)
        self._send(b"response.reasoning_summary_part.done", b'%b,"part":%b' % (place, part), out)
        return b'"summary":[%b]' % part

    def _open_call(self, event: ReplyCallStart, out: Out) -> None:
        if event.choice or self._reason is not None:
            return
        self._leave(out)
        self._begin(out)
        tool = self._tools.get(event.name)
        self._space.begin()
        if tool is not None and tool.kind:
            self._open_typed(event, SPELLINGS[tool.kind], out)
            return
        names = {"call_id": event.id or self._output.id("call"), "name": event.name}
        if tool is not None and tool.namespace:
            names["name"] = event.name[len(tool.namespace) + 1 :]
            names["namespace"] = tool.namespace
        named_by = wire.encode(names)[1:-1]
        custom = tool is not None and tool.custom
        key = "input" if custom else "arguments"
        self._open("custom_tool_call" if custom else "function_call", b'"%b":"",%b' % (key.encode(), named_by), out)
        name = "response.custom_tool_call_input.delta" if custom else "response.function_call_arguments.delta"
        self._item.template = _template(name, self._item.place, "delta")
        self._item.call, self._item.fields = event.index, named_by

    def _close_call(self, event: ReplyCallEnd, out: Out) -> None:
        typed = self._item.typed
        if event.index == (self._item.call if typed is None else typed.index) and not event.choice:
            self._end_item(out, complete=event.complete)

    def _call_done(self, out: Out, *, complete: bool) -> bytes:
        custom = self._item.kind == "custom_tool_call"
        if not complete:
            self._output.cut = True
        elif self._item.blank and not custom:
            self._item.said += b"{}"
            out.append(self._item.template % (self._sequence, b'"{}"'))
            self._sequence += 1
        arguments = b'"%b":%b' % (b"input" if custom else b"arguments", self._item.joined())
        if complete:
            name = b"response.custom_tool_call_input.done" if custom else b"response.function_call_arguments.done"
            self._send(name, b"%b,%b" % (self._item.place.encode(), arguments), out)
        return b"%b,%b" % (arguments, self._item.fields)

    # --- calls of typed tools

    def _open_typed(self, event: ReplyCallStart, spelling: Spelling, out: Out) -> None:
        typed = TypedCall(event.index, len(self._output.done), event.id or self._output.id("call"), spelling)
        self._item = _Item("typed", typed=typed)
        if spelling.begins is not None:
            self._open("typed", typed.fields(spelling.begins), out)

    def _typed_arguments(self, event: ReplyArgumentsDelta, out: Out) -> None:
        typed = self._item.typed
        if typed is None or event.index != typed.index or event.choice:
            return
        self._output.held += typed.feed(event.text)
        if self._output.held > HELD:
            self._fail(too_large(), out)
            return
        for name, fields in typed.told(event.text):
            self._send(name, fields, out)

    def _end_typed(self, typed: TypedCall | None, out: Out, *, complete: bool) -> None:
        """End the call with the items that its arguments make; a call that is cut, or makes none, is incomplete."""
        assert typed is not None  # noqa: S101  it is what is open
        items, left = typed.close() if complete else ([], [])
        for name, fields in left:
            self._send(name, fields, out)
        if not items:
            self._output.cut = True
            if self._item.id:
                self._item_done(typed.fields(typed.spelling.begins or {}), out, complete=False)
            self._item = _Item()
        for number, own in enumerate(items):
            fields = typed.fields(own, number)
            if not self._item.id:
                self._item.typed = typed
                self._open("typed", fields, out)
            self._item_done(fields, out, complete=True)

    # --- the end

    def _finish(self, event: ReplyFinish, out: Out) -> None:
        if event.choice or self._reason is not None:
            return
        self._begin(out)
        stopped = event.reason not in (Reason.LENGTH, Reason.FILTER)
        self._end_item(out, complete=stopped and not self._item.is_call)
        self._reason = event.reason

    def _count(self, usage: Usage) -> None:
        self._usage = usage

    def _end(self, out: Out) -> None:
        response = self._begin(out)
        if self._reason is None:
            self._fail(no_reason(), out)
            return
        self._ended = True
        cut = self._output.cut or self._reason is Reason.LENGTH
        why = "content_filter" if self._reason is Reason.FILTER else "max_output_tokens" if cut else None
        status = b"completed" if why is None else b"incomplete"
        self.response = response.write(status, self._output.joined(), usage=self._usage, why=why)
        self._send(b"response." + status, b'"response":' + self.response, out)

    def _fail(self, error: StreamtoolError, out: Out) -> None:
        """The reply breaks: what is open ends as incomplete, so that no client takes it for whole."""
        if self._ended:
            return
        self._ended = True
        response = self._begin(out)
        self._end_item(out, complete=False)
        output = self._output.joined()
        if isinstance(error, ReplyCancelled):
            failed = response.write(b"cancelled", output)
        else:
            code = error_code(error)
            fields = {"code": error.code or code, "message": error.message, "param": error.param}
            self._send(b"error", wire.encode(fields)[1:-1], out)
            failed = response.write(b"failed", output, error={"code": code, "message": error.message})
        self._send(b"response.failed", b'"response":' + failed, out)
