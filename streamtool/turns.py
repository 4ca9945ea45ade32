"""Where a conversation stands, derived from its messages alone.

What counts is what stands after the last assistant message. Tool history further back means nothing for this turn:
a new question after a final answer is a first decision again, and no state says that another call is mandatory.

    … user                                       first decision
    … assistant(calls)                           call emitted
    … assistant(a, b) result(a)                  waiting for results
    … assistant(a, b) result(a) result(b)        result received, next decision pending
    … assistant(a) user                          first decision (the call was interrupted)
    … assistant(text)                            final answer
"""

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum

from streamtool.conversation import Message, ToolCall, ToolResult


class Turn(Enum):
    """Where a conversation stands."""

    FIRST_DECISION = "first decision"
    """The user has asked; nothing has been called for this question."""
    CALL_EMITTED = "call emitted"
    """The last message holds calls; no result has come."""
    WAITING = "waiting for results"
    """Some calls of the last assistant message have results, others have none yet."""
    NEXT_DECISION = "result received, next decision pending"
    """Another call or a final answer may follow; neither is mandatory."""
    FINAL = "final answer"
    """The last message is the assistant's and calls nothing."""


class Pairing:
    """Pairs results with calls, message by message.

    A result belongs to the latest unanswered call with its id; a legacy result (or one whose id is not known) to the
    earliest unanswered call of its name. Ids may repeat in a conversation: the later call wins.
    """

    __slots__ = ("_by_id", "_by_name", "_late", "_open")

    def __init__(self) -> None:
        self._open: dict[int, ToolCall] = {}
        """By the place in their message."""
        self._by_id: dict[str, deque[int]] = {}
        """Places by the id of the calls; those of answered calls go when they come first."""
        self._by_name: dict[str, deque[int]] = {}
        self._late: dict[str, ToolCall] = {}

    @property
    def open(self) -> Sequence[ToolCall]:
        """Calls of the last assistant message that have no result, in order."""
        return list(self._open.values())

    def emit(self, calls: Iterable[ToolCall]) -> None:
        """An assistant message with these calls has come; what was open before is interrupted."""
        self.interrupt()
        for place, call in enumerate(calls):
            self._open[place] = call
            self._by_id.setdefault(call.id, deque()).append(place)
            self._by_name.setdefault(call.name, deque()).append(place)

    def interrupt(self) -> list[ToolCall]:
        """Give up the open calls and return them; their results may still come, late."""
        given_up = list(self._open.values())
        for places in (self._open, self._by_id, self._by_name):
            places.clear()
        self._late.update((call.id, call) for call in given_up)
        return given_up

    def answer(self, result: ToolResult) -> ToolCall | None:
        """The call that this result answers; None for an orphan."""
        place = self._first(self._by_id.get(result.id))
        if place is None:
            named = (self._first(self._by_name.get(name)) for name in (result.id, result.name) if name is not None)
            place = min((found for found in named if found is not None), default=None)
        return self._late.pop(result.id, None) if place is None else self._open.pop(place)

    def _first(self, places: deque[int] | None) -> int | None:
        """The first of these places whose call is open."""
        while places and places[0] not in self._open:
            places.popleft()
        return places[0] if places else None


def turn(messages: Sequence[Message]) -> Turn:
    """Where the conversation of these messages stands."""
    last = next((i for i in range(len(messages) - 1, -1, -1) if messages[i].role == "assistant"), -1)
    since = messages[last + 1 :]
    calls = messages[last].calls if last >= 0 else ()
    results = [result for message in since for result in message.results]
    spoke = any(message.role == "user" and message.content for message in since)
    if results:
        pairing = Pairing()
        pairing.emit(calls)
        for result in results:
            pairing.answer(result)
        return Turn.WAITING if pairing.open and not spoke else Turn.NEXT_DECISION
    if spoke or last < 0:
        return Turn.FIRST_DECISION
    return Turn.CALL_EMITTED if calls else Turn.FINAL


def unanswered(messages: Sequence[Message]) -> list[ToolCall]:
    """The calls that the conversation ends in without their results; nothing was said after them."""
    pairing = Pairing()
    for message in messages:
        if message.role == "assistant":
            pairing.emit(message.calls)
        for result in message.results:
            pairing.answer(result)
        if message.role == "user" and message.content:
            pairing.interrupt()
    return list(pairing.open)
