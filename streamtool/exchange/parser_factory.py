"""The parsers of an exchange: one for each attempt of each choice, made of the request, the rules and the settings.

The real parser may stand in others: `Prefilled` knows a beginning which the prompt already holds, `QuotationFilter`
takes calls whose words stand in the conversation for text, `OpenedReasoning` begins inside of reasoning,
`ObservedParser` tells a listener.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial

import statemachine
from streamtool.exchange.listener import ExchangeListener, ObservedParser, ParserOptions
from streamtool.exchange.request import ClientRequest
from streamtool.policy import (
    HoldingParser,
    NullParser,
    OpenedReasoning,
    Prefilled,
    QuotationFilter,
    Rules,
    TextParser,
    goes_on,
    quotation_sources,
)
from streamtool.prompting import key, words
from streamtool.settings import Settings
from streamtool.state.tool_sets import remember


class ParserFactory:
    """Makes the parsers of one exchange."""

    __slots__ = ("_quotations", "_request", "_settings", "listener", "quoted")

    def __init__(self, settings: Settings, request: ClientRequest, rules: Rules) -> None:
        self._settings = settings
        self._request = request
        quotes = request.reads and settings.quoted == "text"
        self._quotations = quotation_sources(request.conversation, rules.callable) if quotes else None
        self.listener: ExchangeListener | None = None
        self.quoted = Counter[str]()
        """Calls that were quotations, by why they were."""

    def parser(self, rules: Rules, choice: int | None = None, *, may_retry: bool) -> TextParser:
        """The parser of this choice; None: of text that has been read before, of which nobody is told.

        `may_retry`: another attempt may follow this one.
        """
        if not self._request.reads:
            return self._observed(choice, None)
        forced = self._request.forcing.current
        new_parser = partial(self._text_parser, rules, choice, may_retry=may_retry)
        if forced is not None and forced.way == "prefill":
            return Prefilled(forced, new_parser)
        opener = "" if rules.text.reasoning == "text" else self._request.opener
        return OpenedReasoning(opener, new_parser) if opener else new_parser("")

    def _text_parser(self, rules: Rules, choice: int | None, prefix: str, *, may_retry: bool) -> TextParser:
        settings, limits = self._settings, self._settings.limits
        discards = rules.malformed == "drop" or (rules.malformed == "retry" and may_retry)
        options = ParserOptions(
            rules.callable,
            formats=self._request.listens,
            prefix=prefix,
            unknown="discard" if rules.unknown in ("drop", "retry") else "text",
            malformed="discard" if discards else "text",
            in_fences=settings.in_fences,
            calls_in_reasoning=self._request.model.calls_in_reasoning,
            limits=statemachine.Limits(
                held=limits.held, arguments=limits.arguments, depth=limits.depth, name=limits.name
            ),
        )
        parser = self._observed(choice, options)
        if self._quotations is None:
            return parser
        tell = None if choice is None else partial(self._tell_quotation, choice)
        return QuotationFilter(parser, self._quotations, limit=limits.held, begun=bool(prefix), tell=tell)

    def _tell_quotation(self, choice: int, why: str) -> None:
        self.quoted[why] += 1
        if self.listener is not None:
            self.listener.quoted(choice, why)

    def _observed(self, choice: int | None, options: ParserOptions | None) -> HoldingParser:
        if self.listener is not None and choice is not None:
            return ObservedParser(self.listener, choice, options)
        return NullParser() if options is None else options.parser()

    def keep(self, text: str, called: Sequence[str], rules: Rules) -> None:
        """Remember how the model wrote a reply with these calls, for the prompt of the next turn."""
        memory = self._request.transcripts
        if memory is None:
            return
        parser = self.parser(rules, may_retry=False)
        events = [*parser.feed(text), *parser.close()]
        tools = remember(self._request.conversation, memory)
        forced = self._request.forcing.current
        if forced is not None and forced.way == "prefill" and goes_on(text, forced):
            text = forced.value + text
        kept = words(
            text, events, called, format=self._request.model.format, tools=tools, tail=self._request.turn_instructions
        )
        if kept is not None:
            memory.remember(key(called[0]), kept)
