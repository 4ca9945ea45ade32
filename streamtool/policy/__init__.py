"""The decision to ask the model again: the table of failures, their detectors, and the evidence that the detectors
examine.
"""

from streamtool.policy.capabilities import RefusedPart, denies_tools, proves_tools_denied, refused_part, says_refused
from streamtool.policy.evidence import EndOfReply, ProposedCall, RejectedRequest, WholeReply
from streamtool.policy.failure import Effect, Failure, Finding, Outcome
from streamtool.policy.failures import EMPTY, FAILURES, TOOL_SEARCH, find, register

__all__ = [
    "EMPTY",
    "FAILURES",
    "TOOL_SEARCH",
    "Effect",
    "EndOfReply",
    "Failure",
    "Finding",
    "Outcome",
    "ProposedCall",
    "RefusedPart",
    "RejectedRequest",
    "WholeReply",
    "denies_tools",
    "find",
    "proves_tools_denied",
    "refused_part",
    "register",
    "says_refused",
]
