"""A filter for one choice of a reply: it reads the upstream's text, finds calls in it, and emits events for the client.

The choice filter connects the upstream's reader to the client's writer. It is a pipeline of stages:

    text ─▶ parser (in a QuotationFilter, if needed) ─▶ calls ───────────▶ CallFilter ─▶ out
                                                     └▶ text, reasoning ─▶ TextFilter ─▶ out

The stages share a `ChoiceState`. The faults that they find in an attempt are rows of the failure table. One filter
serves all attempts: each attempt uses a new parser (`restart`), but the state of the client's reply, including the
numbering of the calls, is preserved.

Text and arguments deltas take a short path: text that flows (`Parser.flow`) is not fed to the parser, and while no
stage has to inspect it, it is forwarded as the original event, so that its bytes can be sent unchanged.
"""

from collections.abc import Callable, Sequence
from math import inf
from typing import assert_never

from attrs import frozen

# Imported by name: the module's `__getattr__` keeps CPython from caching `statemachine.X` where it is used.
from statemachine import ArgumentsDelta, CallEnd, CallStart, Discarded, Event, ReasoningDelta, TextDelta
from streamtool.core.errors import UpstreamError
from streamtool.core.excerpt import Excerpt
from streamtool.core.reply import (
    Reason,
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyEvent,
    ReplyFinish,
    ReplyReasoningDelta,
    ReplyTextDelta,
)
from streamtool.filters.call_filter import CallFilter
from streamtool.filters.call_ids import CallIds
from streamtool.filters.choice_state import ChoiceState, Tally
from streamtool.filters.continued_call import ContinuedCall
from streamtool.filters.endless_text import STEP, passage_of
from streamtool.filters.null_parser import NullParser, TextParser
from streamtool.filters.opened_reasoning import OpenedReasoning
from streamtool.filters.quotations import QuotationFilter, RepeatedCallStart
from streamtool.filters.stray_closers import StrayClosers, only_closers
from streamtool.filters.text_filter import PARAGRAPH, TextFilter
from streamtool.filters.unopened_reasoning import UnopenedReasoning
from streamtool.forcing.rules import Rules
from streamtool.policy.evidence import EndOfReply
from streamtool.policy.failure import Finding
from streamtool.policy.failures import CALL_MISSING, find
from streamtool.protocols.shared.stream import malformed_call_error

_BLOCK = 128
"""Number of characters between two calls of `_tidy`."""
_PARSER_REASONS: dict[Reason, str | None] = {
    Reason.STOP: None,
    Reason.STOP_SEQUENCE: None,
    Reason.PAUSE: None,
    Reason.LENGTH: "length",
    Reason.FILTER: "content_filter",
}
"""The parser's term for each finish reason, or None if the model itself ended the reply."""
_new = object.__new__  # bypasses `__init__`: there are thousands of deltas
_ENDED_BY_MODEL = (Reason.STOP, Reason.STOP_SEQUENCE)

UpstreamEvent = ReplyTextDelta | ReplyReasoningDelta | ReplyCallStart | ReplyArgumentsDelta | ReplyCallEnd
"""An event that a choice filter accepts from the upstream."""


@frozen
class _Deferred:
    """The end of a broken call, and the events after it."""

    events: Sequence[Event]
    continues: bool
    """Whether the model had not ended its reply."""


