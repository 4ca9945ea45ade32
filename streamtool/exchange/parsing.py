"""The parsers of an exchange: one for each attempt of each choice, made of the request, the rules and the settings.

The real parser may stand in others: one that knows a beginning which the prompt already holds (`Prefilled`), one that
doubts calls whose words stand in the conversation (`QuotationFilter`), one that tells a trace (`ObservedParser`).
"""

from collections.abc import Sequence

import statemachine
from streamtool.exchange.listener import ExchangeListener, ObservedParser, ParserOptions
from streamtool.exchange.request import ClientRequest
from streamtool.policy import (
    HoldingParser,
    NullParser,
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


class Parsing:
    """Makes the parsers of one exchange."""

    __slots__ = ("_quotable", "_request", "_settings", "listener")

    def __init__(self, settings: Settings, request: ClientRequest, rules: Rules) -> None:
        self._settings = settings
        self._request = request
        wary = request.reads and settings.quoted == "text"
        self._quotable = quotation_sources(request.conversation, rules.callable) if wary else None
        self.listener: ExchangeListener | None = None

    @property
    def quoted(self) -> int:
        """How many calls were quotations."""
        return 0 if self._quotable is None else self._quotable.found

    def parser(self, rules: Rules, choice: int | None = None, *, again: bool) -> TextParser:
        """The parser of this choice; None: of text that has been read before, of which nobody is told.

        `again`: another attempt may follow this one.
        """
        if not self._request.reads:
            return self._traced(choice, None)
        held_to = self._request.forcing.current
        if held_to is not None and held_to.way == "prefill":
            return Prefilled(held_to, lambda prefix: self._text_parser(rules, choice, prefix, again=again))
        return self._text_parser(rules, choice, again=again)

    def _text_parser(self, rules: Rules, choice: int | None, prefix: str = "", *, again: bool) -> TextParser:
        settings, limits = self._settings, self._settings.limits
        left_out = rules.malformed == "drop" or (rules.malformed == "retry" and again)
        options = ParserOptions(
            rules.callable,
            formats=self._request.listens,
            prefix=prefix,
            unknown="discard" if rules.unknown in ("drop", "retry") else "text",
            malformed="discard" if left_out else "text",
            in_fences=settings.in_fences,
            calls_in_reasoning=self._request.model.calls_in_reasoning,
            limits=statemachine.Limits(
                held=limits.held, arguments=limits.arguments, depth=limits.depth, name=limits.name
            ),
        )
        parser = self._traced(choice, options)
        if self._quotable is None:
            return parser
        return QuotationFilter(parser, self._quotable, limit=limits.held, begun=bool(prefix), counts=choice is not None)

    def _traced(self, choice: int | None, options: ParserOptions | None) -> HoldingParser:
        if self.listener is not None and choice is not None:
            return ObservedParser(self.listener, choice, options)
        return NullParser() if options is None else options.parser()

    def keep(self, text: str, called: Sequence[str], rules: Rules) -> None:
        """Remember how the model wrote a reply with these calls, for the prompt of the next turn."""
        memory = self._request.transcripts
        if memory is None:
            return
        parser = self.parser(rules, again=False)
        events = [*parser.feed(text), *parser.close()]
        tools = remember(self._request.conversation, memory)
        held_to = self._request.forcing.current
        if held_to is not None and held_to.way == "prefill" and goes_on(text, held_to):
            text = held_to.value + text
        kept = words(text, events, called, format=self._request.model.format, tools=tools)
        if kept is not None:
            memory.remember(key(called[0]), kept)
