"""Reader for the content of one choice in an upstream's reply: text, reasoning and native calls.

Facts about upstreams:
- Most send a call's name in one piece, and then omit it, or send null or "". Some repeat the whole name with each piece
  of the arguments. A few send the name itself in pieces, with other events between them. A name that may continue is
  therefore announced only when its arguments begin, or at the end. A name that no offered tool has may always continue,
  since its first piece may be a namespace. Text and reasoning pass a call that has not been announced.
"""

from collections.abc import Collection
from typing import Final

from attrs import Factory, define

from streamtool.core.json_value import Json
from streamtool.core.reply import (
    Reason,
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyReasoningDelta,
    ReplyTextDelta,
)
from streamtool.protocols.chat.signature import signature_of
from streamtool.protocols.shared import wire
from streamtool.protocols.shared.stream import Events

CallKey = int | str | None

_LEGACY: Final = "function_call"  # key of the single legacy call, which has neither an index nor an id


@define(eq=False)
class _Call:
    """Unfinished call. `number` stays None until the call has a name and can be announced."""

    key: CallKey
    id: str | None
    name: str | None = None
    custom: bool = False
    begun: bool = False
    """Whether its arguments have begun: text other than whitespace has arrived."""
    cumulative: bool | None = None
    """Whether each delta repeats all arguments so far; None until the second delta shows whether it may be so."""
    repeated: str | None = None
    """A delta that repeats the arguments before it, until it is known whether all do."""
    pieces: list[str] = Factory(list)
    joiner: wire.Joiner = Factory(wire.Joiner)
    number: int | None = None
    signature: str | None = None

    def added(self, delta: str) -> str:
        """Return the part of a delta of the arguments that is known to be new. A delta that begins with all arguments
        so far is buffered, until the next one shows whether the stream is cumulative.
        """
        if self.cumulative is False or self.custom or not self.begun:
            return delta
        before = "".join(self.pieces) if self.repeated is None else self.repeated
        grows = self.repeated is None or len(delta) > len(before)
        if not (before.lstrip().startswith("{") and delta.startswith(before) and grows):
            kept = (self.repeated or "") if self.cumulative is None else ""
            self.repeated, self.cumulative = None, False
            return kept + delta
        if self.cumulative is None and self.repeated is None:
            self.repeated = delta
            return ""
        so_far, self.cumulative, self.repeated = len("".join(self.pieces)), True, delta
        return delta[so_far:]

    def rest(self) -> str:
        """Return what `added` has buffered, at the end of the call."""
        delta, self.repeated = self.repeated, None
        if delta is None or self.cumulative:
            return ""
        before = "".join(self.pieces)
        grows = len(delta) > len(before) and wire.is_object(delta) and not wire.is_object(before + delta)
        return delta[len(before) :] if grows else delta


