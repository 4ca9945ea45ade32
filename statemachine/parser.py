"""The machine: model text in, events out, in the `feed` that brought it.

Theory of operation. `grammar` reads the reply as a sequence of spans; the state says which is next. Text, code,
fences, reasoning and objects that are no call are read in `spans.py`, calls here: an opener leads through `call` to a
name or an envelope and its body (`bodies/`), and `after` skips the closers. Two exceptions end what is being read, each
handled once: `Mismatch` in `mismatched` (a candidate is rejected, a call is broken), `Ended` in `over`.
"""

from collections.abc import Generator, Iterable, Mapping
from functools import lru_cache
from typing import Any

from statemachine.bodies import envelope, expression, message, parameters
from statemachine.bodies import name as name_body
from statemachine.bodies.envelope import NoCall
from statemachine.candidate import Call
from statemachine.events import ArgumentsDelta, CallEnd, CallStart, Discarded, Event, ReasoningDelta, TextDelta
from statemachine.formats.compile import MAX_NEWLINES, TICK, Found, Marked, compiled
from statemachine.formats.format import Expression, Format, Message, Parameters, Variant, check
from statemachine.formats.markers import Markers
from statemachine.formats.openers import Keys, Opener, Opening
from statemachine.formats.table import DEFAULT, FORMATS
from statemachine.json.text import space
from statemachine.machine import Limits, Overflow, Tools
from statemachine.reader import Ended, Grammar, Mismatch, Sink
from statemachine.runs import Run
from statemachine.spans import Spans, closers_of, line_ends, run_to
from statemachine.states import Input, State

LIMITS = Limits()
SAID = (TextDelta, ReasoningDelta, Discarded)
"""What is not emitted of a prefix."""
BROKEN_LINE = Run(r"[^\r\n]*+")


