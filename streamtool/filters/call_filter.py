"""A filter for calls: it decides which calls pass, assigns their ids, and decides whether their arguments are streamed.

A forbidden call does not pass, and neither does a call to a tool that was not offered, unless the upstream handles
tools natively and made the call itself, nor a call that the upstream has sent twice (`repeated_calls`). A call that is
buffered until complete (`arguments = "complete"`) is checked at its end. If the client receives the whole reply at
once, the first call is withheld until its end as well: if its arguments cannot be read, the model is asked again. Any
other call commits when it begins, or when it differs from the call that it might repeat. Buffered text is flushed
before a call is emitted. A call that searches for tools does not pass: it ends the attempt, and the model is asked
again with the tools found.
"""

from collections.abc import Callable
from typing import Final, Literal

from statemachine.tools import Toolset
from streamtool.core.excerpt import Excerpt
from streamtool.core.reply import ReplyArgumentsDelta, ReplyCallEnd, ReplyCallStart, ReplyEvent, ReplyTextDelta
from streamtool.filters.call_ids import CallIds
from streamtool.filters.choice_state import ChoiceState, Tally
from streamtool.filters.open_call import OpenCall
from streamtool.filters.repeated_calls import CallHistory, DeliveredCall, Source
from streamtool.filters.text_filter import TextFilter
from streamtool.forcing.rules import Rules
from streamtool.policy.evidence import CheckedArguments, SearchCall, UnreadArguments, UnreadCall
from streamtool.policy.failure import Finding
from streamtool.policy.failures import find
from streamtool.prompting.selection import search_query
from streamtool.protocols.shared import wire

_FIRST: Final = 1_000
"""Number of characters of the first call's arguments to keep."""


