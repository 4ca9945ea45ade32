"""Stages that buffer visible text until a forced call begins, an answer with a required form is complete, or an opening
is known not to be a denial.

They buffer whole events, so that text can still be emitted as the original events when it is released.
"""

from streamtool.core.reply import ReplyEvent, ReplyTextDelta
from streamtool.filters.choice_state import ChoiceState, Tally
from streamtool.filters.stages import Content, Stage
from streamtool.forcing.rules import Rules
from streamtool.policy.evidence import Opening
from streamtool.policy.failures import find
from streamtool.refusals import OpeningWatch


class TextBuffer:
    """A buffer for text until it is known whether the attempt is accepted, so that a rejected attempt leaves no trace.

    Text is held back until a forced call commits, or until an answer with a required form ends. Reasoning is buffered
    only after buffered text, to preserve the order.
    """

    __slots__ = ("_held", "_limit", "_next", "_size", "_tally", "active")

    def __init__(self, rules: Rules, tally: Tally, then: Stage, *, active: bool) -> None:
        self._limit = rules.text.max_buffered
        self._tally = tally
        self._next = then
        self._held: list[Content] = []
        self._size = 0
        self.active = active
        """Whether text is being buffered."""

    @property
    def text(self) -> str:
        """The buffered text."""
        return "".join(event.text for event in self._held if type(event) is ReplyTextDelta)

    @property
    def size(self) -> int:
        """Number of buffered characters."""
        return self._size

    @property
    def holds(self) -> bool:
        """Whether something is buffered."""
        return bool(self._held)

    def restart(self, *, active: bool) -> None:
        """Reset for the next attempt, and discard the buffered events."""
        self._held.clear()
        self._size = 0
        self.active = active

    def feed(self, event: Content, out: list[ReplyEvent]) -> None:
        """Buffer the event if the stage is active; otherwise, pass it on. If the buffer exceeds its limit, flush it."""
        if not self.active or not (self._held or type(event) is ReplyTextDelta):
            self._next.feed(event, out)
            return
        self._held.append(event)
        self._size += len(event.text)
        self._tally.count_buffered(self._size)
        if self._size > self._limit:
            self.close(out)

    def close(self, out: list[ReplyEvent]) -> None:
        """Flush the buffered events and stop buffering."""
        held, self._held = self._held, []
        self._size = 0
        self.active = False
        for event in held:
            self._next.feed(event, out)
        self._next.close(out)


class OpeningFilter:
    """A stage that buffers the opening of a reply while it may still deny having tools.

    In the last attempt, it observes the opening without buffering it.
    """

    __slots__ = ("_held", "_next", "_rules", "_size", "_state", "_tally", "_watch")

    def __init__(self, rules: Rules, state: ChoiceState, tally: Tally, then: Stage) -> None:
        self._rules = rules
        self._state = state
        self._tally = tally
        self._next = then
        self._held: list[Content] = []
        self._size = 0
        """Number of characters of buffered reasoning."""
        self._watch: OpeningWatch | None = None
        self.restart()

    @property
    def active(self) -> bool:
        """Whether the opening is still undecided."""
        return self._watch is not None

    @property
    def holds(self) -> bool:
        """Whether something is buffered."""
        return bool(self._held)

    def restart(self) -> None:
        """Reset for the next attempt. If the client has already seen text, the attempt has no opening to watch."""
        self._held.clear()
        self._size = 0
        refusals = self._rules.refusals
        watched = refusals.watch and not self._state.visible
        self._watch = (
            OpeningWatch(refusals.phrases, refusals.topics, environment=refusals.environment) if watched else None
        )

    def feed(self, event: Content, out: list[ReplyEvent]) -> None:
        """Buffer a piece of the opening until it is clear that it denies nothing."""
        if self._watch is not None and type(event) is ReplyTextDelta:
            self._held.append(event)
            self._watch.feed(event.text)
            self._decide(self._watch, out)
        elif self._held:
            self._held.append(event)
            self._size += len(event.text)
            self._tally.count_buffered(self._size)
            if self._size > self._rules.text.max_buffered:
                self.close(out)
        else:
            self._next.feed(event, out)

    def end(self, out: list[ReplyEvent], *, broken: bool) -> None:
        """Note the end of the reply, which may complete a phrase. A reply that was cut off proves nothing."""
        if self._watch is not None:
            if broken:
                self._watch.release()
            else:
                self._watch.close()
            self._decide(self._watch, out)

    def close(self, out: list[ReplyEvent]) -> None:
        """Flush the opening, because the output after it shows that it is not a denial."""
        self._watch = None
        self._release(out)
        self._next.close(out)

    def _decide(self, watch: OpeningWatch, out: list[ReplyEvent]) -> None:
        """Release the opening, as its original events, once it is known not to be a denial. A denial ends the
        attempt.
        """
        if self._state.may_retry:
            self._tally.count_buffered(watch.held)
        if watch.found is not None:
            found = find(Opening(rules=self._rules, denies=watch.found, phrase=watch.phrase))
            if self._state.reject(found):
                return
            self._state.tolerate(found)
            watch.release()  # an honest answer, since no tool could have helped; or the last attempt
        if watch.decided:
            self._watch = None
        if watch.decided or not self._state.may_retry:
            self._release(out)

    def _release(self, out: list[ReplyEvent]) -> None:
        held, self._held = self._held, []
        self._size = 0
        for event in held:
            self._next.feed(event, out)
