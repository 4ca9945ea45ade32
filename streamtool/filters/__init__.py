"""Decisions about the output to the client: filters for calls and text, and wrappers around the parser."""

from streamtool.filters.call_ids import CallIds
from streamtool.filters.choice_filter import ChoiceFilter
from streamtool.filters.continued_call import ContinuedCall
from streamtool.filters.null_parser import NullParser, TextParser
from streamtool.filters.opened_reasoning import OpenedReasoning
from streamtool.filters.prefilled import Prefilled, continues_beginning
from streamtool.filters.quotations import HoldingParser, QuotationFilter
from streamtool.filters.quoted_sources import quotation_sources
from streamtool.filters.shown_calls import comparable_call, shown_calls

__all__ = [
    "CallIds",
    "ChoiceFilter",
    "ContinuedCall",
    "HoldingParser",
    "NullParser",
    "OpenedReasoning",
    "Prefilled",
    "QuotationFilter",
    "TextParser",
    "comparable_call",
    "continues_beginning",
    "quotation_sources",
    "shown_calls",
]
