"""Reads what one choice of an upstream's reply says: text, reasoning, and calls that the upstream made natively."""

from typing import Any, Final

from attrs import Factory, define

from streamtool.protocols import wire
from streamtool.protocols.chat.signature import signature_of
from streamtool.reply import (
    Reason,
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyEvent,
    ReplyReasoningDelta,
    ReplyTextDelta,
)

Json = Any  # a decoded JSON value
Key = int | str | None
Events = list[ReplyEvent]

_LEGACY: Final = "function_call"  # the key of the one call that has neither index nor id


@define(eq=False)
class _Call:
    """A call whose end has not been seen. `number` None: not announced yet, its name or its turn has not come."""

    key: Key
    id: str | None
    name: str | None = None
    custom: bool = False
    pieces: list[str] = Factory(list)
    joiner: wire.Joiner = Factory(wire.Joiner)
    number: int | None = None
    signature: str | None = None


class ChoiceReader:
    """Reads the deltas of one choice.

    `plain` says that text may pass: no call is open, no half of a character is held, nothing is over. `kept` counts
    the characters of what was kept: arguments, to tell whether they are whole, and what waits for the end of a call.
    """

    __slots__ = (
        "_calls", "_keys", "_late", "_late_text", "_open", "_reasoning", "_text",
        "finished", "index", "kept", "plain", "reason",
    )  # fmt: skip

    def __init__(self, index: int) -> None:
        self.index = index
        self.plain = True
        self.finished = False
        self.kept = 0
        self.reason: Reason | None = None
        self._text = wire.Joiner()
        self._reasoning = wire.Joiner()
        self._open: _Call | None = None
        self._calls = 0
        self._keys: set[Key] = set()
        self._late: list[_Call] = []  # calls that came while the open one was unfinished
        self._late_text: list[ReplyTextDelta | ReplyReasoningDelta] = []

    def read(self, choice: dict[str, Json], events: Events) -> None:
        """One entry of a chunk's `choices`, or of a whole reply's."""
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
        """The choice is over; `cut` says that the upstream stopped it."""
        self.finished = True
        self.plain = False
        self._end_call(events, cut=cut and not self._late)
        for call in self._late:
            self._open = call
            self._announce(events)
            self._end_call(events, cut=cut and call is self._late[-1])
        events.extend(self._late_text)
        for joiner, kind in ((self._reasoning, ReplyReasoningDelta), (self._text, ReplyTextDelta)):
            rest = joiner.close()
            if rest:
                events.append(kind(self.index, rest))

    # --- text and reasoning

    def _content(self, content: Json, events: Events) -> None:
        """A string, or a list of parts, or anything else, which is nothing."""
        if isinstance(content, str):
            text = self._text.feed(content)
            if text:
                self._say(ReplyTextDelta(self.index, text), events)
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
            self._say(ReplyReasoningDelta(self.index, text), events)

    def _say(self, event: ReplyTextDelta | ReplyReasoningDelta, events: Events) -> None:
        if self._may_leave(events):
            events.append(event)
        else:
            self._late_text.append(event)
            self.kept += len(event.text)

    # --- calls

    def _fragment(self, item: dict[str, Json], events: Events) -> None:
        """One entry of `tool_calls`: the beginning of a call, or more of its arguments."""
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
        call.name = call.name or (wire.repaired(name) if name else None)
        call.signature = call.signature or signature_of(item)
        pieces = len(call.pieces)
        arguments = inner.get("input" if custom else "arguments")
        if arguments is not None and not isinstance(arguments, str):
            arguments = wire.encode(arguments).decode()
        if isinstance(arguments, str) and arguments:
            self.kept += len(arguments)
            call.pieces.append(call.joiner.feed(arguments))
        if call is not self._open:
            return
        if call.number is None:
            self._announce(events)
        else:
            events.extend(ReplyArgumentsDelta(self.index, call.number, text) for text in call.pieces[pieces:] if text)

    def _find(self, index: Json, identity: str | None, name: str | None, events: Events) -> _Call | None:
        """The call that a fragment belongs to, opened if it is new; None if it has already ended."""
        known = [*self._late, self._open] if self._open is not None else []
        key: Key = index if isinstance(index, int | str) else None
        for call in reversed(known):
            same = (
                call.key == key if key is not None else name is None or (identity is not None and identity == call.id)
            )
            # some number all calls 0, and only the id tells them apart
            if same and not (name and identity and call.id and identity != call.id):
                return call
        if key in self._keys and not (name and (identity or key is None)):
            return None
        call = _Call(key, identity)
        self._keys.add(key)
        if self._may_leave(events):
            self._open = call
        else:
            self._late.append(call)
        return call

    def _may_leave(self, events: Events) -> bool:
        """Whether what is not of the open call may leave now; ends the call if its arguments are whole."""
        if self._open is None:
            return True
        if self._late or self._late_text or not _is_object(self._open.pieces):
            return False
        self._end_call(events, cut=False)
        return True

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
        rest = call.joiner.close()
        self._open = None
        if call.number is None:  # a call that never had a name
            return
        if rest:
            call.pieces.append(rest)
            events.append(ReplyArgumentsDelta(self.index, call.number, rest))
        unchecked = call.custom or not any(map(str.strip, call.pieces))
        complete = not cut if unchecked else _is_object(call.pieces)
        events.append(ReplyCallEnd(self.index, call.number, complete))


def _is_object(pieces: list[str]) -> bool:
    try:
        return isinstance(wire.decode("".join(pieces)), dict)
    except wire.UNREADABLE:
        return False
