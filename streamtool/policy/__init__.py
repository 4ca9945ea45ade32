"""What to do with what the parser found: which calls pass, what waits, and when the model is asked again."""

from streamtool.policy.call_ids import CallIds
from streamtool.policy.capabilities import (
    RefusedPart,
    denies_tools,
    proves_tools_denied,
    refused_part,
    says_refused,
)
from streamtool.policy.choice_filter import ChoiceFilter
from streamtool.policy.evidence import EndOfReply, Evidence, ProposedCall, RefusedRequest, WholeReply
from streamtool.policy.failure import Failure, Finding, Outcome
from streamtool.policy.failures import FAILURES, USAGE_REFUSED, find, register
from streamtool.policy.forcing import can_force, forcing, forcing_method_for
from streamtool.policy.null_parser import NullParser, TextParser
from streamtool.policy.opened_reasoning import OpenedReasoning
from streamtool.policy.prefilled import Prefilled, goes_on
from streamtool.policy.quotations import HoldingParser, QuotationFilter
from streamtool.policy.quoted_sources import QuotationSources, quotation_sources
from streamtool.policy.rules import Rules, rules_for

__all__ = [
    "FAILURES",
    "USAGE_REFUSED",
    "CallIds",
    "ChoiceFilter",
    "EndOfReply",
    "Evidence",
    "Failure",
    "Finding",
    "HoldingParser",
    "NullParser",
    "OpenedReasoning",
    "Outcome",
    "Prefilled",
    "ProposedCall",
    "QuotationFilter",
    "QuotationSources",
    "RefusedPart",
    "RefusedRequest",
    "Rules",
    "TextParser",
    "WholeReply",
    "can_force",
    "denies_tools",
    "find",
    "forcing",
    "forcing_method_for",
    "goes_on",
    "proves_tools_denied",
    "quotation_sources",
    "refused_part",
    "register",
    "rules_for",
    "says_refused",
]
