"""A factory for an exchange's parsers: one per attempt and choice, based on the request, the rules and the settings.

The real parser may be wrapped in others: `Prefilled` handles a beginning that the prompt already contains,
`QuotationFilter` turns calls that are quoted from the conversation into text, `OpenedReasoning` begins inside
reasoning, and `ObservedParser` reports to a listener.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Final

import statemachine
from streamtool.exchange.listener import ExchangeListener, ObservedParser, ParserOptions
from streamtool.exchange.plan import Plan
from streamtool.exchange.received import Received
from streamtool.exchange.tool_sets import store_tools
from streamtool.filters import (
    HoldingParser,
    NullParser,
    OpenedReasoning,
    Prefilled,
    QuotationFilter,
    TextParser,
    continues_beginning,
    quotation_sources,
)
from streamtool.forcing import AnyName, Rules
from streamtool.prompting import ToolSearch, answer_id, encode_transcript, transcript_key
from streamtool.prompting.selection import opening_text
from streamtool.prompting.transcripts import shown_text
from streamtool.prompting.turn_instructions import instructions_text
from streamtool.settings import Settings

_NO_COUNTS: Final[Mapping[str, int]] = {}


class ParserFactory:
    """A factory for the parsers of one exchange."""

    __slots__ = ("_quotations", "_received", "_settings", "listener", "plan", "quotation_counts")

    def __init__(self, settings: Settings, received: Received, plan: Plan, rules: Rules) -> None:
        self._settings = settings
        self._received = received
        self.plan = plan
        reporting = settings.quoted == "report"
        quotes = plan.reads and settings.quoted != "calls"
        self._quotations = (
            quotation_sources(received.conversation, rules.callable, reporting=reporting) if quotes else None
        )
        self.listener: ExchangeListener | None = None
        self.quotation_counts = _NO_COUNTS
        """Number of calls that were quotations, by reason."""

    @property
    def max_arguments(self) -> int:
        """Maximum number of characters in the arguments of a call."""
        return self._settings.limits.arguments

    def rereader(self, rules: Rules, inner: list[statemachine.Parser] | None, *, any_name: bool = False) -> TextParser:
        """Return a new parser that reads text again, and then the text of another attempt. With a list, the parsers
        that find the calls record how they classify the text, and are added to the list.
        """
        observed = 0 if inner is None and self.listener is not None else None
        return self.parser(rules, observed, may_retry=False, any_name=any_name, inner=inner)

    def parser(
        self,
        rules: Rules,
        choice: int | None = None,
        *,
        may_retry: bool,
        any_name: bool = False,
        inner: list[statemachine.Parser] | None = None,
    ) -> TextParser:
        """Return a new parser for this choice. If `choice` is None, the parser reads text again and does not report to
        the listener.

        `may_retry` means that another attempt may follow this one, `any_name` that tools that are not offered may be
        called, too.
        """
        if not self.plan.reads:
            return self._observed(choice, None)
        forced = self.plan.forcing.current
        new_parser = partial(self._text_parser, rules, choice, may_retry=may_retry, any_name=any_name, inner=inner)
        if forced is not None and forced.way == "prefill":
            return Prefilled(forced, new_parser)
        opener = "" if rules.text.reasoning == "text" else self.plan.opener(self._received.conversation)
        return OpenedReasoning(opener, new_parser) if opener else new_parser("")

    def _text_parser(
        self,
        rules: Rules,
        choice: int | None,
        prefix: str,
        *,
        may_retry: bool,
        any_name: bool,
        inner: list[statemachine.Parser] | None,
    ) -> TextParser:
        settings, limits = self._settings, self._settings.limits
        discards = rules.malformed == "drop" or (rules.malformed == "retry" and may_retry)
        thinks = self.plan.model.calls_in_reasoning or False
        thinks = thinks if isinstance(thinks, bool) else (*thinks, self.plan.model.format)
        options = ParserOptions(
            AnyName(rules.callable) if any_name and rules.delivers_at_last else rules.callable,
            formats=self.plan.listens,
            prefix=prefix,
            unknown="discard" if rules.unknown in ("drop", "retry") else "text",
            malformed="discard" if discards else "text",
            in_fences=settings.in_fences,
            calls_in_reasoning=thinks,
            names=settings.tool_names,
            flattened=settings.flattened,
            limits=_limits(limits.held, limits.arguments, limits.depth, limits.name),
        )
        parser = self._observed(choice, options) if inner is None else options.parser(ledger=True)
        if inner is not None and isinstance(parser, statemachine.Parser):
            inner.append(parser)
        if self._quotations is None:
            return parser
        on_quotation = None if choice is None else partial(self._report_quotation, choice)
        return QuotationFilter(
            parser, self._quotations, limit=limits.held, begun=bool(prefix), on_quotation=on_quotation
        )

    def _report_quotation(self, choice: int, why: str) -> None:
        self.quotation_counts = {**self.quotation_counts, why: self.quotation_counts.get(why, 0) + 1}
        if self.listener is not None:
            self.listener.quoted(choice, why)

    def _observed(self, choice: int | None, options: ParserOptions | None) -> HoldingParser:
        if self.listener is not None and choice is not None:
            return ObservedParser(self.listener, choice, options)
        return NullParser() if options is None else options.parser()

    def text_before_search(self, written: str, rules: Rules) -> str:
        """Return the text, without reasoning, that precedes the first call in an attempt that ended with a search for
        tools.
        """
        parser = self.parser(rules, may_retry=False)
        texts = []
        for event in (*parser.feed(written), *parser.close()):
            if isinstance(event, statemachine.CallStart):
                break
            if isinstance(event, statemachine.TextDelta):
                texts.append(event.text)
        return "".join(texts)

    def store_transcript(
        self, text: str, called: Sequence[str], rules: Rules, searches: tuple[ToolSearch, ...] = ()
    ) -> None:
        """Store how the model wrote a reply with these calls after these searches, for use in the next turn's
        prompt.
        """
        memory = self.plan.transcripts
        if memory is None:
            return
        asked = self._received.conversation
        parser = self.parser(rules, may_retry=False)
        events = [*parser.feed(text), *parser.close()]
        tools = store_tools(asked, memory)
        forced = self.plan.forcing.current
        if forced is not None and forced.way == "prefill" and continues_beginning(text, forced):
            text = forced.value + text
        kept = encode_transcript(
            text,
            events,
            called,
            format=self.plan.model.format,
            tools=tools,
            turn_instructions=instructions_text(asked.choice, None, asked.options.output, asked.volatile),
            searches=searches,
        )
        if kept is not None:
            id = called[0] if called else answer_id(opening_text(asked.messages), shown_text(events, searches))
            memory.remember(transcript_key(id), kept)


@lru_cache(maxsize=16)
def _limits(held: int, arguments: int, depth: int, name: int) -> statemachine.Limits:
    """Return these limits, which parsers share."""
    return statemachine.Limits(held=held, arguments=arguments, depth=depth, name=name)