class ChoiceFilter:
    """A filter for one choice. Methods append the events that the client may see to `out`."""

    __slots__ = (
        "_begin",
        "_blank",
        "_calls",
        "_deferred",
        "_defers",
        "_delayed",
        "_direct",
        "_examine_at",
        "_examined",
        "_flow",
        "_last_text",
        "_may_defer",
        "_native_calls",
        "_new_parser",
        "_parser",
        "_rules",
        "_separated_at",
        "_separates",
        "_stray_closers",
        "_text",
        "_tidy_at",
        "_unopened",
        "_written",
        "characters",
        "choice",
        "continues_after_end",
        "deltas",
        "endless",
        "finished",
        "state",
        "tally",
    )

    def __init__(
        self,
        rules: Rules,
        choice: int,
        ids: CallIds,
        new_parser: Callable[[int], TextParser],
        *,
        may_retry: bool,
        may_search: bool = False,
        clock: Callable[[], float] | None = None,
        reread: Callable[[int], TextParser] | None = None,
        defers: bool = False,
    ) -> None:
        """Prepare for the first attempt. `new_parser` returns a parser for this choice, and `reread` one that reads its
        text again, without reporting it. `defers` means that a call that breaks is left open, until it is continued or
        given up.
        """
        self._rules = rules
        self._new_parser = new_parser
        self._parser = new_parser(choice)
        self._flow = self._parser.flow
        """The parser's flow, or None if the parser has to be fed, or is not determined yet."""
        # A bytearray, as pieces of text in a list or an io.StringIO would take ten times the memory. It only grows,
        # because excerpts refer to it; after any other change, it is a new one.
        self._written = bytearray() if rules.text.store_transcript else None
        self._stray_closers = StrayClosers(watching=rules.native)
        self._unopened = UnopenedReasoning(choice, reread or new_parser)
        self.choice = choice
        self.state = ChoiceState(may_retry, may_search)
        self.tally = Tally()
        self._text = TextFilter(choice, rules, self.state, self.tally)
        self._calls = CallFilter(
            choice, rules, self.state, self.tally, self._text, ids=ids, written=self._written, clock=clock
        )
        self._delayed: list[ReplyReasoningDelta | ReplyCallStart | ReplyArgumentsDelta | ReplyCallEnd] = []
        """Events that the upstream has separated from the text during a call in the text, from the first native call
        on.
        """
        self._native_calls = False
        """Whether the upstream itself has made a call in this attempt, so that markup at the end of the text is not
        text.
        """
        self._separates = False
        """Whether the upstream has sent reasoning or calls apart from the text in this attempt."""
        self._may_defer = self._defers = defers and self._written is not None
        self._deferred: _Deferred | None = None
        """The end of a broken call, until the call is continued or given up."""
        self._begin = 0
        """Size in bytes of `_written` when this attempt began."""
        self._blank = True
        """Whether all text that was forwarded directly is whitespace."""
        self._last_text = ""
        """The last text that was forwarded directly, until `state.last_text` is set."""
        self._separated_at: int | None = None
        """Size in bytes of `_written` when this attempt began, until the separator before its text is decided."""
        self._direct = self._text.idle and not self._stray_closers.watching
        """Whether visible text is forwarded directly, as the original event."""
        self._examine_at: float = STEP if rules.repetition and self._written is not None else inf
        """The text is examined for repetitions once it has this many characters."""
        self._tidy_at = _BLOCK
        """`_tidy` is called once the text has this many characters."""
        self._examined: tuple[int, int] | None = None
        """For the call that was open when the text was last examined: its number, and the size in bytes of `_written`
        when the text was first examined inside it.
        """
        self.endless = False
        """Whether the model repeats one passage without end in the arguments of the open call."""
        self.characters = 0
        """Number of characters written by the upstream in all attempts, including call syntax."""
        self.deltas = 0
        """Number of text deltas in this attempt and in those that it continues."""
        self.finished = False
        self.continues_after_end = False
        """Whether the model has written anything after the end except whitespace and the closing markers of its last
        call.
        """

    @property
    def written(self) -> str:
        """Text written by the model, including markup, in this attempt and in earlier ones that the client has seen."""
        return "" if self._written is None else self._written.decode("utf-8", "surrogatepass")

    def excerpt(self) -> Excerpt:
        """Return a new excerpt of the text that the model has written."""
        return Excerpt(self._written)

    @property
    def unfinished(self) -> str:
        """Text that the model has written in this attempt, if the attempt has not ended and the text is all of it;
        otherwise an empty string.
        """
        if self._written is None or self.finished or self._separates or (self.state.ended and not self.broken):
            return ""
        return self._written[self._begin :].decode("utf-8", "surrogatepass")

    @property
    def broken(self) -> bool:
        """Whether a call has become unreadable, and has to be continued or given up."""
        return self._deferred is not None and self.state.ended

    @property
    def closed(self) -> bool:
        """Whether the model has ended its reply inside a broken call."""
        return self._deferred is not None and not self._deferred.continues

    @property
    def contradicted(self) -> bool:
        """Whether the text after a broken call does not continue the arguments that the client has received."""
        return isinstance(self._parser, ContinuedCall) and self._parser.contradicted

    @property
    def unfinished_size(self) -> int:
        """Number of bytes that the model has written in this attempt."""
        return len(self._written or ()) - self._begin

    @property
    def place(self) -> str:
        """The part of the reply that the model is writing: the name of the tool that it calls, `a call` or `text`."""
        return self._calls.open_name or ("a call" if self._parser.in_call else "text")

    @property
    def buffered_size(self) -> int:
        """Number of characters that are buffered until they can be checked: a call's arguments, or an answer."""
        return self._calls.buffered_size + self._text.buffered_answer_size

    @property
    def buffering_reason(self) -> str:
        """The reason why output from the parser is buffered, or an empty string if none is."""
        quotation = self._parser.buffering_reason if isinstance(self._parser, QuotationFilter) else ""
        return quotation or self._calls.buffering_reason or self._text.buffering_reason

    @property
    def first_call(self) -> tuple[str, str] | None:
        """The name of the first call that the client receives, and the beginning of its arguments so far; or None."""
        return self._calls.first_call

    @property
    def first_call_at(self) -> float | None:
        """Time when the start of the first call was emitted, or None if none has been emitted."""
        return self._calls.first_call_at

    @property
    def unmet(self) -> Finding | None:
        """The failure of an attempt that is delivered anyway, or None if it has none or a stop sequence preempted a
        required call.
        """
        state = self.state
        if state.stop_sequence is not None and self._rules.forced and not state.calls:
            return Finding(CALL_MISSING)
        return state.tolerated

    def restart(self, *, may_retry: bool, may_search: bool = False, insists: bool = False) -> None:
        """Prepare for the next attempt: discard buffered output, and keep the state of the client's reply."""
        searched = self.state.searched  # the search, including the text before it, is now part of the prompt
        self.state.restart(may_retry=may_retry, may_search=may_search, insists=insists)
        self.continues_after_end = False
        self._parse_with(self._new_parser(self.choice))
        if self._written is not None and (searched or not self.state.visible):
            self._replace_written(bytearray())
        self._delayed.clear()
        self._native_calls = self._separates = False
        self._defers, self._deferred = self._may_defer, None
        self._begin = len(self._written or ())
        self.deltas = 0
        self._keep_last_text()
        self._text.restart()
        self._separated_at = len(self._written or ()) if self.state.separator and not searched else None
        self._unopened.restart(len(self._written or ()))
        self._calls.restart()
        self._stray_closers.restart(watching=self._rules.native)
        self._direct = self._text.idle and not self._stray_closers.watching

    def continue_call(self, text: str, parser: TextParser) -> None:
        """Prepare for an attempt that continues the broken call after this text, which `parser` has read."""
        self._parse_with(parser)
        self.state.ended = False
        if self._written is not None:
            self._replace_written(self._written[: self._begin + len(text.encode("utf-8", "surrogatepass"))])

    def _parse_with(self, parser: TextParser) -> None:
        """Parse the next text with this parser."""
        self._parser, self._flow = parser, parser.flow

    def _replace_written(self, written: bytearray) -> None:
        """Replace the text that the model has written. The old one stays as it is, because excerpts refer to it."""
        self._written = self._calls.written = written

    def _tidy(self) -> None:
        """Do the work that need not be done for each delta."""
        self._tidy_at = self.characters + _BLOCK
        self._calls.join_pieces()
        if self.characters >= self._examine_at and not self.state.ended:
            self._examine()

    def _examine(self) -> None:
        """End the reply if the last text in the arguments of the open call consists of repetitions of one passage. The
        text that the model has written is then shortened to the beginning of the repetitions.
        """
        self._examine_at = self.characters + STEP
        written, most = self._written, self._rules.repetition
        if written is None or not self._calls.open or self._calls.open_natively:
            self._examined = None
            return
        number = sum(self.tally.formats.values())
        if self._examined is None or self._examined[0] != number:
            self._examined = number, len(written)
        if len(written) - self._examined[1] < most:
            return
        size = passage_of(bytes(written[-most:]))
        if not size:
            return
        # The text is cut early in the repetitions, but at the place in the passage where it ends now, so that it
        # continues in the same way. Few repetitions precede the examined ones, or they would have been found before.
        end = len(written) - (most // size - 1) * size
        while end - 2 * size >= self._begin and written[end - 2 * size : end - size] == written[end - size : end]:
            end -= size
        self._replace_written(written[:end])
        self._examined = number, end
        self.endless = self.state.ended = True

    def go_on(self) -> None:
        """Prepare for the end of a reply that repeats itself, or for an attempt that continues it."""
        self.endless = self.state.ended = False

    def continued(self) -> None:
        """Note that an attempt continues the reply."""
        self._deferred = None

    def give_up(self, out: list[ReplyEvent]) -> None:
        """End the broken call as one that cannot be read."""
        deferred, self._deferred, self._defers = self._deferred, None, False
        if deferred is None:
            return
        if not self.state.ended:  # the text after it has not continued it
            self._parse_with(NullParser())
        self.state.ended = False
        self._process(deferred.events, out, continues=deferred.continues)
        if not deferred.continues:
            self._end_text(out, broken=False)

    def resume(self, *, may_retry: bool) -> None:
        """Prepare for an attempt that continues the text of this one."""
        self.state.may_retry = self.state.may_retry and may_retry

    def feed(self, event: UpstreamEvent, out: list[ReplyEvent]) -> None:
        """Process one event from the upstream."""
        if type(event) is ReplyTextDelta:
            self.feed_text(event, out)
        # Text is parsed even after the end, since it may be the closing marker of the last call. A native event cannot
        # be such a marker, so it always means that the model continues.
        elif self.state.ended:
            self.continues_after_end = True
        elif not isinstance(event, ReplyTextDelta):  # always true, but mypy cannot infer it
            self._feed_native(event, out)

    def feed_text(self, event: ReplyTextDelta, out: list[ReplyEvent]) -> None:
        """Process a piece of text from the upstream."""
        text = event.text
        self.characters += len(text)
        self.deltas += 1
        if self._written is not None:
            try:
                self._written += text.encode()  # half the time of naming the encoding
            except UnicodeEncodeError:
                self._written += text.encode("utf-8", "surrogatepass")
        # The usual cases are handled first, as cheaply as possible: most text flows, so the parser need not be fed.
        flow, arguments = self._flow, ""
        if flow is not None and text and (scan := flow.scan) is not None and scan(text) is None:
            kind = flow.delta
            if kind is TextDelta:
                if self._direct and not self._blank:
                    self._last_text = text
                    out.append(event)
                    return
            elif kind is None and self._calls.streams and (room := flow.remaining - len(text)) >= 0:
                flow.remaining, arguments = room, text
        if not arguments:
            found = self._parser.feed(text)
            # `first.text is text` compares identity, not equality: the original event, with the bytes attached to it,
            # is exact only if the parser returned the very object that it was fed.
            if len(found) == 1:
                first = found[0]
                if type(first) is TextDelta:
                    if first.text is text and self._direct:
                        # This path bypasses VisibleText, which would otherwise set `visible` and `last_text`.
                        self._last_text = text
                        if self._blank and not text.isspace():
                            self._blank = False
                            self.state.visible = True
                            self._flow = self._parser.flow  # known only now, if the reply began inside reasoning
                        out.append(event)
                        return
                    # An opening is buffered as its original events, since most openings are released after a few words
                    # and can then be forwarded unchanged as well. After `ended`, `_process` has to see the text
                    # instead, to notice that the model continues.
                    opening = self._text.opening.active or self._stray_closers.watching
                    if first.text is text and opening and not self.state.ended:
                        if not self._is_stray(text, out):
                            self._text.feed(event, out)  # the original event, which may still be forwarded unchanged
                        self._direct = self._text.idle and not self._stray_closers.watching
                        return
                elif type(first) is ArgumentsDelta and self._calls.streams:
                    arguments = first.text
            if not arguments:
                if found:
                    self._feed_events(found, out)
                return
        # `streams` is set only for a call that needs neither buffering nor repair, so its OpenCall can be skipped.
        calls = self._calls
        calls.pieces.append(arguments)
        delta = _new(ReplyArgumentsDelta)
        delta.choice = self.choice
        delta.index = calls.index
        delta.text = arguments
        out.append(delta)
        if self.characters >= self._tidy_at:
            self._tidy()

    def _feed_events(self, found: Sequence[Event], out: list[ReplyEvent]) -> None:
        """Process the parser's events for a piece of text."""
        self._process(found, out, continues=True)
        if self.characters >= self._tidy_at:
            self._tidy()
        if self._delayed and not self._calls.open:
            self._feed_delayed(out)

    def close(self, reason: Reason | None, out: list[ReplyEvent]) -> None:
        """Note the end of the upstream's text. If `reason` is None, the text was cut off.

        Text that is held back for a forced call, or until its form can be checked, stays buffered until `flush`.
        """
        if reason not in _ENDED_BY_MODEL:
            self.state.may_retry = self.state.may_search = False  # truncation is not the model's fault
        self._defers = self._defers and reason is Reason.STOP
        ended_as = "broken" if reason is None else _PARSER_REASONS[reason]
        if self._native_calls or any(type(event) is ReplyCallStart for event in self._delayed):
            ended_as = ended_as or "length"  # an opener at the end is markup
        last = self._parser.close(ended_as)
        self._process(self._without_copied_end(last), out)
        if not self.broken:
            self._end_text(out, broken=reason is None)

    def _end_text(self, out: list[ReplyEvent], *, broken: bool) -> None:
        """Process what follows the parser's last events at the end of the upstream's text."""
        self._release_closers(out)
        if self._delayed:
            self._parse_with(self._new_parser(self.choice))
            self._feed_delayed(out)
            self._process(self._parser.close(), out)
        if self._calls.open:  # a native call that the upstream never ended
            self._calls.end(out, complete=False)
        self._text.end(out, broken=broken)
        self._direct = self._text.idle

    def flush(self, out: list[ReplyEvent]) -> None:
        """Flush the remaining buffered output, in order."""
        self._text.close(out)

    def failure(self, reason: Reason) -> Finding | None:
        """Return the failure that rejects this attempt, which ended with `reason`, or None if the attempt is
        accepted.
        """
        state = self.state
        if state.rejected is not None:
            return state.rejected
        if reason not in _ENDED_BY_MODEL:
            return None
        return find(
            EndOfReply(
                visible=state.visible,
                rules=self._rules,
                text=self.written,
                calls=len(state.calls),
                refused=state.disallowed,
                unread=state.unreadable,
                reasoned=state.reasoned,
                answer=self._text.answer,
                incomplete=state.incomplete,
                stopped=state.stop_sequence is not None,
            )
        )

    def final_event(self, event: ReplyFinish) -> ReplyFinish | UpstreamError:
        """Return the finish event for the client, given the upstream's, or an error to send in its place."""
        state, rules = self.state, self._rules
        if state.invalid is not None and rules.invalid == "error":
            message = f"the arguments of a call do not match their schema: {state.invalid.problem}"
            return UpstreamError(message, code="invalid_arguments").quoting()
        if state.unknown_native and not state.calls:
            return UpstreamError("the reply calls a tool that was not offered", code="unknown_tool")
        if state.stop_sequence is not None:
            event = ReplyFinish(event.choice, Reason.STOP_SEQUENCE, state.stop_sequence)
        if state.incomplete and event.reason is not Reason.FILTER:
            if rules.truncated == "error":
                found = state.tolerated
                what = "ended inside a call" if found is None else f"is missing an undelivered call ({found.cause})"
                return UpstreamError(f"the reply {what}", code="truncated_call")
            if event.reason is not Reason.LENGTH and not self._calls.may_continue:
                return malformed_call_error()
        return event

    def _feed_native(
        self, event: ReplyReasoningDelta | ReplyCallStart | ReplyArgumentsDelta | ReplyCallEnd, out: list[ReplyEvent]
    ) -> None:
        """Process events that the upstream itself has separated from the text: reasoning and native calls.

        An upstream that sends a call as text and natively may do so at the same time. The call in the text is then read
        to its end, and the native one is compared with it.
        """
        self._separates = True
        if self._delayed or (type(event) is ReplyCallStart and self._calls.open and not self._calls.open_natively):
            self._delayed.append(event)
            return
        match event:
            case ReplyReasoningDelta(text=text, signature=signature):
                if text:
                    self._end_opened_reasoning(out)
                    self._feed_reasoning(text, out)
                if signature is not None and self._rules.text.reasoning == "emit" and not self._text.holds:
                    out.append(ReplyReasoningDelta(self.choice, "", signature))
            case ReplyCallStart(id=call_id, name=name, signature=signature):
                self._end_opened_reasoning(out)
                in_call = self._parser.in_call
                if not in_call:
                    self._process(self._parser.close(), out)
                self._native_calls = True
                if not in_call or only_closers(self._stray_closers.text):  # the parser may buffer the rest of a closer
                    self._release_closers(out, watching=True)
                if not self.state.ended:
                    if not in_call:
                        self._parse_with(self._new_parser(self.choice))
                        self._end_opened_reasoning(out)
                    self._calls.begin(name, call_id, out, source="native", signature=signature)
            case ReplyArgumentsDelta(text=text):
                self._calls.feed(text, out)
                return
            case ReplyCallEnd(complete=complete):
                self._calls.end(out, complete=complete)
            case _:
                assert_never(event)
        self._direct = self._text.idle

    def _without_copied_end(self, events: list[Event]) -> list[Event]:
        """Return the parser's last events. If the call in the text is cut off and the upstream has also made it itself,
        the native arguments complete the call.
        """
        delayed = self._delayed
        cut = any(type(event) is CallEnd and not event.complete for event in events)
        if not (cut and delayed and type(start := delayed[0]) is ReplyCallStart):
            return events
        size = next((i for i, event in enumerate(delayed) if type(event) is ReplyCallEnd), len(delayed))
        end = delayed[size] if size < len(delayed) else None
        if not (type(end) is ReplyCallEnd and end.complete):
            return events
        arguments = "".join(event.text for event in delayed[:size] if type(event) is ReplyArgumentsDelta)
        begun = "".join(event.text for event in events if type(event) is ArgumentsDelta)
        rest = self._calls.rest_of_copy(start.name, arguments, begun)
        if rest is None:
            return events
        del delayed[: size + 1]
        completed: list[Event] = []
        for event in events:
            if type(event) is CallEnd:
                completed += [ArgumentsDelta(event.index, rest)] if rest else []
                event = CallEnd(event.index, True, event.repairs)  # noqa: PLW2901  the call is complete now
            completed.append(event)
        return completed

    def _is_stray(self, text: str, out: list[ReplyEvent]) -> bool:
        """Buffer the text if it only consists of closers, and return whether it is buffered."""
        closers = self._stray_closers
        if not closers.watching:
            return False
        if closers.holds(text):
            return True
        if closers.text:
            self._release_closers(out, watching=closers.watching)
        return False

    def _release_closers(self, out: list[ReplyEvent], *, watching: bool = False) -> None:
        """Emit or discard the buffered closers."""
        text = self._stray_closers.restart(watching=watching)
        if text and self._native_calls and only_closers(text):
            self.tally.discard(text, "malformed")
        elif text:
            self._text.feed(ReplyTextDelta(self.choice, text), out)

    def _feed_delayed(self, out: list[ReplyEvent]) -> None:
        """Process the events that were delayed by a call in the text."""
        delayed, self._delayed = self._delayed, []
        for event in delayed:
            if not self.state.ended:
                self._feed_native(event, out)

    def _end_opened_reasoning(self, out: list[ReplyEvent]) -> None:
        """Stop assuming that the text begins inside reasoning: the upstream separates reasoning from text itself."""
        if isinstance(self._parser, OpenedReasoning):
            self._process(self._parser.disable(), out)

    def _process(self, events: Sequence[Event], out: list[ReplyEvent], *, continues: bool = False) -> None:
        """Process the parser's events. `continues` means that the text has not ended."""
        self._keep_last_text()
        for number, event in enumerate(events):
            if self.state.ended:
                blank = isinstance(event, TextDelta) and event.text.isspace()
                self.continues_after_end = self.continues_after_end or not blank
                continue
            match event:
                case TextDelta(text=text):
                    if self._stray_closers.watching and self._is_stray(text, out):
                        continue
                    self._text.feed(ReplyTextDelta(self.choice, text), out)
                case ArgumentsDelta(text=text):
                    self._calls.feed(text, out)
                case CallStart(name=name, id=call_id, format=format_, in_reasoning=in_reasoning):
                    self.tally.count_call(format_)
                    if self._written is not None and self._unopened.ends_before_call(self._written):
                        self._calls.move_to_reasoning()
                    self._calls.begin(name, call_id, out, source="reasoning" if in_reasoning else "text")
                    if type(event) is RepeatedCallStart and self._calls.open_id is not None:
                        self.tally.repeated.append(self._calls.open_id)
                case CallEnd(complete=False) if self._defers and self._calls.open:
                    self._deferred = _Deferred(events[number:], continues)
                    self.state.ended = True
                    break
                case CallEnd(complete=complete, repairs=repairs):
                    self.tally.add_repairs(repairs)
                    self._calls.end(out, complete=complete, closed=continues)
                case ReasoningDelta(text=text):
                    self._feed_reasoning(text, out)
                case Discarded(text=text, reason="unknown") if self._rules.unknown == "retry":
                    self._calls.handle_unreadable(text, "unknown", out)
                case Discarded(text=text, reason="rejected") if self._rules.malformed == "retry":
                    self._calls.handle_unreadable(text, "rejected", out)
                case Discarded(text=text, reason="invented"):
                    self.tally.discard(text, "invented result")
                    self.state.ended = True
                case Discarded(text=text, reason="invented_turn"):
                    self.tally.discard(text, "invented turn")
                    self.state.ended = self.state.turn_over = True
                case Discarded(text=text, reason=reason):
                    self.tally.discard(text, reason)
                case _:
                    assert_never(event)
        self._direct = self._text.idle and not (self.state.ended or self._stray_closers.watching)
        if self._separated_at is not None and not self.state.separator:
            self._separate_written(self._separated_at)

    def _keep_last_text(self) -> None:
        if self._last_text:
            self.state.last_text, self._last_text = self._last_text, ""

    def _separate_written(self, position: int) -> None:
        """Insert the separator in front of the text that this attempt has written."""
        self._separated_at = None
        if self._written is not None and not self._written[position : position + 1].isspace():
            self._replace_written(self._written[:position] + PARAGRAPH.encode() + self._written[position:])
            self._begin += len(PARAGRAPH)

    def _feed_reasoning(self, text: str, out: list[ReplyEvent]) -> None:
        self.state.reasoned = True
        match self._rules.text.reasoning:
            case "emit":
                self._text.feed(ReplyReasoningDelta(self.choice, text), out)
            case "text":
                self._text.feed(ReplyTextDelta(self.choice, text), out)
            case "drop":
                self.tally.discard(text, "reasoning")
            case _:
                assert_never(self._rules.text.reasoning)
