"""The spans that are not calls: text, inline code, reasoning, fences, and objects that turned out to be no call.

Text flows in one run whose pattern knows the first characters of everything that may begin (`compiled.text_run`); this
file is entered only where something may. What is held is the beginning of a marker at the end of a piece, and a run of
line ends, because line ends directly before an opener are markup; so are those after a call, which are given back only
when text follows and text came before.
"""

import re
from collections.abc import Generator, Mapping
from functools import lru_cache
from typing import Any

from statemachine.candidate import Candidate
from statemachine.formats.compile import INFO, JSON_FLAT, MAX_NEWLINES, TICK, TICKS, Compiled, Found, Marked, Scanner
from statemachine.formats.format import Section
from statemachine.formats.markers import Markers, flowing_run
from statemachine.formats.openers import Keys, Opener, Opening
from statemachine.machine import Limits, Machine
from statemachine.reader import Grammar, Mismatch, Sink
from statemachine.runs import Run
from statemachine.states import Input

line_ends = re.compile(r"(?:\r?\n)++").match
blanks = re.compile(r"[ \t]*+").match
KEYWORD = r"[A-Za-z_]\w{0,127}+[ \t]{0,16}+(?:\Z|=(?:\Z|(?!=)()))"
ARGUMENTS = rf"\([ \t\r\n]{{0,64}}+(?:\Z|(\))|{KEYWORD})"
list_begins = re.compile(rf"\[[ \t\r\n]{{0,64}}+(?:\Z|[A-Za-z_][\w.]{{0,127}}+[ \t]{{0,16}}+(?:\Z|{ARGUMENTS}))").match
"""A list of call expressions, up to the end of its first call's arguments or to its first keyword."""
fence_line = re.compile(rf"(`{{3,{TICKS}}}+)(?!`)([^`\r\n]{{0,{INFO}}})(?:(\r?\n)|(\r?\Z))").match
fence_end = re.compile(rf"[ \t]{{0,3}}+(`{{3,{TICKS}}}+)(?!`)[ \t]{{0,64}}+(?:(?=\r?\n)|(\r?\Z))").match
fence_begun = re.compile(r"[ \t]{0,3}+`{0,2}\Z").match

FENCE = Run(
    r"[^\n]*+(?:\n(?![ \t]{0,3}+(?:```|`{0,2}\Z))[^\n]*+)*+(\n[ \t]{0,3}+`{0,2}\Z)?+",
    search=re.compile(r"\n").search,
)
OBJECT = Run(rf'{JSON_FLAT}(?:(?!)()|"(?:[^"\\]++|\\.)*+()\Z)?+')
STRING = Run(rf'(?:[^"\\]++|\\.)*+(?:(\\\Z)|"{JSON_FLAT}()\Z)?+')
OBJECT.others, STRING.others = {2: STRING}, {2: OBJECT}


@lru_cache(maxsize=256)
def closers_of(closers: tuple[str, ...]) -> Markers[str]:
    """Closers as markers; of two fences the longer one: a set in which one begins with the other has no answer."""
    different = dict.fromkeys(closers)
    longest = [close for close in different if not any(o != close and o.startswith(close) for o in different)]
    return Markers([(close, close) for close in longest])


@lru_cache(maxsize=256)
def run_to(closers: tuple[str, ...]) -> Run:
    """Text up to one of the closers."""
    return flowing_run(closers_of(closers))


