"""Detectors for the table of failures: one function per failure, which takes the evidence and returns the failure's
detail.

The detail may be empty; None means that the failure did not occur.
"""

from streamtool.policy.capabilities import RefusedPart, denies_tools, denies_usage, refused_part
from streamtool.policy.evidence import (
    CheckedArguments,
    EndOfReply,
    Opening,
    ProposedCall,
    RejectedRequest,
    SearchCall,
    UnreadArguments,
    UnreadCall,
    WholeReply,
)
from streamtool.refusals import find_announcement


def _detail_if(shown: bool) -> str | None:
    return "" if shown else None


# --- requests: the next attempt omits a feature, and the model receives no correction


def usage_unsupported(refused: RejectedRequest) -> str | None:
    """Detect an upstream that does not support the field that requests token usage."""
    return _detail_if(refused.asks_usage and denies_usage(refused.status, refused.message))


def tools_unsupported(refused: RejectedRequest) -> str | None:
    """Detect an upstream, or a model, that does not support tools."""
    return _detail_if(refused.native and denies_tools(refused.message))


def forcing_unsupported(refused: RejectedRequest) -> str | None:
    """Detect an upstream that cannot force a call by this method."""
    return _detail_if(_declined_part(refused) == "method")


def forcing_declined(refused: RejectedRequest) -> str | None:
    """Detect an upstream that rejects a constraint, or that rejects, without giving a reason, a request to force a
    call.
    """
    return _detail_if(_declined_part(refused) in ("constraint", "unclear"))


def _declined_part(refused: RejectedRequest) -> RefusedPart | None:
    forcing = refused.forcing
    return None if forcing is None else refused_part(forcing, refused.status, refused.message)


# --- replies


def tools_denied(opening: Opening) -> str | None:
    """Detect a reply that denies having tools."""
    return opening.phrase if opening.denies == "tools denied" else None


def environment_denied(opening: Opening) -> str | None:
    """Detect a reply that denies access to something that a tool acts on."""
    environment = opening.denies == "environment denied" and opening.rules.refusals.environment
    return opening.phrase if environment or opening.denies == "topic denied" else None


def wrong_tool(call: UnreadCall) -> str | None:
    """Detect a call to a tool other than the required one."""
    return _tool_names(call) if call.reason == "unknown" and call.rules.forced else None


def unknown_tool(call: UnreadCall) -> str | None:
    """Detect a call to a tool that is not offered."""
    return _tool_names(call) if call.reason == "unknown" else None


def _tool_names(call: UnreadCall) -> str:
    return ", ".join(f"`{name}`" for name in call.rules.tools.schemas)


def malformed_markup(call: UnreadCall) -> str | None:
    """Detect markup that was meant as a call."""
    return _detail_if(call.reason == "rejected")


def schema_violated(arguments: CheckedArguments) -> str | None:
    """Detect arguments that do not match the schema."""
    return arguments.invalid.sentence


def searched(call: SearchCall) -> str | None:
    """Detect a search for tools, which is answered with the tools found. The detail is the query."""
    return call.query if call.allowed else None


def searched_too_often(call: SearchCall) -> str | None:
    """Detect a search after the last one allowed."""
    return _detail_if(not call.allowed)


def unread_arguments(call: UnreadArguments) -> str | None:
    """Detect arguments that cannot be read, or that have other names than the tool's parameters."""
    properties = call.rules.tools.schemas.get(call.name, {}).get("properties")
    names = ", ".join(f"`{name}`" for name in properties) if isinstance(properties, dict) else ""
    return f" The parameters of `{call.name}` are: {names}." if names else ""


def unreadable_call(end: EndOfReply) -> str | None:
    """Detect a buffered call that cannot be parsed, unless the reply contains other calls."""
    return _detail_if(end.unread > 0 and not end.calls)


def call_missing(end: EndOfReply) -> str | None:
    """Detect a reply without the required call."""
    return _detail_if(end.rules.forced and not end.calls)


def call_forbidden(end: EndOfReply) -> str | None:
    """Detect calls in a reply that must not contain any."""
    return _detail_if(end.rules.forbidden and end.refused > 0)


def incomplete_call(end: EndOfReply) -> str | None:
    """Detect a truncated call."""
    return _detail_if(end.incomplete)


def empty_reply(end: EndOfReply) -> str | None:
    """Detect an empty reply."""
    return _detail_if(end.rules.answer_due and not (end.refused or end.stopped or end.answer.strip()))


def answer_form_violated(end: EndOfReply) -> str | None:
    """Detect an answer that does not have the form that the client requested."""
    form = end.rules.text.form
    return None if form is None or end.calls or not end.answer.strip() else form.violation(end.answer)


def reasoning_only(end: EndOfReply) -> str | None:
    """Detect a reply that contains only reasoning; a call inside reasoning is ignored."""
    return _detail_if(end.rules.text.requires_answer and end.reasoned and not (end.refused or end.calls))


def announced_only(end: EndOfReply) -> str | None:
    """Detect a reply whose last sentence announces a call that does not follow."""
    watched = end.rules.refusals.announcements and not end.calls and not end.stopped
    return find_announcement(end.text, end.rules.refusals.phrases) if watched else None


# --- failures that can occur only in an agent


def unknown_agent_tool(call: ProposedCall) -> str | None:
    """Detect a call to a tool that the agent does not have."""
    names = ", ".join(f"`{name}`" for name in call.offered) or "none"
    return f"There is no tool `{call.name}`. The tools are: {names}." if call.name not in call.offered else None


def truncated_call(call: ProposedCall) -> str | None:
    """Detect a call that was truncated before the agent could execute it."""
    return _detail_if(not call.complete)


def invalid_arguments(call: ProposedCall) -> str | None:
    """Detect arguments that do not match the tool's schema."""
    return None if call.invalid is None else call.invalid.sentence


def quoted_call(call: ProposedCall) -> str | None:
    """Detect a call that repeats a result or a tool's description."""
    return _detail_if(call.quoted)


def not_approved(call: ProposedCall) -> str | None:
    """Detect a call that was not approved."""
    if call.approved:
        return None
    return f"They say: {call.reason}" if call.reason else "Do not repeat it; go on without."


def not_one_object(reply: WholeReply) -> str | None:
    """Detect a reply that is not the single object that is required."""
    return reply.violation
