"""What detects the failures of the table: a function for each, from its evidence to the detail of the failure.

The detail may be empty; None says that the failure did not happen.
"""

from streamtool.policy.capabilities import RefusedPart, denies_tools, denies_usage, refused_part
from streamtool.policy.evidence import (
    CheckedArguments,
    EndOfReply,
    Opening,
    ProposedCall,
    RefusedRequest,
    UnreadCall,
    WholeReply,
)
from streamtool.policy.refusals import announced


def _found(shown: bool) -> str | None:
    return "" if shown else None


# --- requests: the next attempt asks for less, and nobody is corrected


def usage_refused(refused: RefusedRequest) -> str | None:
    """The upstream does not know the field by which it is asked for its counts of tokens."""
    return _found(refused.asks_usage and denies_usage(refused.status, refused.message))


def tools_unsupported(refused: RefusedRequest) -> str | None:
    """The upstream, or its model, takes no tools."""
    return _found(refused.native and denies_tools(refused.message))


def forcing_unsupported(refused: RefusedRequest) -> str | None:
    """The upstream cannot force a call by this method."""
    return _found(_refused(refused) == "method")


def forcing_refused(refused: RefusedRequest) -> str | None:
    """The upstream refuses a constraint, or a request that forces a call, and does not say why."""
    return _found(_refused(refused) in ("constraint", "unclear"))


def _refused(refused: RefusedRequest) -> RefusedPart | None:
    forcing = refused.forcing
    return None if forcing is None else refused_part(forcing, refused.status, refused.message)


# --- replies


def tools_denied(opening: Opening) -> str | None:
    """The reply says that it has no tools."""
    return opening.phrase if opening.denies == "tools denied" else None


def environment_denied(opening: Opening) -> str | None:
    """The reply says that it cannot reach what some tool acts on."""
    denied = opening.denies == "environment denied" and opening.rules.refusals.environment
    return opening.phrase if denied else None


def wrong_tool(call: UnreadCall) -> str | None:
    """A call of another tool than the one that is demanded."""
    return _names(call) if call.reason == "unknown" and call.rules.forced else None


def unknown_tool(call: UnreadCall) -> str | None:
    """A call of a tool that is not offered."""
    return _names(call) if call.reason == "unknown" else None


def _names(call: UnreadCall) -> str:
    return ", ".join(f"`{name}`" for name in call.rules.tools.schemas)


def malformed_markup(call: UnreadCall) -> str | None:
    """Markup that was meant as a call."""
    return _found(call.reason == "rejected")


def schema_violated(arguments: CheckedArguments) -> str | None:
    """Arguments that do not match."""
    return arguments.invalid.sentence


def unreadable(end: EndOfReply) -> str | None:
    """A call that waited cannot be read, and there is no other."""
    return _found(end.unread > 0 and not end.calls)


def call_missing(end: EndOfReply) -> str | None:
    """A call is demanded, and there is none."""
    return _found(end.rules.forced and not end.calls)


def call_forbidden(end: EndOfReply) -> str | None:
    """Calls where none is allowed."""
    return _found(end.rules.forbidden and end.refused > 0)


def incomplete_call(end: EndOfReply) -> str | None:
    """A call that was cut."""
    return _found(end.incomplete)


def empty_reply(end: EndOfReply) -> str | None:
    """Silence after a result."""
    return _found(end.rules.answer_due and not end.refused)


def answer_unfit(end: EndOfReply) -> str | None:
    """An answer that has not the form that the client has asked for."""
    form = end.rules.text.form
    return None if form is None or end.calls or not end.answer.strip() else form.violation(end.answer)


def thought_only(end: EndOfReply) -> str | None:
    """Reasoning, and neither an answer nor a call behind it; a call inside of it counts for nothing."""
    return _found(end.rules.text.answers and end.reasoned and not (end.refused or end.calls))


def announced_only(end: EndOfReply) -> str | None:
    """The last sentence announces a call that is not there."""
    watched = end.rules.refusals.announcements and not end.calls and not end.stopped
    return announced(end.text, end.rules.refusals.phrases) if watched else None


# --- what only an agent sees


def not_a_tool(call: ProposedCall) -> str | None:
    """A call of a tool that the agent does not have."""
    names = ", ".join(f"`{name}`" for name in call.offered) or "none"
    return f"There is no tool `{call.name}`. The tools are: {names}." if call.name not in call.offered else None


def cut_off(call: ProposedCall) -> str | None:
    """A call that was cut before the agent could execute it."""
    return _found(not call.complete)


def invalid_arguments(call: ProposedCall) -> str | None:
    """Arguments that the agent cannot execute a call with."""
    return None if call.invalid is None else call.invalid.sentence


def not_approved(call: ProposedCall) -> str | None:
    """A call that somebody has refused."""
    if call.approved:
        return None
    return f"They say: {call.reason}" if call.reason else "Do not repeat it; go on without."


def not_one_object(reply: WholeReply) -> str | None:
    """A reply that is not the one object that it has to be."""
    return reply.violation
