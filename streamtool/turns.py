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

    __slots__ = ("_late", "_open")

    def __init__(self) -> None:
        self._open: list[ToolCall] = []
        self._late: dict[str, ToolCall] = {}

    @property
    def open(self) -> Sequence[ToolCall]:
        """Calls of the last assistant message that have no result, in order."""
        return self._open

    def emit(self, calls: Iterable[ToolCall]) -> None:
        """An assistant message with these calls has come; what was open before is interrupted."""
        self.interrupt()
        self._open = list(calls)

    def interrupt(self) -> list[ToolCall]:
        """Give up the open calls and return them; their results may still come, late."""
        given_up, self._open = self._open, []
        self._late.update((call.id, call) for call in given_up)
        return given_up

    def answer(self, result: ToolResult) -> ToolCall | None:
        """The call that this result answers; None for an orphan."""
        for matches in (_same_id, _same_name):
            for call in self._open:
                if matches(call, result):
                    self._open.remove(call)
                    return call
        return self._late.pop(result.id, None)


def _same_id(call: ToolCall, result: ToolResult) -> bool:
    return call.id == result.id


def _same_name(call: ToolCall, result: ToolResult) -> bool:
    return call.name in (result.id, result.name)


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
