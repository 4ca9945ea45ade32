"""Writer for a Responses stream.

Guarantees to the client, whatever the upstream sends (each is required by at least one client in use):
- `response.created` is the first event. An event's name equals its type. Sequence numbers are 0, 1, 2 …
- Each item has its own id and index. It is added before any of its content is sent, and it is done before the next item
  is added, unless it is an incomplete call whose arguments are not JSON; such a call is never done.
- The `done` events and the final response contain exactly the content that was streamed.
- Arguments are one JSON object, unless the call is incomplete; then nothing can repair them (`UNREPAIRABLE`).
- The last event is `response.completed`, `response.incomplete` or, after an `error` event, `response.failed`. The
  protocol has no event for a cancelled response: its stream ends with `response.failed`, without an `error` event, and
  its status is `cancelled`.

Theory of operation. One item is open at a time: a message, reasoning or a call. A delta is one JSON string, inserted
into a template that is built when the item opens. The text is added to an excerpt of what the model has written, from
which the events that close the item are built. Repeated content is therefore identical to the streamed content, and the
cost of a delta does not depend on its position. A call to a typed tool is buffered until it is complete, but shell
commands are streamed (`typed_calls`). An item's id is built from the reply's own id and a number; it requires no
randomness, and it is unique in the conversation because the reply's id is unique. Whitespace after a call is buffered
until text follows.
"""

import re
from typing import Final, Literal, assert_never

from attrs import Factory, define