class ChoiceReader:
    """Reader for the deltas of one choice.

    `plain` means that text may be forwarded: no call is open, no incomplete character is buffered, and the choice has
    not ended. `buffered` is the number of buffered characters: the open call's arguments, which are kept to detect when
    they are complete, and everything queued until that call ends.
    """

    __slots__ = (
        "_calls",
        "_keys",
        "_open",
        "_queued_calls",
        "_queued_text",
        "_reasoning",
        "_text",
        "_tool_names",
        "buffered",
        "finished",
        "index",
        "plain",
        "reason",
    )

    def __init__(self, index: int, tool_names: Collection[str] = ()) -> None:
        self.index = index
        self._tool_names = tool_names
        self.plain = True
        self.finished = False
        self.buffered = 0
        self.reason: Reason | None = None
        self._text = wire.Joiner()
        self._reasoning = wire.Joiner()
        self._open: _Call | None = None
        self._calls = 0
        self._keys: set[CallKey] | None = None  # of the calls that have begun; most upstreams make none
        self._queued_calls: list[_Call] = []  # calls that began before the open call was complete
        self._queued_text: list[ReplyTextDelta | ReplyReasoningDelta] = []

    def read(self, choice: dict[str, Json], events: Events) -> None:
        """Read one entry of `choices`, from a chunk or a whole reply."""
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice.get("message")
        if not isinstance(delta, dict):
            delta = {"content": choice.get("text")}
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(reasoning, str):
            self._think(reasoning, events)
        self._content(delta.get("content"), events)
        self._content(delta.get("refusal"), events)
        calls = delta.get("tool_calls")
        for item in calls if isinstance(calls, list) else ():
            if isinstance(item, dict):
                self._fragment(item, events)
        legacy = delta.get("function_call")
        if isinstance(legacy, dict):
            self._fragment({"id": None, "index": _LEGACY, "function": legacy}, events)
        self.plain = self._open is None and not self._text.holds

    def close(self, events: Events, *, cut: bool) -> None:
        """End the choice; `cut` means that the upstream truncated it."""
        self.finished = True
        self.plain = False
        self._end_call(events, cut=cut and not self._queued_calls)
        for call in self._queued_calls:
            self._open = call
            self._announce(events)
            self._end_call(events, cut=cut and call is self._queued_calls[-1])
        events.extend(self._queued_text)
        for joiner, kind in ((self._reasoning, ReplyReasoningDelta), (self._text, ReplyTextDelta)):
            rest = joiner.close()
            if rest:
                events.append(kind(self.index, rest))

    # --- text and reasoning

    def _content(self, content: Json, events: Events) -> None:
        """Read content that is a string or a list of parts, and ignore anything else."""
        if isinstance(content, str):
            text = self._text.feed(content)
            if text:
                self._emit_or_queue(ReplyTextDelta(self.index, text), events)
        elif isinstance(content, list):
            for part in content:
                self._part(part, events)

    def _part(self, part: Json, events: Events) -> None:
        if isinstance(part, str):
            self._content(part, events)
        elif isinstance(part, dict):
            for key in ("text", "refusal"):
                if isinstance(part.get(key), str):
                    self._content(part[key], events)
            thinking = part.get("thinking", part.get("reasoning"))
            for piece in thinking if isinstance(thinking, list) else [thinking]:
                text = piece.get("text") if isinstance(piece, dict) else piece
                if isinstance(text, str):
                    self._think(text, events)

    def _think(self, text: str, events: Events) -> None:
        text = self._reasoning.feed(text)
        if text:
            self._emit_or_queue(ReplyReasoningDelta(self.index, text), events)

    def _emit_or_queue(self, event: ReplyTextDelta | ReplyReasoningDelta, events: Events) -> None:
        unannounced = self._open is not None and self._open.number is None and not self._queued_text
        if unannounced or self._may_leave(events):
            events.append(event)
        else:
            self._queued_text.append(event)
            self.buffered += len(event.text)

    # --- calls

    def _fragment(self, item: dict[str, Json], events: Events) -> None:
        """Read one entry of `tool_calls`: the beginning of a call, or more of its arguments."""
        inner = item.get("function")
        custom = not isinstance(inner, dict) and isinstance(item.get("custom"), dict)
        if custom:
            inner = item["custom"]
        if not isinstance(inner, dict):
            inner = {}
        identity = item.get("id") if isinstance(item.get("id"), str) and item["id"] else None
        name = inner.get("name") if isinstance(inner.get("name"), str) and inner["name"] else None
        call = self._find(item.get("index"), identity, name, events)
        if call is None:
            return
        call.custom = call.custom or custom
        call.id = call.id or (wire.repaired(identity) if identity else None)
        if name and call.number is None:
            call.name = self._joined(call.name, wire.repaired(name))
        call.signature = call.signature or signature_of(item)
        pieces = len(call.pieces)
        arguments = inner.get("input" if custom else "arguments")
        if arguments is not None and not isinstance(arguments, str):
            arguments = wire.encode(arguments).decode()
        if isinstance(arguments, str) and arguments:
            self.buffered += len(arguments)
            arguments = call.added(arguments)
            call.pieces.append(call.joiner.feed(arguments))
            call.begun = call.begun or not (arguments.isspace() or not arguments)
        if call is not self._open:
            return
        if call.number is None:
            if call.begun or not self._may_continue(call.name):
                self._announce(events)
        else:
            events.extend(ReplyArgumentsDelta(self.index, call.number, text) for text in call.pieces[pieces:] if text)

    def _find(self, index: Json, identity: str | None, name: str | None, events: Events) -> _Call | None:
        """Return the call that a fragment belongs to, creating it if it is new, or None if the call has ended."""
        known = [*self._queued_calls, self._open] if self._open is not None else []
        key: CallKey = index if isinstance(index, int | str) else None
        for call in reversed(known):
            if key is not None:
                same = call.key == key
            elif identity is not None:
                same = name is None or identity == call.id
            else:
                same = name is None or self._continues(call, name)
            # Some upstreams number every call 0, so that only the id distinguishes one call from another.
            if same and not (name and identity and call.id and identity != call.id):
                return call
        if self._keys is None:
            self._keys = set()
        if key in self._keys and not (name and (identity or key is None)):
            return None
        call = _Call(key, identity)
        self._keys.add(key)
        if self._may_leave(events):
            self._open = call
        else:
            self._queued_calls.append(call)
        return call

    def _may_leave(self, events: Events) -> bool:
        """Return whether events that do not belong to the open call may be emitted. If the call's arguments are
        complete, end it first.
        """
        if self._open is None:
            return True
        if self._queued_calls or self._queued_text or not wire.is_object("".join(self._open.pieces)):
            return False
        self._end_call(events, cut=False)
        return True

    def _joined(self, before: str | None, piece: str) -> str:
        """Return the name after another piece of it, which may repeat the name so far."""
        if before is None:
            return piece
        joined = before + piece
        if any(name.startswith(joined) for name in self._tool_names):
            return joined
        if piece.startswith(before):
            return piece
        return before if before in self._tool_names and piece in self._tool_names else joined

    def _continues(self, call: _Call, piece: str) -> bool:
        """Return whether a name without an index and an id continues that of a call, rather than begins a call."""
        if call.name is None or call.number is not None or piece in self._tool_names:
            return False
        return any(tool.startswith(call.name + piece) for tool in self._tool_names)

    def _may_continue(self, name: str | None) -> bool:
        """Return whether the name may be only the beginning of a name. If no tools are offered, no name is."""
        if name is None or not self._tool_names:
            return False
        longer = any(len(tool) > len(name) and tool.startswith(name) for tool in self._tool_names)
        return longer or name not in self._tool_names

    def _announce(self, events: Events) -> None:
        call = self._open
        if call is None or call.name is None:
            return
        call.number = self._calls
        self._calls += 1
        events.append(ReplyCallStart(self.index, call.number, call.id, call.name, call.signature))
        events.extend(ReplyArgumentsDelta(self.index, call.number, text) for text in call.pieces if text)

    def _end_call(self, events: Events, *, cut: bool) -> None:
        call = self._open
        if call is None:
            return
        rest = call.joiner.feed(call.rest()) + call.joiner.close()
        if call.number is None:
            self._announce(events)
        self._open = None
        if call.number is None:  # a call that never received a name
            return
        if rest:
            call.pieces.append(rest)
            events.append(ReplyArgumentsDelta(self.index, call.number, rest))
        unchecked = call.custom or not any(map(str.strip, call.pieces))
        complete = not cut if unchecked else wire.is_object("".join(call.pieces))
        events.append(ReplyCallEnd(self.index, call.number, complete))
