"""The choices of a reply: a choice filter for each, and the rules, parsers and ids that they share."""

from collections.abc import Callable
from typing import Final

from streamtool.conversation import Conversation
from streamtool.exchange.parser_factory import ParserFactory
from streamtool.policy import CallIds, ChoiceFilter, Rules
from streamtool.reply import ReplyEvent

_CHECKED: Final = 256 * 1024
"""Characters of arguments that are checked at once."""


class Choices:
    """The choices of one reply, in all of its attempts."""

    __slots__ = ("_clock", "_count", "_ids", "checked", "filters", "may_retry", "parsers", "rules")

    def __init__(
        self,
        conversation: Conversation,
        rules: Rules,
        parsers: ParserFactory,
        *,
        new_id: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self.parsers = parsers
        self._ids = CallIds(new_id, (call.id for message in conversation.messages for call in message.calls))
        self._clock = clock
        self._count = conversation.options.n
        self.filters: dict[int, ChoiceFilter] = {}
        """Those that have begun."""
        self.may_retry = False
        """Another attempt may follow the current one."""
        self.renew(rules)

    def __getitem__(self, choice: int) -> ChoiceFilter:
        """The filter of this choice, which begins if it has not."""
        found = self.filters.get(choice)
        if found is None:
            found = self.filters[choice] = ChoiceFilter(
                self.rules,
                choice,
                self._ids,
                lambda: self.parsers.parser(self.rules, choice, may_retry=self.may_retry),
                may_retry=self.may_retry,
                clock=self._clock,
            )
        return found

    def restart(self) -> None:
        """The next attempt begins."""
        for choice in self.filters.values():
            choice.restart(may_retry=self.may_retry)

    def renew(self, rules: Rules) -> None:
        """Everything begins anew, under these rules: nothing has come of the attempts before."""
        self.rules = rules
        self.checked = bool(rules.tools.complete or rules.text.form)
        """Something may wait until it is checked."""
        self.filters.clear()

    @property
    def finished(self) -> bool:
        """All choices that the client asked for have ended."""
        return len(self.filters) >= self._count and all(choice.finished for choice in self.filters.values())

    @property
    def waiting(self) -> int:
        """Characters that wait until they can be checked, beyond those for which that takes no time."""
        if not self.checked:
            return 0
        return max(0, sum(choice.waiting for choice in self.filters.values()) - _CHECKED)

    @property
    def waits_for(self) -> str:
        """Why something waits that the parsers have let go; "" if nothing does."""
        return next((why for choice in self.filters.values() if (why := choice.waits_for)), "")

    @property
    def written(self) -> int:
        """Characters that the upstream has written."""
        return sum(choice.tally.written for choice in self.filters.values())

    def break_off(self, out: list[ReplyEvent], *, begun: bool) -> None:
        """There is no more: what the choices hold goes out; what waits for a forced call too if the reply has begun."""
        for choice in self.filters.values():
            if not choice.finished:
                choice.close(None, out)
                if begun:
                    choice.release(out)

    def remember(self) -> None:
        """Keep how the model wrote its calls, if they are whole and their ids are ours."""
        first = self.filters[0]
        calls = first.state.calls
        if calls and self._ids.made(calls[0]) and not first.state.incomplete:
            self.parsers.keep(first.written, calls, self.rules)