from streamtool.core.conversation import Conversation
from streamtool.core.errors import ReplyCancelled, StreamtoolError, UpstreamError
from streamtool.core.excerpt import Excerpt
from streamtool.core.reply import (
    NO_USAGE,
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
from streamtool.core.sse import MAX_BUFFERED
from streamtool.protocols.responses.response import ResponseObject, error_code
from streamtool.protocols.responses.typed_calls import FORMATS_BY_TOOL, CallFormat, TypedCall
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.body_sniffer import too_large_error
from streamtool.protocols.shared.stream import (
    UNREPAIRABLE,
    Out,
    SpaceAfterCall,
    StreamWriter,
    json_string,
    malformed_call_error,
    merge_start,
    no_reason_error,
)

ItemKind = Literal["message", "reasoning", "function_call", "custom_tool_call", "typed"]

_LONGEST: Final = 40  # maximum length of the reply's id within an item id, which is limited to 64 characters
_PREFIXES: Final = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
_FOREIGN: Final = re.compile("[^A-Za-z0-9_-]")


def _template(name: str, place: str, key: str, more: str = "") -> bytes:
    """Return the template of an event, which lacks only the sequence number and one string."""
    return f'event: {name}\ndata: {{"type":"{name}","sequence_number":%d,{place},"{key}":%b{more}}}\n\n'.encode()


@define(eq=False)
class _Item:
    """State of the open item; `kind` is None if no item is open."""

    kind: ItemKind | None = None
    id: str = ""
    location: str = ""
    """The item's id and index, as JSON fields for the item's events."""
    template: bytes = b""
    """Template of the item's deltas."""
    content: Excerpt = Factory(Excerpt)
    """Text of the item's deltas."""
    ending: bytes = b""
    """JSON characters that follow the text."""
    fields: bytes = b""
    """JSON fields that identify the call."""
    call: int = -1
    """Index of the open call in the reply events; -1 if the item is not a call."""
    blank: bool = True
    """Whether the call's arguments have been only whitespace so far."""
    typed: TypedCall | None = None
    """Call, if the item is a call to a typed tool; `call` is not set in this case."""

    @property
    def is_call(self) -> bool:
        """Whether the item is a call. Unlike other items, a call is truncated if it is ended by anything other than its
        own end event.
        """
        return self.call >= 0 or self.typed is not None

    @property
    def is_raw(self) -> bool:
        """Whether the item is a call whose arguments are not sent as JSON."""
        return self.kind in ("custom_tool_call", "typed")

    def write(self, status: bytes, fields: bytes) -> bytes:
        """Return the item as JSON."""
        kind = (self.typed.spelling.item if self.typed is not None else self.kind or "").encode()
        return b'{"id":"%b","type":"%b","status":"%b",%b}' % (self.id.encode(), kind, status, fields)

    def joined(self) -> bytes:
        """Return the item's content as a JSON string."""
        return b'"%b%b"' % (json_string(str(self.content))[1:-1], self.ending)


@define(eq=False)
class _Output:
    """Finished items, and the data from which the ids of items are built."""

    core: str = ""
    """The reply's id without its prefix."""
    done: list[bytes] = Factory(list)
    """The items in order; b"" for one that ended without being done."""
    held: int = 0
    """Number of bytes in the strings of all items, including the open item."""
    cut: bool = False
    """Whether a call is incomplete."""
    lost: bool = False
    """Whether an incomplete call is not done, so that the client cannot answer it."""

    def id(self, prefix: str) -> str:
        """Return the id for the next item."""
        return f"{prefix}_{self.core}_{len(self.done)}"

    def joined(self) -> bytes:
        """Return the items as JSON, without the surrounding brackets."""
        return b",".join(filter(None, self.done))


class ReplyWriter(StreamWriter):
    """Writer for one streamed reply.

    `id`, `created` and `model` are used unless the `ReplyStart` contains its own values. Call ids come from the
    exchange. Events are never forwarded, even if the upstream speaks this protocol too (`forwards`), because the
    sequence numbers differ.
    """

    __slots__ = (
        "_conversation",
        "_item",
        "_name",
        "_output",
        "_reason",
        "_response",
        "_sequence",
        "_space",
        "_tools",
        "_usage",
        "failure",
        "response",
    )

    def __init__(
        self,
        conversation: Conversation,
        *,
        id: str,
        created: int,
        model: str,
        forwards: bool = False,  # noqa: ARG002  all writers have the same parameters
    ) -> None:
        super().__init__()
        self.response: bytes | None = None
        """Final response object; None if the reply is not complete yet or has failed."""
        self.failure: StreamtoolError | None = None
        """The error that has ended the reply."""
        self._conversation = conversation
        self._name = ReplyStart(id, created, model)
        # tools that the client knows by a different name, that accept non-JSON input, or that have their own item type
        self._tools = {tool.name: tool for tool in conversation.tools if tool.namespace or tool.custom or tool.kind}
        self._response: ResponseObject | None = None  # None before the reply begins
        self._sequence = 0
        self._usage = NO_USAGE
        self._item = _Item()
        self._output = _Output()
        self._reason: Reason | None = None
        self._space = SpaceAfterCall()

    def text(self, event: ReplyTextDelta) -> bytes:
        out: Out = []
        text = event.text
        if not text or event.choice:
            return b""
        if self._item.kind != "message":
            if self._ended or self._reason is not None:
                return b""
            # Items never overlap: an open call or reasoning item ends before the message is added. Whitespace after a
            # call does not add a message unless other text follows.
            self._end_item_early(out)
            text = self._space.feed(text)
            if text:
                self._open_message(out)
        if text:
            self._delta(text, out)
        return b"".join(out)

    def arguments(self, event: ReplyArgumentsDelta) -> bytes:
        out: Out = []
        if event.index != self._item.call or not event.text or event.choice:
            self._typed_arguments(event, out)  # typed call, call that is not open, or no text
            return b"".join(out)
        if self._item.blank:
            self._item.blank = event.text.isspace()
        self._delta(event.text, out)
        return b"".join(out)

    def _delta(self, text: str, out: Out) -> None:
        said = json_string(text)
        item, output = self._item, self._output
        item.content.add(text if text.isascii() else wire.repaired_text(text))
        out.append(item.template % (self._sequence, said))
        self._sequence += 1
        output.held += len(said)
        if output.held > MAX_BUFFERED:
            self._fail(too_large_error(), out)

    # --- the beginning

    def _start(self, event: ReplyStart, out: Out) -> None:
        """Begin the reply. If another attempt starts, the reply's id, time and model remain the same."""
        if self._response is None:
            self._name = merge_start(event, self._name)
            self._begin(out)

    def _begin(self, out: Out) -> ResponseObject:
        """Begin the reply, unless it has already begun, and return its response object."""
        if self._response is None:
            identity, created, model = self._name.id or "", self._name.created or 0, self._name.model or ""
            self._output.core = _FOREIGN.sub("", identity.removeprefix("resp_"))[-_LONGEST:]
            self._response = ResponseObject(self._conversation, id=identity, created=created, model=model)
            # `response.created` precedes everything else, even if the reply fails before it has any content.
            response = b'"response":' + self._response.write(b"in_progress")
            self._send(b"response.created", response, out)
            self._send(b"response.in_progress", response, out)
        return self._response

    def _send(self, name: bytes, fields: bytes, out: Out) -> None:
        out.append(b'event: %b\ndata: {"type":"%b","sequence_number":%d,%b}\n\n' % (name, name, self._sequence, fields))
        self._sequence += 1

    # --- items

    def _open(self, kind: ItemKind, fields: bytes, out: Out) -> None:
        """Begin an item. `fields` are the item's JSON fields other than its id, type and status."""
        self._begin(out)
        index = len(self._output.done)
        typed = self._item.typed
        prefix = _PREFIXES[kind] if typed is None else typed.spelling.prefix
        self._item = _Item(kind, self._output.id(prefix), content=self.excerpt(0), typed=typed)
        self._item.location = f'"item_id":"{self._item.id}","output_index":{index}'
        # The item is added before any of its content is sent. Its index is the number of finished items, because only
        # one item is open at a time.
        item = self._item.write(b"in_progress", fields)
        self._send(b"response.output_item.added", b'"output_index":%d,"item":%b' % (index, item), out)

    def _end_item(self, out: Out, *, complete: bool) -> None:
        """End the open item, if there is one. No `done` event is sent for the arguments of an incomplete call."""
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
        item = b""
        # Codex executes each call that is done, whatever its status. Only JSON can be made unreadable.
        if self._item.is_raw and not complete:
            self._output.lost = True
        else:
            item = self._item.write(b"completed" if complete else b"incomplete", fields)
            index = len(self._output.done)
            self._send(b"response.output_item.done", b'"output_index":%d,"item":%b' % (index, item), out)
        self._output.done.append(item)
        self._item = _Item()

    def _end_item_early(self, out: Out) -> None:
        """End the open item, if there is one, because other content follows. If the item is a call, the call is
        truncated.
        """
        self._end_item(out, complete=not self._item.is_call)

    def _open_message(self, out: Out) -> None:
        self._open("message", b'"role":"assistant","content":[]', out)
        # A message has one content part, which is added before the first delta and is done before the message's item is
        # done.
        place = self._item.location + ',"content_index":0'
        part = b'%b,"part":{"type":"output_text","text":"","annotations":[],"logprobs":[]}' % place.encode()
        self._send(b"response.content_part.added", part, out)
        self._item.template = _template("response.output_text.delta", place, "delta", ',"logprobs":[]')

    def _message_done(self, out: Out) -> bytes:
        text, place = self._item.joined(), (self._item.location + ',"content_index":0').encode()
        part = b'{"type":"output_text","text":%b,"annotations":[],"logprobs":[]}' % text
        self._send(b"response.output_text.done", b'%b,"text":%b,"logprobs":[]' % (place, text), out)
        self._send(b"response.content_part.done", b'%b,"part":%b' % (place, part), out)
        return b'"role":"assistant","content":[%b]' % part

    def _reasoning(self, event: ReplyReasoningDelta, out: Out) -> None:
        if not event.text or event.choice or self._reason is not None:
            return
        if self._item.kind != "reasoning":
            self._end_item_early(out)
            self._open("reasoning", b'"summary":[]', out)
            place = self._item.location + ',"summary_index":0'
            part = b'%b,"part":{"type":"summary_text","text":""}' % place.encode()
            self._send(b"response.reasoning_summary_part.added", part, out)
            self._item.template = _template("response.reasoning_summary_text.delta", place, "delta")
        self._delta(event.text, out)

    def _reasoning_done(self, out: Out) -> bytes:
        text, place = self._item.joined(), (self._item.location + ',"summary_index":0').encode()
        part = b'{"type":"summary_text","text":%b}' % text
        self._send(b"response.reasoning_summary_text.done", b'%b,"text":%b' % (place, text), out)
        self._send(b"response.reasoning_summary_part.done", b'%b,"part":%b' % (place, part), out)
        return b'"summary":[%b]' % part

    def _open_call(self, event: ReplyCallStart, out: Out) -> None:
        if event.choice or self._reason is not None:
            return
        self._end_item_early(out)
        self._begin(out)
        tool = self._tools.get(event.name)
        self._space.call_written()
        if tool is not None and tool.kind:
            self._open_typed(event, FORMATS_BY_TOOL[tool.kind], out)
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
        self._item.template = _template(name, self._item.location, "delta")
        self._item.call, self._item.fields = event.index, named_by

    def _close_call(self, event: ReplyCallEnd, out: Out) -> None:
        typed = self._item.typed
        if event.index == (self._item.call if typed is None else typed.index) and not event.choice:
            self._end_item(out, complete=event.complete)

    def _call_done(self, out: Out, *, complete: bool) -> bytes:
        custom = self._item.kind == "custom_tool_call"
        if not complete:
            self._output.cut = True
            if not custom:
                self._item.ending = UNREPAIRABLE[1:-1]
                out.append(self._item.template % (self._sequence, UNREPAIRABLE))
                self._sequence += 1
        elif self._item.blank and not custom:
            # The missing object is sent as a delta too, so that the joined deltas equal the arguments in the `done`
            # event.
            self._item.ending = b"{}"
            out.append(self._item.template % (self._sequence, b'"{}"'))
            self._sequence += 1
        arguments = b'"%b":%b' % (b"input" if custom else b"arguments", self._item.joined())
        # A `done` event is sent only for a complete call's arguments, so that no client mistakes a truncated call for a
        # complete one.
        if complete:
            name = b"response.custom_tool_call_input.done" if custom else b"response.function_call_arguments.done"
            self._send(name, b"%b,%b" % (self._item.location.encode(), arguments), out)
        return b"%b,%b" % (arguments, self._item.fields)

    # --- calls of typed tools

    def _open_typed(self, event: ReplyCallStart, spelling: CallFormat, out: Out) -> None:
        typed = TypedCall(event.index, len(self._output.done), event.id or self._output.id("call"), spelling)
        self._item = _Item("typed", typed=typed)
        if spelling.initial_fields is not None:
            self._open("typed", typed.fields(spelling.initial_fields), out)

    def _typed_arguments(self, event: ReplyArgumentsDelta, out: Out) -> None:
        typed = self._item.typed
        if typed is None or event.index != typed.index or event.choice:
            return
        self._output.held += typed.feed(event.text)
        if self._output.held > MAX_BUFFERED:
            self._fail(too_large_error(), out)
            return
        for name, fields in typed.command_events(event.text):
            self._send(name, fields, out)

    def _end_typed(self, typed: TypedCall | None, out: Out, *, complete: bool) -> None:
        """End the call with the items made from its arguments. The call is incomplete if it is truncated or if its
        arguments form no valid items.
        """
        assert typed is not None  # noqa: S101  the caller has checked that it is open
        items, left = typed.close() if complete else ([], [])
        # Events for commands that have not been sent yet precede the item that repeats all commands.
        for name, fields in left:
            self._send(name, fields, out)
        if not items:
            self._output.cut = self._output.lost = True
            # An item without an id was never added.
            if self._item.id:
                self._item_done(typed.fields(typed.spelling.initial_fields or {}), out, complete=False)
            self._item = _Item()
        for number, own in enumerate(items):
            fields = typed.fields(own, number)
            # This adds all items after the first, and a first item that could not be added before its arguments were
            # known.
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
        # A token limit or filter truncates a message or reasoning item that is open here. A call that is open here
        # never ended, so it is incomplete in any case.
        self._end_item(out, complete=stopped and not self._item.is_call)
        self._reason = event.reason

    def _count(self, usage: Usage) -> None:
        self._usage = usage

    def _end(self, out: Out) -> None:
        # The terminal event is delayed until this point, because it contains the usage, which the upstream reports
        # after the finish.
        response = self._begin(out)
        if self._reason is None:
            self._fail(no_reason_error(), out)
            return
        length = self._reason is Reason.LENGTH
        # After an error, Codex tries again; after any other end without a call that it can answer, it stops.
        if length and self._output.cut and self._conversation.options.max_tokens is None:
            self._fail(UpstreamError("the upstream's own limit cut a call", code="truncated_call"), out)
            return
        if self._output.lost and self._reason not in (Reason.LENGTH, Reason.FILTER):
            self._fail(malformed_call_error(), out)
            return
        self._ended = True
        why = "content_filter" if self._reason is Reason.FILTER else "max_output_tokens" if length else None
        status = b"completed" if why is None else b"incomplete"
        self.response = response.write(status, self._output.joined(), usage=self._usage, why=why)
        self._send(b"response." + status, b'"response":' + self.response, out)

    def _fail(self, error: StreamtoolError, out: Out) -> None:
        """Fail the reply. The open item ends as incomplete, so that no client mistakes it for a complete one."""
        if self._ended:
            return
        self._ended, self.failure = True, error
        response = self._begin(out)
        # The open item ends first, and `error` follows; `response.failed` is sent last, because it is the terminal
        # event.
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
