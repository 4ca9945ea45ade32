"""The choices of a reply: one choice filter for each, and the rules, parsers and ids that the filters share."""

from collections.abc import Callable
from functools import partial
from typing import Final

from streamtool.core.conversation import Conversation
from streamtool.core.excerpt import Excerpt
from streamtool.core.reply import ReplyEvent
from streamtool.exchange.broken_calls import BrokenCall, find_broken_call, find_open_call, parser_after
from streamtool.exchange.parser_factory import ParserFactory
from streamtool.filters import CallIds, ChoiceFilter, TextParser
from streamtool.forcing import Rules
from streamtool.prompting import ToolSearch

_FREE_CHECK_SIZE: Final = 256 * 1024
"""Number of characters of arguments that can be checked without a noticeable delay."""


class Choices:
    """The choices of one reply, across all of its attempts."""

    __slots__ = (
        "_clock",
        "_count",
        "_ids",
        "buffers_for_checks",
        "filters",
        "insists",
        "may_retry",
        "may_search",
        "parsers",
        "rules",
    )

    def __init__(
        self,
        conversation: Conversation,
        rules: Rules,
        parsers: ParserFactory,
        *,
        new_id: Callable[[str], str],
        prefix: str,
        clock: Callable[[], float],
    ) -> None:
        """`prefix` begins the ids of calls."""
        self.parsers = parsers
        self._ids = CallIds(new_id, prefix, (call.id for message in conversation.messages for call in message.calls))
        self._clock = clock
        self._count = conversation.options.n
        self.filters: dict[int, ChoiceFilter] = {}
        """The filters of the choices that have begun, by index."""
        self.may_retry = False
        """Whether another attempt may follow the current one."""
        self.may_search = False
        """Whether another attempt may follow the current one because the model searches for tools."""
        self.insists = False
        """Whether the current attempt is the last of several, so that calls to unknown tools are delivered."""
        self.reset(rules)

    def __getitem__(self, choice: int) -> ChoiceFilter:
        """Return the filter of this choice, creating it if necessary."""
        found = self.filters.get(choice)
        if found is None:
            found = self.filters[choice] = ChoiceFilter(
                self.rules,
                choice,
                self._ids,
                self._new_parser,
                may_retry=self.may_retry,
                may_search=self.may_search,
                clock=self._clock,
                reread=self._reread,
                defers=self._count == 1 and self.parsers.plan.emulates and self.parsers.plan.model.resume > 0,
            )
        return found

    def _new_parser(self, choice: int) -> TextParser:
        """Return a new parser for an attempt at this choice."""
        return self.parsers.parser(self.rules, choice, may_retry=self.may_retry, any_name=self.insists)

    def _reread(self, _: int) -> TextParser:
        """Return a new parser that reads text again, for any choice."""
        return self.parsers.parser(self.rules, may_retry=False)

    def find_broken_call(self, choice: ChoiceFilter, before: BrokenCall | None) -> tuple[BrokenCall, TextParser] | None:
        """Return the broken call of this choice up to its last good character, and a parser that has read the text up
        to it; or None if the call cannot be continued there. `before` is the last broken call, which is continued once
        more if the text has not led to its arguments.
        """
        reread = partial(self.parsers.rereader, self.rules, any_name=self.insists)
        if choice.contradicted and before is not None:
            return before, parser_after(reread, before.text)
        return find_broken_call(reread, choice.unfinished, ended=choice.closed, limit=self.parsers.max_arguments)

    def find_open_call(self, choice: ChoiceFilter) -> BrokenCall | None:
        """Return the call of this choice that is open, or None if none is."""
        return find_open_call(partial(self.parsers.rereader, self.rules, any_name=self.insists), choice.unfinished)

    def excerpt(self, choice: int) -> Excerpt:
        """Return a new excerpt of the text that the model has written in this choice."""
        return self[choice].excerpt()

    def restart(self) -> None:
        """Prepare for the next attempt."""
        for choice in self.filters.values():
            choice.restart(may_retry=self.may_retry, may_search=self.may_search, insists=self.insists)

    def resume(self) -> None:
        """Prepare for an attempt that continues the reply of the current one."""
        for choice in self.filters.values():
            choice.resume(may_retry=self.may_retry)

    def reset(self, rules: Rules) -> None:
        """Start over with these rules, discarding the state of previous attempts."""
        self.rules = rules
        self.buffers_for_checks = bool(rules.tools.complete or rules.text.form)
        """Whether text or arguments may be buffered until they have been checked."""
        self.filters.clear()

    @property
    def finished(self) -> bool:
        """Whether all choices that the client requested have finished."""
        return len(self.filters) >= self._count and all(choice.finished for choice in self.filters.values())

    @property
    def unchecked_size(self) -> int:
        """Number of characters buffered for a check, minus those that can be checked without a noticeable delay."""
        if not self.buffers_for_checks:
            return 0
        return max(0, sum(choice.buffered_size for choice in self.filters.values()) - _FREE_CHECK_SIZE)

    @property
    def buffering_reason(self) -> str:
        """The reason why output from the parsers is buffered, or an empty string if none is."""
        return next((why for choice in self.filters.values() if (why := choice.buffering_reason)), "")

    @property
    def written(self) -> int:
        """Number of characters that the upstream has written."""
        return sum(choice.characters for choice in self.filters.values())

    def break_off(self, out: list[ReplyEvent], *, begun: bool) -> None:
        """End all choices early. Text that was held back for a forced call is flushed only if the reply has begun."""
        for choice in self.filters.values():
            if not choice.finished:
                choice.close(None, out)
                if begun:
                    choice.flush(out)

    def remember(self, searches: tuple[ToolSearch, ...]) -> None:
        """Store the transcript of the model's calls, if they are complete and their ids were generated here, or of an
        answer that follows these searches for tools.
        """
        first = self.filters[0]
        calls = first.state.calls
        if (self._ids.is_generated(calls[0]) if calls else searches) and not first.state.incomplete:
            self.parsers.store_transcript(first.written, calls, self.rules, searches)
