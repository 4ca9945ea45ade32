"""What to do with what the parser found: which calls pass, what waits, and when the model is asked again."""

from streamtool.policy.abilities import denies_forcing, denies_tools
from streamtool.policy.causes import Cause
from streamtool.policy.forcing import can_force, forcing, way_of
from streamtool.policy.gate import Gate
from streamtool.policy.ids import Ids
from streamtool.policy.plain import Plain, TextParser
from streamtool.policy.prefilled import Prefilled, goes_on
from streamtool.policy.quoted import HoldingParser, Quotable, Wary, quotable
from streamtool.policy.retry import cause, correction
from streamtool.policy.rules import Rules, rules_for

__all__ = [
    "Cause",
    "Gate",
    "HoldingParser",
    "Ids",
    "Plain",
    "Prefilled",
    "Quotable",
    "Rules",
    "TextParser",
    "Wary",
    "can_force",
    "cause",
    "correction",
    "denies_forcing",
    "denies_tools",
    "forcing",
    "goes_on",
    "quotable",
    "rules_for",
    "way_of",
]