class Spans(Machine):
    """A machine that reads everything but calls; `call` is the parser's."""

    __slots__ = ("fence_calls", "gap", "in_code", "in_quote", "line_start", "tables", "ticks")

    def __init__(
        self,
        tools: Mapping[str, Any] | None,
        tables: Compiled,
        *,
        fence_calls: bool,
        unknown: str,
        malformed: str,
        limits: Limits,
        ledger: bool,
    ) -> None:
        self.tables = tables
        self.fence_calls = fence_calls
        self.line_start = True
        """Only blanks came since the last line end."""
        self.in_code = False
        """Inside of inline code."""
        self.in_quote = False
        """Inside of a line of a block quote."""
        self.gap = False
        """A call has just ended: the line ends that follow are its own unless text follows."""
        self.ticks = 0
        """Backticks of the fence around."""
        super().__init__(tools, unknown=unknown, malformed=malformed, limits=limits, ledger=ledger)

    def call(self, value: Marked, length: int) -> Grammar:
        """A call whose opener, of this length, stands here."""
        raise NotImplementedError

    def saw(self, something: bool) -> None:
        """Visible text came."""
        if something and not self.muted and not self.thinking:
            self.seen, self.fresh = True, False

    def open(self) -> None:
        """A candidate starts."""
        self.go(Input.OPEN)
        self.candidate = Candidate()
        self.sink = Sink.HOLD
        self.target = False
        self.line_start = False
        self.gap = False

    # ---- text

    def prose(self) -> Grammar:
        """Text in which openers are looked for."""
        self.sink = self.visible
        if self.said:
            yield from self.message()
            self.sink = self.visible
        if self.gap:
            yield from self.gap_after_call()
        while True:
            if self.line_start and (yield from self.line_opener()):
                return
            scanner = self.scanner()
            run = scanner.code if self.in_code else (self.in_quote and scanner.quote) or scanner.inside
            if self.seen and not self.fresh and not self.line_start:
                yield from self.flow(run)
                self.line_start, self.in_code = self.ran is scanner.start, self.ran is scanner.code
                self.in_quote = self.ran is scanner.quote
                if self.line_start and self.at < len(self.text):
                    continue
            elif self.say_first(run):
                continue
            if self.at >= len(self.text):
                yield from self.more()
            elif self.in_code or self.in_quote:
                self.say_text(self.in_code and self.text[self.at] == TICK)
                self.in_code = self.in_quote = False
            elif (yield from self.place(scanner.at)):
                return

    def scanner(self) -> Scanner:
        """How text is read where we are."""
        if self.thinking:
            return self.tables.scanner(closers=True)
        if not self.wrapping and not self.fresh:
            return self.tables.first if not self.seen else self.tables.usual
        return self.tables.scanner(first=not self.seen, fresh=self.fresh, closers=bool(self.wrapping))

    def say_first(self, run: Run) -> bool:
        """Text up to the next place, while it matters whether something visible has come; true if now it has."""
        found = run.match(self.text, self.at)
        if found is None:
            return False
        before, group = (self.seen, self.fresh), found.lastindex
        self.say_text((found.start(1) if group == 1 else found.end()) - self.at)
        self.line_start = self.line_start or (group == 2 and not (self.in_code or self.in_quote))
        self.in_code = group == 3 or (self.in_code and group != 2)
        self.in_quote = group == 4 or (self.in_quote and group != 2)
        return before != (self.seen, self.fresh)

    def say_text(self, length: int) -> None:
        """Text, emitted at once."""
        if length > 0:
            muted = self.muted
            piece = self.take(length)
            if (self.fresh or not self.seen) and not self.thinking and piece[muted:].strip():
                self.seen, self.fresh = True, False
            self.line_start = False

    def place(self, markers: Markers[Marked]) -> Generator[None, None, bool]:
        """Something may begin here: true if it did, and another span is next."""
        run = line_ends(self.text, self.at)
        lead = (run.end() if run else self.at) - self.at
        start = self.at + lead
        if start >= len(self.text) or (self.text[start] == "\r" and start + 1 >= len(self.text)):
            self.say_text(len(self.text) - self.at - MAX_NEWLINES)
            yield from self.more()
            return False
        if lead > MAX_NEWLINES:
            self.say_text(lead - MAX_NEWLINES)
            return False
        if lead:
            after = blanks(self.text, start)
            begin = after.end() if after else start
            if begin >= len(self.text) or (
                self.quotes(begin, markers if begin == start else None)
                if self.text[begin] == ">"
                else begin > start and self.tables.line.match(self.text, begin)
            ):
                self.say_text(begin - self.at)
                self.line_start = True
                return False
            found = self.tables.line.match(self.text, start)
            if found is not None:
                if found.lastindex is None:
                    yield from self.more()
                elif self.text[start] == TICK and self.plain_fence(lead):
                    return True
                self.line_start = True
                return False
        found = markers.match(self.text, start)
        if found is None:
            self.say_text(lead + 1)
            return False
        if found.lastindex is None:
            yield from self.more()
            return False
        value, length = markers.values[found.lastindex - 1], found.end() - self.at
        del found  # a match of so many groups takes more room than the rest of the parser
        return (yield from self.marker(value, lead, length))

    def marker(self, value: Marked, lead: int, end: int) -> Generator[None, None, bool]:
        """A marker stands here up to `end`, after `lead` characters of line ends; true if another span is next."""
        if value is Found.TICK:
            self.say_text(end)
            self.in_code = True
            return False
        if isinstance(value, str):
            if value in self.tables.strays and not (yield from self.ends_something(value, end)):
                return False
            return self.closer(value, lead, end)
        if isinstance(value, Section):
            if self.thinking:
                self.say_text(lead + 1)
                return False
            self.opened(value, end)
        elif value is Found.LIST and not (yield from self.begins_list(lead)):
            return False
        elif value is Found.BARE and self.plain_object(lead):
            self.go(Input.OPEN)
            self.go(Input.DEMOTE)
        elif value is Found.BARE and self.plain_array(lead):
            return False
        elif value is Found.BARE and self.scanner().begun(self.text, self.text.find("{", self.at + lead)):
            yield from self.more()
            return False
        else:
            self.open()
            if lead:
                self.take(lead)
            yield from self.call(value, end - lead)
        return True

    def plain_object(self, lead: int) -> bool:
        """True if the first key of the object here says at once that it is no call."""
        if self.text[self.at + lead] == "[" or not self.scanner().plain(self.text, self.at + lead):
            return False
        self.say_text(lead + 1)
        self.stack, self.quoted = ["}"], False
        return True

    def plain_array(self, lead: int) -> bool:
        """True if the first object of the array here says at once that it is no call: the bracket is text."""
        begin = self.text.find("{", self.at + lead)
        if self.text[self.at + lead] != "[" or not self.scanner().plain(self.text, begin):
            return False
        self.say_text(begin - self.at)
        return True

    def begins_list(self, lead: int) -> Generator[None, None, bool]:
        """True if a list of call expressions may begin here; else the bracket is text."""
        found = list_begins(self.text, self.at + lead)
        if found is None:
            self.say_text(lead + 1)
        elif found.lastindex:
            return True
        else:
            yield from self.more()
        return False

    def opened(self, section: Section, end: int) -> None:
        """The opener of reasoning, or of text that stands between markers, with the line ends before it."""
        self.sink = Sink.SYNTAX
        self.take(end)
        if section.text:
            self.wrapping += () if section.close in self.wrapping else (section.close,)
            self.go(Input.DONE)
        else:
            self.thinking = (section.close,)
            self.go(Input.THINK)

    def ends_something(self, close: str, end: int) -> Generator[None, None, bool]:
        """True if the closer of a special span that stands here is markup: something is open, or the reply is over."""
        if self.fresh or close in self.wrapping or close in self.thinking:
            return True
        if self.text[self.at + end :].strip():
            self.say_text(end)
        elif self.ended:
            return True
        else:
            yield from self.more()
        return False

    def closer(self, close: str, lead: int, end: int) -> bool:
        """The closer of the reasoning span around (true: back to text), or of a wrapper; else text.

        One of reasoning that stands first in a reply closes what the prompt has opened.
        """
        if close in self.thinking:
            self.say_text(lead)
            self.sink = Sink.SYNTAX
            self.take(end - lead)
            self.thinking, self.fresh = (), self.fresh or close in self.tables.strays
            self.go(Input.THOUGHT)
            return True
        lone = close not in self.wrapping
        if lone and close not in self.tables.strays and (self.seen or close not in self.tables.lone):
            self.say_text(lead + 1)
            return False
        if lone:
            self.say_text(lead)
            end -= lead
        else:
            self.wrapping = self.wrapping[: self.wrapping.index(close)]
            self.gap = True
            self.fresh = self.fresh or close in self.tables.strays
        self.sink = Sink.SYNTAX
        self.take(end)
        self.sink = self.visible
        self.line_start = False
        self.go(Input.DONE)
        return True

    def line_opener(self) -> Generator[None, None, bool]:
        """At the start of a line, line ends perhaps held before it: true if an opener stood here and was read."""
        while True:
            run = line_ends(self.text, self.at)
            lead = (run.end() if run else self.at) - self.at
            if lead and self.at + lead >= len(self.text):
                return False
            after = blanks(self.text, self.at + lead)
            begin = (after.end() if after else self.at + lead) - self.at
            if begin > lead:
                self.take(begin)
            elif self.at + begin >= len(self.text):
                yield from self.more()
            else:
                found = self.tables.line.match(self.text, self.at + begin)
                if found is None:
                    if self.text[self.at + begin] != ">" or (yield from self.quote_begins(begin)):
                        self.line_start = False
                        return False
                    continue
                if found.lastindex is not None and not self.fence_begun(begin):
                    break
                yield from self.more()
        value = self.tables.line.values[found.lastindex - 1]
        if value is Found.FENCE:
            if self.plain_fence(lead):
                return True
            if length := (yield from self.fence_closer(begin)):
                return self.closer(next(close for close in self.wrapping if close[0] == TICK), lead, length)
        self.open()
        if lead:
            self.take(lead)
        if value is Found.FENCE:
            yield from self.fence_opener()
        else:
            yield from self.call(value, found.end() - self.at)
        return True

    def quotes(self, begin: int, markers: Markers[Marked] | None) -> bool:
        """True if the `>` that stands there, first in its line, may make the line one of a block quote: none of the
        markers begins so.
        """
        return self.scanner().quote is not None and (markers is None or markers.match(self.text, begin) is None)

    def quote_begins(self, lead: int) -> Generator[None, None, bool]:
        """At a `>` that stands first in its line, after line ends: text to the end of the line, unless it is a marker.

        False: more had to come, look again.
        """
        scanner = self.scanner()
        found = scanner.at.match(self.text, self.at + lead)
        if found is not None and found.lastindex is None:
            yield from self.more()
            return False
        if found is None and scanner.quote is not None:
            self.say_text(lead)
            self.in_quote = True
        return True

    def plain_fence(self, lead: int) -> bool:
        """True if a fence stands here, after line ends, in which no call stands first: it is text from here on."""
        plain = self.tables.plain_fence(self.text, self.at + lead)
        if plain is None or self.fence_calls or self.wrapping:
            return False
        self.ticks = len(plain[1])
        self.say_text(plain.end() - self.at)
        self.go(Input.OPEN)
        self.go(Input.FENCE)
        return True

    def fence_begun(self, offset: int) -> bool:
        """True if a fence stands here of which too little has come to say whether a call stands first in it."""
        return (
            self.text[self.at + offset] == TICK
            and not self.fence_calls
            and all(close[0] != TICK for close in self.wrapping)
            and self.tables.begun_fence(self.text, self.at + offset) is not None
        )

    def fence_closer(self, offset: int) -> Generator[None, None, int]:
        """Where the closing line of the fence around a call ends, counted from here; 0 if none stands `offset` on."""
        ticks = [len(close) for close in self.wrapping if close[0] == TICK]
        while ticks:
            found = fence_end(self.text, self.at + offset)
            if found is None:
                break
            if len(found[1]) < ticks[0]:
                if self.ended or found.end(1) < len(self.text):
                    break
            elif found.lastindex != 2 or self.ended:
                return found.end() - self.at
            yield
        return 0

    def gap_after_call(self) -> Grammar:
        """Line ends after a call are markup, but given back when text follows and text came before."""
        while True:
            run = line_ends(self.text, self.at)
            end = run.end() if run else self.at
            if end - self.at > MAX_NEWLINES:  # a run that does not end
                self.sink = self.visible if self.seen else Sink.SYNTAX
                self.take(end - self.at - MAX_NEWLINES)
                continue
            if end < len(self.text) and not (self.text[end] == "\r" and end + 1 == len(self.text)):
                length = end - self.at
                found = self.tables.line.match(self.text, end) if length else None
                if found is None:
                    found = self.scanner().at.match(self.text, end)
                if found is None or found.lastindex is not None or self.ended:
                    break
            yield from self.more()
        opens = found is not None and found.lastindex is not None and self.text[end] != "`"
        self.gap = False
        self.line_start = length > 0
        if length and (opens or not self.seen):
            self.sink = Sink.SYNTAX
            self.take(length)
        self.sink = self.visible

    def reasoning(self) -> Grammar:
        """A reasoning span, to its closer."""
        self.sink = Sink.REASONING
        while True:
            yield from self.flow(run_to(self.thinking))
            close, length = self.stop(self.thinking)
            if close:
                self.closer(close, 0, length)
                return
            yield from self.more()

    def stop(self, closers: tuple[str, ...]) -> tuple[str, int]:
        """The closer that stands here, whole, and its length; ("", 0) if none does."""
        markers = closers_of(closers)
        found = markers.match(self.text, self.at)
        if found is None or not found.lastindex:
            return "", 0
        return markers.values[found.lastindex - 1], found.end() - self.at

    def message(self) -> Grammar:
        """A message that is text and nothing else, to its end, or to the opener of the next one."""
        opener = self.said[-1]
        ends = (*self.said, "\n" + opener, "\r\n" + opener)
        run = run_to(ends)
        while True:
            if self.seen and not self.fresh:
                yield from self.flow(run)
            elif found := run.match(self.text, self.at):  # it matters whether something visible has come
                self.say_text((found.start(1) if found.lastindex else found.end()) - self.at)
            close, length = self.stop(ends)
            if close:
                break
            yield from self.more()
        self.said, self.fresh = (), True
        self.sink = Sink.SYNTAX
        self.take(length - len(opener) if close.endswith(opener) else length)

    # ---- fences and objects

    def fence_opener(self) -> Grammar:
        """A fence: a call that stands first in it is a call and the fence is markup; else it is text."""
        while True:
            found = fence_line(self.text, self.at)
            if found is None:
                self.not_a_fence()
                return
            if found[3]:
                break
            yield from self.more()
        self.ticks = len(found[1])
        self.take(found.end() - self.at)
        self.candidate.wrappers.append("`" * self.ticks)
        self.candidate.marked = found[2].strip().lower() in self.tables.fence_infos
        yield from self.blank()
        while True:
            for markers in (self.tables.line, self.tables.opening):
                opener = markers.match(self.text, self.at)
                if opener is not None:
                    break
            if opener is None or opener.lastindex:
                break
            yield from self.more()
        value = markers.values[opener.lastindex - 1] if opener is not None and opener.lastindex else None
        if not isinstance(value, Opener) or opener is None:
            expression = self.tables.fence_expressions.get(found[2].strip().lower())
            if expression and self.text[self.at] not in "{[":
                self.candidate.marked = False
                yield from self.expression(expression)
                return
            if self.text[self.at] not in self.tables.fenced:
                raise Mismatch
            yield from self.envelope(self.tables.fenced[self.text[self.at]])
            return
        self.candidate.marked = True
        yield from self.call(value, opener.end() - self.at)

    def envelope(self, keys: Keys) -> Grammar:
        """An envelope; the parser's."""
        raise NotImplementedError

    def expression(self, opening: Opening) -> Grammar:
        """Call expressions; the parser's."""
        raise NotImplementedError

    def not_a_fence(self) -> None:
        """Backticks at the start of a line that open no fence: text, perhaps inline code."""
        ticks = len(self.text) - self.at - len(self.text[self.at :].lstrip("`"))
        self.take(ticks)
        self.release(self.visible)
        self.saw(True)
        self.line_start = False
        self.in_code = ticks % 2 == 1
        self.go(Input.RESUME if self.thinking else Input.REJECT)

    def fence(self) -> Grammar:
        """A fence that is text, to its closing line."""
        self.sink = self.visible
        while True:
            if not self.line_start:
                yield from self.flow(FENCE)
                if self.at >= len(self.text):
                    yield from self.more()
                    continue
                self.say_text(1)
                self.line_start = True
            found = fence_end(self.text, self.at)
            if (found.lastindex == 2) if found else fence_begun(self.text, self.at):
                yield from self.more()
            elif found is None or len(found[1]) < self.ticks:
                self.line_start = False
                if self.text[self.at] != "\n":
                    self.say_text(1)
            else:
                self.say_text(found.end() - self.at)
                self.ticks = 0
                self.go(Input.RESUME if self.thinking else Input.END)
                return

    def object_text(self) -> Grammar:
        """A JSON object that is no call: text to its closing brace, unless it stops being JSON."""
        self.sink = self.visible
        stack = self.stack
        run = STRING if self.quoted else OBJECT
        while True:
            text, at = self.text, self.at
            while True:
                found = run.match(text, at)
                group = found.lastindex if found is not None else None
                at = at if found is None else found.start(1) if group == 1 else found.end()
                if group == 2:
                    run = run.others[2]
                if group == 1 or at >= len(text):
                    break
                char = text[at]
                if char == '"':
                    run = OBJECT if run is STRING else STRING
                elif char in "{[":
                    stack.append("}" if char == "{" else "]")
                elif stack and char == stack[-1]:
                    stack.pop()
                else:  # not JSON: text in which openers count again
                    self.say_text(at - self.at)
                    self.go(Input.RESUME if self.thinking else Input.REJECT)
                    return
                at += 1
                if not stack:
                    self.say_text(at - self.at)
                    self.go(Input.RESUME if self.thinking else Input.END)
                    return
            self.say_text(at - self.at)
            self.saw(True)
            self.arm(run, waiting=self.at < len(text))
            yield from self.more()
            run = self.ran or run
