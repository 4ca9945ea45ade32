"""The stages of visible text that hold it back: until a forced call comes, until an answer that has to have a form is
whole, or while an opening may be a denial.

Each of them holds whole events, so that what passes in the end can still go out as the events that came.
"""

from streamtool.policy.choice_state import ChoiceState, Tally
from streamtool.policy.evidence import Opening
from streamtool.policy.failures import find
from streamtool.policy.refusals import OpeningWatch
from streamtool.policy.rules import Rules
from streamtool.policy.stages import Content, Stage
from streamtool.reply import ReplyEvent, ReplyTextDelta


class TextHold:
    """Holds text back until it is known whether the attempt is accepted, so that nothing is visible of one that is not.

    Text waits for a forced call to commit, or for the end of an answer that has to have a form. Reasoning waits only
    behind text, to keep the order.
    """

    __slots__ = ("_held", "_limit", "_next", "_size", "_tally", "active")

    def __init__(self, rules: Rules, tally: Tally, then: Stage, *, active: bool) -> None:
        self._limit = rules.text.held
        self._tally = tally
        self._next = then
        self._held: list[Content] = []
        self._size = 0
        self.active = active
        """Text waits."""

    @property
    def text(self) -> str:
        """The text that waits."""
        return "".join(event.text for event in self._held if type(event) is ReplyTextDelta)

    @property
    def size(self) -> int:
        """Characters that wait."""
        return self._size

    @property
    def holds(self) -> bool:
        """Something waits."""
        return bool(self._held)

    def restart(self, *, active: bool) -> None:
        """The next attempt begins: what the last one held is dropped."""
        self._held.clear()
        self._size = 0
        self.active = active

    def feed(self, event: Content, out: list[ReplyEvent]) -> None:
        """Hold the event back. Beyond the limit everything goes out."""
        if not self.active or not (self._held or type(event) is ReplyTextDelta):
            self._next.feed(event, out)
            return
        self._held.append(event)
        self._size += len(event.text)
        self._tally.hold(self._size)
        if self._size > self._limit:
            self.close(out)

    def close(self, out: list[ReplyEvent]) -> None:
        """Nothing waits any more."""
        held, self._held = self._held, []
        self._size = 0
        self.active = False
        for event in held:
            self._next.feed(event, out)
        self._next.close(out)


class OpeningFilter:
    """Holds the opening of a reply back while it may still deny the tools. The last attempt is only looked at."""

    __slots__ = ("_held", "_next", "_rules", "_size", "_state", "_tally", "_watch")

    def __init__(self, rules: Rules, state: ChoiceState, tally: Tally, then: Stage) -> None:
        self._rules = rules
        self._state = state
        self._tally = tally
        self._next = then
        self._held: list[Content] = []
        self._size = 0
        """Characters of reasoning among what is held."""
        self._watch: OpeningWatch | None = None
        self.restart()

    @property
    def active(self) -> bool:
        """The opening is not decided."""
        return self._watch is not None

    @property
    def holds(self) -> bool:
        """Something waits."""
        return bool(self._held)

    def restart(self) -> None:
        """The next attempt begins. It has no opening if the client has seen text already."""
        self._held.clear()
        self._size = 0
        refusals = self._rules.refusals
        watched = refusals.watched and not self._state.visible
        self._watch = OpeningWatch(refusals.phrases) if watched else None

    def feed(self, event: Content, out: list[ReplyEvent]) -> None:
        """A piece of the opening waits with those before it until it is clear that nothing is denied."""
        if self._watch is not None and type(event) is ReplyTextDelta:
            self._held.append(event)
            self._watch.feed(event.text)
            self._decide(self._watch, out)
        elif self._held:
            self._held.append(event)
            self._size += len(event.text)
            self._tally.hold(self._size)
            if self._size > self._rules.text.held:
                self.close(out)
        else:
            self._next.feed(event, out)

    def end(self, out: list[ReplyEvent], *, broken: bool) -> None:
        """The reply is over, which may end a phrase. Of one that broke off nothing is concluded."""
        if self._watch is not None:
            if broken:
                self._watch.release()
            else:
                self._watch.close()
            self._decide(self._watch, out)

    def close(self, out: list[ReplyEvent]) -> None:
        """What follows makes it no denial."""
        self._watch = None
        self._release(out)
        self._next.close(out)

    def _decide(self, watch: OpeningWatch, out: list[ReplyEvent]) -> None:
        """Let the opening go, each piece as it came, once it is decided. A denial ends the attempt."""
        if self._state.may_retry:
            self._tally.hold(watch.held)
        if watch.found is not None:
            found = find(Opening(rules=self._rules, denies=watch.found, phrase=watch.phrase))
            if self._state.rejects(found):
                return
            self._state.tolerate(found)
            watch.release()  # no tool could have done it, so it is an honest answer; or this is the last attempt
        if watch.decided:
            self._watch = None
        if watch.decided or not self._state.may_retry:
            self._release(out)

    def _release(self, out: list[ReplyEvent]) -> None:
        held, self._held = self._held, []
        self._size = 0
        for event in held:
            self._next.feed(event, out)
