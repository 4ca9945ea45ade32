"""The state of a conversation, derived from its messages alone.

Only the last assistant message and the messages after it matter. Earlier tool history does not affect the state: a new
question after a final answer is a first decision again, and no state requires another call.

    … user                                       first decision
    … assistant(calls)                           call emitted
    … assistant(a, b) result(a)                  waiting for results
    … assistant(a, b) result(a) result(b)        result received, next decision pending
    … assistant(a) user                          first decision (the call was interrupted)
    … assistant(text)                            final answer
"""

from collections.abc import Iterable, Sequence
from enum import Enum

from attrs import define, field

from streamtool.core.conversation import Message, ToolCall, ToolResult


class Turn(Enum):
    """The state of a conversation."""

    FIRST_DECISION = "first decision"
    """The user has sent a message, and no call has been made in response to it yet."""
    CALL_EMITTED = "call emitted"
    """The last message contains calls; no result has arrived."""
    WAITING = "waiting for results"
    """Some calls of the last assistant message have results, others do not."""
    NEXT_DECISION = "result received, next decision pending"
    """Another call or a final answer may follow; neither is mandatory."""
    FINAL = "final answer"
    """The last message is the assistant's and contains no calls."""


@define(eq=False)
class Pairing:
    """The pairing of results with calls, message by message.

    A result belongs to the latest unanswered call with its id; a legacy result (or one with an unknown id) belongs to
    the earliest unanswered call to the function that it names. If an id is repeated in a conversation, the later call
    wins.
    """

    waiting: dict[int, ToolCall] = field(factory=dict, init=False)
    """Calls without a result, by their position in the last assistant message; only this class changes it."""
    _by_id: dict[str, list[int]] = field(factory=dict, init=False)
    """Positions of calls, the earliest last, by call id; those of answered calls are removed when they reach the
    end.
    """
    _by_name: dict[str, list[int]] = field(factory=dict, init=False)
    _late: dict[str, ToolCall] = field(factory=dict, init=False)

    @property
    def open(self) -> Sequence[ToolCall]:
        """The calls in the last assistant message that have no result, in order."""
        return list(self.waiting.values())

    def emit(self, calls: Iterable[ToolCall]) -> None:
        """Record an assistant message with these calls; calls that are still open are interrupted."""
        if self.waiting:
            self.interrupt()
        elif self._by_id:
            self._by_id.clear()
            self._by_name.clear()
        self.waiting.update(enumerate(calls))
        for place, call in reversed(self.waiting.items()):
            self._by_id.setdefault(call.id, []).append(place)
            self._by_name.setdefault(call.name, []).append(place)

    def interrupt(self) -> list[ToolCall]:
        """Mark the open calls as interrupted and return them; their results may still arrive late."""
        given_up = list(self.waiting.values())
        for places in (self.waiting, self._by_id, self._by_name):
            places.clear()
        for call in given_up:
            self._late[call.id] = call
        return given_up

    def answer(self, result: ToolResult) -> ToolCall | None:
        """Return the call that this result belongs to, or None if no call matches."""
        places = self._by_id.get(result.id)
        place = places[-1] if places and places[-1] in self.waiting else self._first(places)
        if place is None:
            named = (self._first(self._by_name.get(name)) for name in (result.id, result.name) if name is not None)
            place = min((found for found in named if found is not None), default=None)
        return self._late.pop(result.id, None) if place is None else self.waiting.pop(place)

    def _first(self, places: list[int] | None) -> int | None:
        """Return the first of these positions whose call is still open, or None if all of their calls are answered."""
        while places and places[-1] not in self.waiting:
            places.pop()
        return places[-1] if places else None


def turn_of(messages: Sequence[Message]) -> Turn:
    """Return the state of the conversation with these messages."""
    last = len(messages) - 1
    while last >= 0 and messages[last].role != "assistant":
        last -= 1
    since = messages[last + 1 :]
    calls = messages[last].calls if last >= 0 else ()
    results = [result for message in since for result in message.results]
    spoke = any(message.role == "user" and message.content for message in since)
    if results and not spoke:
        pairing = Pairing()
        pairing.emit(calls)
        for result in results:
            pairing.answer(result)
        if pairing.waiting:
            return Turn.WAITING
    if results:
        return Turn.NEXT_DECISION
    if spoke or last < 0:
        return Turn.FIRST_DECISION
    return Turn.CALL_EMITTED if calls else Turn.FINAL


def unanswered_calls(messages: Sequence[Message]) -> list[ToolCall]:
    """Return the calls at the end of the conversation that lack results and have not been interrupted."""
    begin = len(messages) - 1  # only calls in the last assistant message can still be open
    while begin > 0 and messages[begin].role != "assistant":
        begin -= 1
    pairing = Pairing()
    for message in messages[max(begin, 0) :]:
        if message.role == "assistant":
            pairing.emit(message.calls)
        for result in message.results:
            pairing.answer(result)
        if message.role == "user" and message.content and pairing.waiting:
            pairing.interrupt()
    return list(pairing.open)