class CallFilter:
    """A filter for the calls in one choice."""

    __slots__ = (
        "_choice",
        "_clock",
        "_complete",
        "_cut_text",
        "_first",
        "_history",
        "_ids",
        "_omitted",
        "_open",
        "_rules",
        "_sent",
        "_state",
        "_tally",
        "_text",
        "_truncated_visibly",
        "first_call_at",
        "index",
        "pieces",
        "streams",
        "written",
    )

    def __init__(
        self,
        choice: int,
        rules: Rules,
        state: ChoiceState,
        tally: Tally,
        text: TextFilter,
        *,
        ids: CallIds,
        written: bytearray | None,
        clock: Callable[[], float] | None,
    ) -> None:
        self._choice = choice
        self._rules = rules
        self._state = state
        self._tally = tally
        self._text = text
        self._ids = ids
        self._clock = clock
        self._history = CallHistory(rules.repeated)
        self._open: OpenCall | None = None
        self.index = -1
        """Index of the last committed call."""
        self.written = written
        """The text that the model has written, in UTF-8, if it is known."""
        self._sent = Excerpt()
        """The arguments of the open call that have been emitted."""
        self.pieces = self._sent.pieces
        """The last pieces of these arguments."""
        self._truncated_visibly = False
        """Whether the client has seen part of a call that was truncated."""
        self._complete = 0
        """Number of complete calls that the client receives."""
        self._omitted = False
        """Whether an incomplete call is omitted."""
        self._cut_text = False
        """Whether the client has received a part of a call to a custom tool, which it could take for the whole."""
        self.streams = False
        """Whether the open call's arguments are passed on unchanged, as they arrive."""
        self._first: tuple[str, str] | None = None
        """The name of the first call and the beginning of its arguments, once it has ended."""
        self.first_call_at: float | None = None
        """Time when the start of the first call was emitted, or None if none has been emitted."""

    @property
    def open(self) -> bool:
        """Whether a call has begun and has not ended."""
        return self._open is not None

    @property
    def open_natively(self) -> bool:
        """Whether the open call was sent as a call rather than as text."""
        return self._open is not None and self._open.source == "native"

    @property
    def open_name(self) -> str:
        """The name of the tool that the open call calls, or an empty string if none is open."""
        return "" if self._open is None else self._open.name

    @property
    def open_id(self) -> str | None:
        """The id of the open call, or None if none is open that the client may receive."""
        return None if self._open is None else self._open.id or None

    @property
    def first_call(self) -> tuple[str, str] | None:
        """The name of the first call that the client receives, and the beginning of its arguments so far; or None."""
        if self._first is None and self._open is not None and self._open.committed:
            return self._open.name, str(self._sent)[:_FIRST]
        return self._first

    @property
    def may_continue(self) -> bool:
        """Whether a client continues after the incomplete calls: it answers their unreadable arguments with an error,
        or it receives other calls instead of them.
        """
        return not self._cut_text and (not self._omitted or self._complete > 0)

    @property
    def buffered_size(self) -> int:
        """Number of characters of arguments that are buffered until their call ends."""
        return 0 if self._open is None else self._open.buffered_size

    @property
    def buffering_reason(self) -> str:
        """The reason why a call is buffered, or an empty string if none is."""
        call = self._open
        if call is None or call.committed:
            return ""
        if call.buffered or call.withheld:
            return "its arguments are checked when they are complete"
        return "it may repeat an earlier call"

    def restart(self) -> None:
        """Reset for the next attempt. The client has not seen any call from the previous attempt."""
        self._open = None
        self.streams = False

    def begin(
        self,
        name: str,
        call_id: str | None,
        out: list[ReplyEvent],
        *,
        source: Source = "text",
        signature: str | None = None,
    ) -> None:
        """Begin a call. A native call may have a `signature`."""
        if self._open is not None:
            self.end(out, complete=False)
        self._text.fabricated.release(out)
        rules = self._rules
        if source == "native":
            name = self._repaired_name(name)
        name = rules.tools.aliases.get(name, name)
        if rules.search and name == rules.search and not rules.forbidden:
            self._open = OpenCall(rules, "", name, source, withheld=True)
            return
        trusted = source == "native" and rules.native
        known = trusted or rules.unknown == "deliver" or name in rules.tools.schemas
        delivered = known or (self._state.insists and rules.delivers_at_last and not self._state.calls)
        if not delivered or (rules.forbidden and not trusted):
            self._state.disallowed += 1
            self._tally.discard(name, self._discard_reason)
            if rules.unknown == "retry":
                self.handle_unreadable("", "unknown", out)
                self._state.unknown_native = True
            return
        suspects = self._history.suspects(name, source)
        self._open = call = OpenCall(
            rules,
            self._ids.take(call_id),
            name,
            source,
            signature=signature,
            suspects=suspects,
            withheld=rules.whole and source != "native" and not self._state.calls,
        )
        if not (call.buffered or call.withheld or suspects):
            self._commit(call, out)

    def rest_of_copy(self, name: str, arguments: str, begun: str) -> str | None:
        """Return the rest of the open call's arguments, given those of a complete native call and the last ones in the
        text. Return None if the native call is another one.
        """
        call = self._open
        if call is None or call.name != self._rules.tools.aliases.get(name, name) or not wire.is_object(arguments):
            return None
        so_far = (str(self._sent) if call.committed else "") + call.buffered_arguments + begun
        return arguments[len(so_far) :] if arguments.startswith(so_far) else None

    def move_to_reasoning(self) -> None:
        """Note that the calls in the text so far were part of reasoning."""
        self._history.move_to_reasoning()

    def feed(self, text: str, out: list[ReplyEvent]) -> None:
        """Process a piece of the arguments."""
        call = self._open
        if call is None:
            self._tally.discard(text, self._discard_reason)
        elif text := call.feed(text):
            if not call.committed:
                self._commit(call, out)
            self._emit(text, out)

    def end(self, out: list[ReplyEvent], *, complete: bool, closed: bool = False) -> None:
        """End the open call. `closed` means that the model itself has ended it, before the end of the reply."""
        call, self._open = self._open, None
        self.streams = False
        if call is None:
            return
        text, complete = call.end_native(complete=complete)
        if self._rules.search and call.name == self._rules.search:
            self._search(call.buffered_arguments, out, ended=complete or closed)
            return
        if not complete and self._is_cut_copy(call, text):
            return
        unread = None
        if closed and not complete and call.withheld:
            unread = find(UnreadArguments(visible=self._state.visible, name=call.name, rules=self._rules))
            if self._state.reject(unread):
                self._tally.discard(call.buffered_arguments, "incomplete")
                return
        self._truncated_visibly = self._truncated_visibly or not (complete or call.buffered)
        self._state.incomplete = self._truncated_visibly or not complete
        if not complete and (self._rules.whole or call.buffered):
            self._omitted = True
        elif not complete and call.name in self._rules.tools.custom:
            self._cut_text = True
        if not call.buffered:
            if text and not call.committed:
                self._commit(call, out)
            self._finish(call, text, out, complete=complete)
        elif not complete:
            self._tally.discard(call.buffered_arguments, "incomplete")
            self._state.unreadable += 1
        elif self._accept(call):
            self._finish(call, text, out, complete=True)
        else:
            self._tally.discard(call.buffered_arguments, "invalid")
        self._state.tolerate(unread)
        self._tally.add_repairs(call.repairs)
        if call.malformed:
            self._tally.discarded["malformed"] = self._tally.discarded.get("malformed", 0) + call.malformed
        if self._state.calls:
            if not self._rules.native:
                self._text.fabricated.watch()
            if self._rules.single:
                self._state.ended = True

    def _search(self, arguments: str, out: list[ReplyEvent], *, ended: bool) -> None:
        """Reject the attempt because of a search for tools. A search after a call, or after the last one allowed, is
        dropped; so is a truncated one.
        """
        state = self._state
        if not ended:
            state.incomplete = True
        elif not state.calls:
            if not self._rules.forced:
                self._text.close(out)  # the text before the search is visible, like text before a call
            query = search_query(arguments)
            found = find(SearchCall(visible=state.visible, query=query, allowed=state.may_search))
            if state.ended or state.reject(found):
                return
            state.tolerate(found)
        state.disallowed += 1
        self._tally.discard(arguments, "tool search")

    def handle_unreadable(self, text: str, reason: Literal["unknown", "rejected"], out: list[ReplyEvent]) -> None:
        """Handle call syntax that did not become a call, by rejecting the attempt, so that the model is asked again.

        If the model cannot be asked again, deliver the syntax as text, but drop a call to an unknown tool after a call.
        """
        state = self._state
        found = find(UnreadCall(visible=state.visible, rules=self._rules, reason=reason))
        if state.reject(found):
            return
        state.tolerate(found)
        if reason == "unknown" and state.calls:
            self._tally.discard(text, "unknown")
        elif text:
            self._text.feed(ReplyTextDelta(self._choice, text), out)

    def _repaired_name(self, name: str) -> str:
        """Return the offered tool that a native call refers to. The parser has repaired all other names."""
        rules = self._rules.tools
        if name in rules.schemas or name in rules.aliases:
            return name
        found = Toolset(self._rules.callable, edits=rules.edits).resolve(name)
        if found is None or found == name:
            return name
        self._tally.add_repairs(("tool_name",))
        return found

    @property
    def _discard_reason(self) -> str:
        return "forbidden" if self._rules.forbidden else "unknown"

    def _commit(self, call: OpenCall, out: list[ReplyEvent]) -> None:
        """Emit the start of a call, after any text that was buffered before it."""
        self._text.close(out)
        state = self._state
        # Flushing the text may have ended the reply at a stop sequence or a fabricated result. The call must not be
        # lost because of that: once committed, it is always delivered.
        state.ended, state.stop_sequence = False, None
        state.visible = True
        call.committed = True
        self.streams = call is self._open and call.direct
        self._send_to(Excerpt(self.written))
        self.index = len(state.calls)
        out.append(ReplyCallStart(self._choice, self.index, call.id, call.name, call.signature))
        if not state.calls:
            self.first_call_at = None if self._clock is None else self._clock()
            state.tolerated = state.invalid or self._unknown(call.name)
        state.calls.append(call.id)

    def _unknown(self, name: str) -> Finding | None:
        """Return the failure of a call that is delivered although its tool is not offered, if it is one."""
        if not (self._state.insists and self._rules.delivers_at_last) or name in self._rules.tools.schemas:
            return None
        return find(UnreadCall(visible=self._state.visible, rules=self._rules, reason="unknown"))

    def _finish(self, call: OpenCall, text: str, out: list[ReplyEvent], *, complete: bool) -> None:
        """Emit the remaining arguments and the end of the call, unless the call repeats an earlier one."""
        text += call.close(complete=complete)
        if not call.committed:
            if complete and self._repeats(call, text):
                return
            self._commit(call, out)
        if text:
            self._emit(text, out)
        self._complete += complete
        out.append(ReplyCallEnd(self._choice, self.index, complete, call.id in self._tally.repeated))
        if complete or self._first is None:
            emitted = str(self._sent)
            if self._first is None:
                self._first = call.name, emitted[:_FIRST]
            if complete:
                self._history.add(DeliveredCall(call.name, emitted, call.source))
        self._send_to(Excerpt())

    def _send_to(self, sent: Excerpt) -> None:
        """Add the arguments that are emitted from now on to this excerpt."""
        self._sent, self.pieces = sent, sent.pieces

    def join_pieces(self) -> None:
        """Store the emitted arguments in less memory."""
        self._sent.join()

    def _emit(self, text: str, out: list[ReplyEvent]) -> None:
        self._sent.add(text)
        out.append(ReplyArgumentsDelta(self._choice, self.index, text))

    def _is_cut_copy(self, call: OpenCall, text: str) -> bool:
        """Drop a truncated call that was equal so far to one that the upstream has sent in the other way, and return
        whether it was dropped.
        """
        found = None if call.buffered or text else next((one for one in call.suspects if one.twice), None)
        if found is None:
            return False
        self._history.match(found.earlier)
        self._tally.discard(call.name + call.buffered_arguments, "sent twice")
        return True

    def _repeats(self, call: OpenCall, text: str) -> bool:
        """Drop a call that repeats an earlier one, and return whether it does. A call that the model keeps repeating
        ends the reply.
        """
        this = DeliveredCall(call.name, text, call.source)
        found = next((suspect for suspect in call.suspects if suspect.earlier.equals(this)), None)
        if found is None:
            return False
        if found.twice:
            self._history.match(found.earlier)
        else:
            self._state.ended = True
        self._tally.discard(call.name + text, "sent twice" if found.twice else "repeated call")
        return True

    def _accept(self, call: OpenCall) -> bool:
        """Return whether a buffered call may be emitted, because it is valid or is delivered despite its fault."""
        state = self._state
        invalid = call.check()
        if invalid is None:
            state.invalid = None
            return True
        state.invalid = find(CheckedArguments(visible=state.visible, invalid=invalid))
        return not state.reject(state.invalid) and self._rules.invalid == "deliver"
