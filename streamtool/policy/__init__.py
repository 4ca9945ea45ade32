"""What to do with what the parser found: which calls pass, what waits, and when the model is asked again."""

from streamtool.policy.abilities import denies_tools
from streamtool.policy.causes import Cause
from streamtool.policy.gate import Gate, Ids, Plain, TextParser
from streamtool.policy.retry import cause, correction
from streamtool.policy.rules import Rules, rules_for

__all__ = ["Cause", "Gate", "Ids", "Plain", "Rules", "TextParser", "cause", "correction", "denies_tools", "rules_for"]