class Parser(Spans):
    """Reads calls out of text that arrives in pieces. One parser per reply.

    Args:
        tools: JSON Schema of the parameters by tool name, or the names alone. None: any name is a tool. An empty
            mapping: nothing is a call.
        formats: names out of `formats.FORMATS`, and formats of your own; None: all that are on by default.
        prefix: what the reply already contains when the model starts: read, its text not emitted.
        unknown: where a call of a tool that is not offered goes, "text" or "discard".
        malformed: where something goes that begins like a call, behind a marker, and cannot be read as one: "text" or
            "discard", which takes it to its closer, or the end of the line where it has none.
        in_fences: "calls" to look for calls inside of code fences too; "text" only at their beginning.
        calls_in_reasoning: look for calls inside of reasoning.
        limits: bounds in characters.
        ledger: keep account of every character (`ledger`); slower.

    Raises:
        ValueError: an unknown format or option.

    """

    __slots__ = ("calls_in_reasoning", "stopped")

    def __init__(
        self,
        tools: Tools = None,
        *,
        formats: Iterable[str | Format] | None = None,
        prefix: str = "",
        unknown: str = "text",
        malformed: str = "text",
        in_fences: str = "text",
        calls_in_reasoning: bool = False,
        limits: Limits | None = None,
        ledger: bool = False,
    ) -> None:
        names, others = (DEFAULT, ()) if formats is None else chosen(formats)
        if in_fences not in ("text", "calls"):
            raise ValueError(f"in_fences must be 'text' or 'calls', not {in_fences!r}")
        if tools is not None and not isinstance(tools, Mapping):
            tools = dict.fromkeys(tools)
        if tools is not None and not tools:
            names = others = ()  # nothing can be a call
        by_tool = formats is not None and any(form.by_tool for form in (*map(FORMATS.__getitem__, names), *others))
        openers = tuple(tools) if tools and by_tool else ()
        self.calls_in_reasoning = calls_in_reasoning
        self.stopped = False
        """The model stopped by itself."""
        super().__init__(
            tools,
            compiled(names, openers, others),
            fence_calls=in_fences == "calls",
            unknown=unknown,
            malformed=malformed,
            limits=limits or LIMITS,
            ledger=ledger,
        )
        if prefix:
            self.muted = len(prefix)
            self.text = prefix
            next(self._grammar)
            self.text, self.at = self.text[self.at :], 0
            self._flush()
            self._events = [event for event in self._events if not isinstance(event, SAID)]
            if self._events:
                self.scan = self.run = None

    def close(self, reason: str | None = None) -> list[Event]:
        """The last events. `reason` None or "stop": the model stopped by itself; anything else: it was cut short."""
        if self.state is State.CLOSED:
            return []
        self.ended = True
        self.stopped = reason in (None, "stop")
        return self._advance()

    # ---- the outline

    def grammar(self) -> Grammar:
        """The whole reply, span by span."""
        yield
        while True:
            try:
                while True:
                    yield from self.span()
            except Mismatch:
                yield from self.mismatched()
            except Overflow:
                self.demote()
            except Ended:
                self.over()
                return

    def span(self) -> Grammar:
        """What the state says is next, until it is over."""
        match self.state:
            case State.TEXT:
                return self.prose()
            case State.REASONING:
                return self.prose() if self.calls_in_reasoning else self.reasoning()
            case State.FENCE:
                return self.fence()
            case State.OBJECT:
                return self.object_text()
            case State.BROKEN:
                return self.broken()
            case State.AFTER:
                return self.after()
            case _:
                raise AssertionError(self.state)

    def mismatched(self) -> Grammar:
        """What was being read cannot go on like this."""
        candidate = self.candidate
        self.target = False
        if self.state is State.CALL:
            missing = None if candidate.whole else candidate.missing()
            if missing and (yield from self.closes()):
                candidate.json.mend("missing_closer")
                self.emit_arguments(missing)
                candidate.whole = True
                self.finish()
                return
            self.emit(CallEnd(self.index, candidate.whole, tuple(candidate.json.repairs)))
            self.because("malformed")
            self.sink = Sink.DISCARD
            self.saw(candidate.bare)
            self.go(Input.BREAK)
        elif self.state is State.CANDIDATE:
            self.reject()
        else:
            self.go(Input.RESUME if self.thinking else Input.REJECT)
            self.sink = self.visible

    def reject(self) -> None:
        """The candidate is no call: what it held is text, and scanning goes on at this character."""
        fenced = self.ticks
        if self.spoilt:
            self.because("rejected")
            self.release(Sink.DISCARD)
            self.go(Input.BREAK)
            return
        self.saw(any(piece.strip() for piece, _ in self.raw))
        self.give_back()
        self.line_start = bool(self.raw) and self.raw[-1][0].endswith("\n")
        self.release(self.visible)
        if fenced and not self.fence_calls:
            self.go(Input.FENCE)
        else:
            self.ticks = 0
            self.go(Input.RESUME if self.thinking else Input.REJECT)

    @property
    def spoilt(self) -> bool:
        """The candidate was meant to be a call, and what is unreadable is discarded."""
        candidate = self.candidate
        meant = candidate.name is not None or candidate.begun or bool(candidate.envelope.stack)
        return self.drops and meant and candidate.marked and not self.ticks

    def give_back(self) -> None:
        """Line ends that end what is held may stand before another opener: they are looked at again, and only they."""
        taken: list[str] = []
        while len(self.raw) > 1 and self.raw[-1][0].isspace():
            taken.append(self.raw.pop()[0])
        blank = "".join(reversed(taken))
        lines = blank[len(blank.rstrip("\r\n")) :]
        if blank != lines:
            self.raw.append((blank[: len(blank) - len(lines)], "syntax"))
        self.raw_length -= len(lines)
        self.text, self.at = lines + self.text[self.at :], 0

    def demote(self) -> None:
        """The candidate is an object, and no call: text to its closing brace."""
        if self.ticks and not self.fence_calls:
            self.reject()
            return
        self.ticks = 0
        self.saw(True)
        self.target = False
        state, outer = self.candidate.json, self.candidate.envelope
        self.stack = outer.stack + state.stack
        self.quoted = state.quoted or outer.quoted
        self.release(self.visible)
        self.line_start = False
        self.go(Input.DEMOTE)

    def over(self) -> None:
        """The text has ended: what was held is decided."""
        candidate = self.candidate
        self.target = self.target if candidate.committed else False
        named = candidate.known and (candidate.marked or candidate.decisive) and not candidate.spoke
        cut_head = self.state is State.CANDIDATE and named
        if cut_head:
            self.commit()
        if self.state is State.CALL:
            missing = None if candidate.whole else candidate.missing()
            if missing is not None and self.stopped:
                if missing:
                    candidate.json.mend("missing_closer")
                self.emit_arguments(missing)
                candidate.whole = True
            rest = len(self.text) - self.at
            self.because("malformed")
            self.emit(CallEnd(self.index, candidate.whole, tuple(candidate.json.repairs)))
            if rest:
                spare = cut_head or (candidate.whole and not self.text[self.at :].strip())
                self.sink = Sink.SYNTAX if spare else Sink.DISCARD
                self.take(rest)
        else:
            spoilt = self.state is State.CANDIDATE and self.spoilt
            if spoilt:
                self.because("rejected")
            if self.state is State.CANDIDATE:
                self.release(Sink.DISCARD if spoilt else self.visible)
            if self.state is State.AFTER or (self.gap and not self.text[self.at :].strip("\r\n")):
                gap = line_ends(self.text, self.at)
                self.sink = Sink.SYNTAX
                self.take((gap.end() if gap else self.at) - self.at)
            if self.state is not State.BROKEN and not spoilt:
                self.sink = self.visible
            self.take(len(self.text) - self.at)
        self.text, self.at = "", 0
        self.go(Input.CLOSE)

    # ---- calls

    def call(self, value: Marked, length: int) -> Grammar:
        """A call whose opener stands here."""
        if value is Found.BARE:
            self.candidate.marked = False
            yield from self.envelope(self.scanner().keys[self.text[self.at]])
            return
        if value is Found.LIST and self.tables.bare_list:
            self.candidate.marked, self.candidate.bare = False, True
            yield from self.expression(self.tables.bare_list)
            return
        if not isinstance(value, Opener):
            raise Mismatch
        opener = self.take(length)
        lead = value
        for close in self.wrapping:
            lead = self.tables.wrappers[close].inner(lead) if close in self.tables.wrappers else lead
        while True:
            mark = len(self.raw)
            if lead.open is None or not isinstance(lead.open[1].body, Message):
                yield from self.blank()
            if lead.children is not None:
                child, end = yield from self.child(lead.children)
                if child is not None:
                    self.candidate.wrappers.append(lead.close)
                    opener = self.take(end)
                    lead = child
                    continue
            break
        if lead.tool is not None:
            yield from self.tag_of_tool(*lead.tool)
        elif lead.open is not None and (yield from self.opens(lead)):
            form, variant = lead.open
            if isinstance(variant.body, Message):
                yield from message.read(self, form, variant.body, opener)
            else:
                yield from self.expression(lead.open)
        elif lead.keys and self.text[self.at] in "{[":
            if lead.close:
                self.candidate.wrappers.append(lead.close)
            yield from self.envelope(lead.keys[self.text[self.at]])
        elif lead.ends is None or (lead.line and not self.beside(lead, mark)):
            raise Mismatch
        else:
            yield from name_body.read(self, lead)
            self.finish()

    def beside(self, lead: Opener, mark: int) -> bool:
        """True if nothing stands between an opener and what follows but blanks, where they may stand."""
        space_between = "".join(piece for piece, _ in self.raw[mark:])
        return not space_between or (lead.blank and "\n" not in space_between)

    def tag_of_tool(self, form: Format, variant: Variant, tool: str) -> Grammar:
        """A call whose opener named its tool."""
        if not isinstance(variant.body, Parameters):
            raise Mismatch
        self.candidate.format = form
        self.named(tool)
        yield from parameters.read(self, form, variant.body)
        self.finish()

    def opens(self, lead: Opener) -> Generator[None, None, bool]:
        """True if the expression or the header follows that may follow here, and not JSON."""
        if not lead.keys or self.text[self.at] not in "{[":
            return True
        while True:
            found = space(self.text, self.at + 1)
            if found is not None and found.end() < len(self.text):
                return self.text[self.at] == "[" and self.text[found.end()] not in "{["
            yield from self.more()

    def expression(self, opening: Opening) -> Grammar:
        """Call expressions."""
        form, variant = opening
        if not isinstance(variant.body, Expression):
            raise Mismatch
        self.candidate.format = form
        return expression.read(self, form, variant.body)

    def child(self, children: Markers[Opener]) -> Generator[None, None, tuple[Opener | None, int]]:
        """The opener that follows a wrapper's opener."""
        while True:
            found = children.match(self.text, self.at)
            if found is None:
                return None, 0
            if found.lastindex:
                return children.values[found.lastindex - 1], found.end() - self.at
            yield from self.more()

    def envelope(self, keys: Keys) -> Grammar:
        """An envelope; one that is no call turns into text."""
        try:
            yield from envelope.read(self, keys)
        except NoCall:
            if self.state is State.CANDIDATE and not self.candidate.marked and self.candidate.envelope.stack:
                self.demote()
            else:
                raise Mismatch from None

    def sibling(self, offset: int, *, own: bool = False) -> Generator[None, None, bool]:
        """True if, after white space, a closer of an outer span, an opener or the end follows, `offset` from here.

        `own`: the call's own closer counts too.
        """
        form = self.candidate.format
        mine = [form.close] if own and form is not None and form.close else []
        around = [close for _, close in form.wrappers] if form is not None else []
        allowed = (*self.wrapping, *self.candidate.wrappers, *mine, *around)
        markers = self.tables.siblings
        while True:
            found = space(self.text, self.at + offset)
            end = found.end() if found else 0
            if end >= len(self.text):
                if self.ended:
                    return True
            elif end - self.at - offset > MAX_NEWLINES * 4:
                return False
            else:
                at_line_start = "\n" in self.text[self.at + offset : end]
                marker = self.tables.line.match(self.text, end) if at_line_start else None
                if marker is not None and marker.lastindex:
                    return True
                marker = marker or markers.match(self.text, end)
                if marker is None:
                    return False
                if marker.lastindex:
                    value = markers.values[marker.lastindex - 1]
                    return value in allowed if isinstance(value, str) else not isinstance(value, Found)
                if self.ended:  # cut in the middle of a marker
                    return self.text[end] not in "{[`"
            yield

    def after(self) -> Grammar:
        """The closers of a call, each at most once and in order; white space before them is markup."""
        candidate = self.candidate
        shown = not candidate.committed and self.sink is not Sink.SYNTAX
        form = candidate.format
        own = list(closers_of_call(form)) if form and not candidate.self_closed else []
        if candidate.wrappers and not shown:
            if any(close[0] == TICK for close in candidate.wrappers):
                self.wrapping = tuple(close for close in self.wrapping if close[0] != TICK)
            self.wrapping += tuple(close for close in candidate.wrappers if close not in self.wrapping)
            candidate.wrappers = []
        around = [close for _, close in form.wrappers[::-1] if close not in self.wrapping] if form and not shown else []
        pending = [*own, *around, *reversed(candidate.wrappers if shown else self.wrapping)]
        while pending:
            length, close = yield from self.next_closer(pending)
            if not length:
                break
            self.take(length)
            if close in self.wrapping:
                self.wrapping = self.wrapping[: self.wrapping.index(close)]
            pending = pending[pending.index(close) + 1 :]
        self.ticks = 0
        self.gap = not shown
        self.fresh = not self.seen or (not shown and form is not None and form.special)
        self.line_start = False
        self.sink = self.visible
        self.go(Input.RESUME if self.thinking else Input.DONE)

    def closes(self) -> Generator[None, None, bool]:
        """True if the model ends the call here: its closer follows, or that of a wrapper."""
        candidate = self.candidate
        own = closers_of_call(candidate.format) if candidate.format and not candidate.bare else ()
        pending = [*own, *reversed(candidate.wrappers), *reversed(self.wrapping)]
        length, _ = (yield from self.next_closer(pending)) if pending else (0, "")
        return length > 0 and (self.stopped or not self.ended)

    def next_closer(self, pending: list[str]) -> Generator[None, None, tuple[int, str]]:
        """Length up to the end of the next closer, white space before it included; (0, "") if none comes."""
        markers = closers_of(tuple(pending))
        while True:
            found = space(self.text, self.at)
            begin = found.end() if found else self.at
            if begin - self.at > MAX_NEWLINES * 4:
                return 0, ""
            if begin < len(self.text):
                closer = markers.match(self.text, begin)
                if closer is None:
                    return 0, ""
                if closer.lastindex:
                    return closer.end() - self.at, markers.values[closer.lastindex - 1]
                if self.ended:
                    return len(self.text) - self.at, pending[-1]
            if self.ended:
                return 0, ""
            yield

    def broken(self) -> Grammar:
        """A call that cannot be read any further: discarded to its closer, else to the end of the line."""
        self.sink = Sink.DISCARD
        form = self.candidate.format
        own = form is not None and form.close and form.closed and not self.candidate.bare
        pending = tuple([form.close] if form and own else self.candidate.wrappers[-1:])
        run = run_to(pending) if pending else BROKEN_LINE
        while True:
            yield from self.flow(run)
            if self.at < len(self.text):
                closer = closers_of(pending).match(self.text, self.at) if pending else None
                if not pending or (closer and closer.lastindex):
                    break
            yield from self.more()
        self.sink = Sink.SYNTAX
        self.go(Input.END)


