"""What to do with what the parser found: which calls pass, what waits, and when the model is asked again."""

from streamtool.policy.call_ids import CallIds
from streamtool.policy.capabilities import denies_forcing, denies_tools
from streamtool.policy.causes import Cause
from streamtool.policy.forcing import can_force, forcing, forcing_method_for
from streamtool.policy.gate import Gate
from streamtool.policy.null_parser import NullParser, TextParser
from streamtool.policy.prefilled import Prefilled, goes_on
from streamtool.policy.quotations import HoldingParser, QuotationFilter, QuotationSources, quotation_sources
from streamtool.policy.retry import cause, correction
from streamtool.policy.rules import Rules, rules_for

__all__ = [
    "CallIds",
    "Cause",
    "Gate",
    "HoldingParser",
    "NullParser",
    "Prefilled",
    "QuotationFilter",
    "QuotationSources",
    "Rules",
    "TextParser",
    "can_force",
    "cause",
    "correction",
    "denies_forcing",
    "denies_tools",
    "forcing",
    "forcing_method_for",
    "goes_on",
    "quotation_sources",
    "rules_for",
]