@lru_cache(maxsize=256)
def closers_of_call(form: Format) -> tuple[str, ...]:
    """What may close a call of a format."""
    ends = [end for variant in form.variants if isinstance(variant.body, Message) for end in variant.body.ends]
    return tuple(dict.fromkeys(close for close in (form.close, *ends) if close))


def chosen(formats: Iterable[str | Format]) -> tuple[tuple[str, ...], tuple[Format, ...]]:
    """The names in the order of the table, so that the order given does not matter, and the formats that are not in it.

    Raises:
        ValueError: there is no such format, or one cannot be read.

    """
    given = frozenset(formats)
    others = tuple(form for form in given if isinstance(form, Format))
    for name in given.difference(others):
        if name not in FORMATS:
            raise ValueError(f"there is no format {name!r}; the formats are {', '.join(FORMATS)}")
    names = tuple(name for name in FORMATS if name in given)
    if others:
        check({**{name: FORMATS[name] for name in names}, **{form.name: form for form in others}})
    return names, tuple(sorted(others, key=lambda form: form.name))


def precompile(formats: Iterable[str | Format] | None = None) -> None:
    """Nothing; compiles what these formats need, which takes about half a second, so that no reply waits for it."""
    names, others = (DEFAULT, ()) if formats is None else chosen(formats)
    compiled(names, (), others).precompile()


def parse(text: str, tools: Tools = None, **options: Any) -> tuple[str, list[Call]]:
    """The visible text of a whole reply and its calls, incomplete ones included. Options as of `Parser`."""
    parser = Parser(tools, **options)
    visible: list[str] = []
    calls: list[CallStart] = []
    arguments: list[list[str]] = []
    for event in [*parser.feed(text), *parser.close()]:
        match event:
            case TextDelta(text=piece):
                visible.append(piece)
            case CallStart():
                calls.append(event)
                arguments.append([])
            case ArgumentsDelta(text=piece):
                arguments[-1].append(piece)
            case _:
                pass
    whole = [Call(call.name, "".join(pieces), call.id) for call, pieces in zip(calls, arguments, strict=True)]
    return "".join(visible), whole
