"""The failure table: reasons to reject an attempt, a call or a request, and the consequences.

Each row names the evidence and the detector of a failure, the outcome of the attempt, and the corrections for the
model. If the upstream has declined a request, the row names the effect on the next request instead. The other parts use
these rows: the choice filter and the exchange to decide whether to ask again, the record and the log to name the
causes, and the agent to answer calls with the corrections. `docs/when-the-model-does-not-call.md` contains the table.

Order matters: if two failures are detected on the same evidence, the first one in the table is reported. The caller
limits the number of attempts and corrections. A correction is never part of the history, so it does not appear in the
next turn's prompt.
"""

from functools import partial
from typing import Any, Final

from streamtool.policy import detectors
from streamtool.policy.evidence import (
    CheckedArguments,
    EndOfReply,
    Evidence,
    Opening,
    ProposedCall,
    RejectedRequest,
    SearchCall,
    UnreadArguments,
    UnreadCall,
    WholeReply,
)
from streamtool.policy.failure import Effect, Failure, Finding, Outcome
from streamtool.prompting.selection import MAX_SEARCHES


def find(evidence: Evidence) -> Finding | None:
    """Return the first failure that the evidence shows, or None."""
    kind = type(evidence)
    for failure in FAILURES:
        if failure.on is kind and failure.outcome.fits(visible=evidence.visible):
            detail = failure.detect(evidence)
            if detail is not None:
                return Finding(failure, detail, evidence.problem)
    return None


def register(failure: Failure[Any]) -> None:  # for any type of evidence
    """Append a class of failures to the table. Raises ValueError if the row is inconsistent or already in the table."""
    if any(row.cause == failure.cause and row.on is failure.on for row in FAILURES):
        raise ValueError(f'"{failure.cause}" is already detected on {failure.on.__name__}')
    corrected = failure.outcome is not Outcome.DELIVERED and failure.on is not RejectedRequest
    if corrected and not failure.corrections:
        raise ValueError(f'"{failure.cause}" is {failure.outcome.value}, and needs at least one correction')
    if failure.effect is not Effect.NONE and failure.on is not RejectedRequest:
        raise ValueError(f'"{failure.cause}" has an effect, which only a failure on RejectedRequest can have')
    FAILURES.append(failure)


_BROKEN: Final = (
    "Your call could not be read. Write all of it again, exactly in the form that was shown.",
    "The call is still broken: check its brackets and quotes, and write all of it once more.",
    "Write the whole call again, shorter if you can, with every bracket and quote closed.",
)
"""Corrections for a call that cannot be parsed, shared by all detectors of such calls."""

_request = partial(Failure[RejectedRequest], on=RejectedRequest, outcome=Outcome.RETRIED, demands_call=False)
_REQUESTS: Final = (
    _request(
        "usage unsupported",
        detect=detectors.usage_unsupported,
        when="the upstream rejects the field that asks for token usage, which the client did not send",
        effect=Effect.WITHOUT_USAGE,
    ),
    _request(
        "tools unsupported",
        detect=detectors.tools_unsupported,
        when="the upstream rejects native tools",
        effect=Effect.TOOLS_AS_TEXT,
        setting='`mode = "auto"`',
    ),
    _request(
        "forcing unsupported",
        detect=detectors.forcing_unsupported,
        when="the upstream rejects the method that forces a call",
        effect=Effect.FORCING_LESS,
        setting="`forcing`",
    ),
    _request(
        "forcing refused",
        detect=detectors.forcing_declined,
        when="the upstream rejects a schema or grammar, or rejects the request without a reason",
        effect=Effect.FORCING_LESS,
        setting="`forcing`",
    ),
)

_OPENINGS: Final = (
    Failure(
        "tools denied",
        on=Opening,
        detect=detectors.tools_denied,
        when="the tool choice is free, and the reply begins by denying that it has tools",
        outcome=Outcome.RETRIED,
        setting="`refusals`",
        corrections=(
            (
                "You do have tools in this conversation: those that are listed above. You need not run them yourself. "
                "Write the call in the form that was shown, and its result comes in the next message."
            ),
            "The tools above are real, and a call is only text that you write. Write the call that helps here.",
            "Begin your reply with a call of one of the tools above, in the form that was shown.",
        ),
        native=(
            "You do have tools in this conversation. Call the one that helps: its result comes in the next message.",
            "The tools of this conversation are real, and you can call them. Call the one that helps.",
            "Begin your reply with a call of one of your tools.",
        ),
        detail_is_ours=True,
    ),
    Failure(
        "environment denied",
        on=Opening,
        detect=detectors.environment_denied,
        when=(
            "the tool choice is free, and the reply begins by denying access to files, commands or the network, "
            "although some tool acts on these, or by denying what an offered tool does"
        ),
        outcome=Outcome.RETRIED,
        setting="`refusals`",
        corrections=(
            (
                "You need no access of your own: the tools above act for you. "
                "Write the call that does what is needed, and its result comes in the next message."
            ),
            "A tool does for you what you cannot do yourself, once you write its call. Write the call now.",
            "Begin your reply with the call of a tool that does it, in the form that was shown.",
        ),
        native=(
            "You need no access of your own: your tools act for you. Call the one that does what is needed.",
            "A tool does for you what you cannot do yourself, once you call it. Call it now.",
            "Begin your reply with the call of a tool that does it.",
        ),
        detail_is_ours=True,
    ),
)

TOOL_SEARCH: Final = Failure(
    "tool search",
    on=SearchCall,
    detect=detectors.searched,
    when="a call to `tool_search`; the model receives the tools found as its result",
    outcome=Outcome.EITHER,
    setting="`select_tools`",
    in_record=False,
)

_CALLS: Final = (
    TOOL_SEARCH,
    Failure(
        "too many searches",
        on=SearchCall,
        detect=detectors.searched_too_often,
        when=f"a call to `tool_search` after {MAX_SEARCHES} searches",
        outcome=Outcome.EITHER,
        setting="`select_tools`",
        corrections=(
            "No further search is possible. Call one of the listed tools.",
            "Tools cannot be searched for now. Call a tool of the list.",
        ),
    ),
    Failure(
        "wrong tool",
        on=UnreadCall,
        detect=detectors.wrong_tool,
        when="a call to a tool that the tool choice does not allow",
        outcome=Outcome.EITHER,
        setting='`unknown_tools` other than `"drop"`',
        corrections=(
            "That is not the tool to call now. Call {detail}, exactly in the form that was shown, and nothing else.",
            "The only tool that can be called in this reply is {detail}. Write its call, and no other.",
            "Begin your reply with a call of {detail}.",
        ),
    ),
    Failure(
        "unknown tool",
        on=UnreadCall,
        detect=detectors.unknown_tool,
        when="a call to a tool that was not offered",
        outcome=Outcome.EITHER,
        setting='`unknown_tools = "retry"`',
        corrections=(
            ("No tool has the name that you called. The tools are: {detail}. Call one of these by its exact name."),
            "That tool does not exist either. Only these can be called: {detail}.",
            "Call one of {detail}, by its name in the list.",
        ),
    ),
    Failure(
        "malformed",
        on=UnreadCall,
        detect=detectors.malformed_markup,
        when="markup that was meant as a call but cannot be parsed",
        outcome=Outcome.EITHER,
        setting='`malformed = "retry"`',
        corrections=_BROKEN,
        in_record=False,  # delivered as text unless the model is asked again
    ),
    Failure(
        "malformed",
        on=UnreadArguments,
        detect=detectors.unread_arguments,
        when=(
            "a call that the model has ended, and the client has not seen, whose arguments cannot be read "
            "or are not parameters of the tool"
        ),
        outcome=Outcome.EITHER,
        corrections=(
            "The arguments of your call could not be read.{detail} Write all of it again, in the form that was shown.",
            "The arguments still cannot be read.{detail} Correct them and write the whole call again.",
            "Write the whole call once more, with every bracket and quote closed.{detail}",
        ),
        native=(
            "The arguments of your call could not be read, and it was not made.{detail} Call the tool again.",
            "The arguments still cannot be read.{detail} Call the tool with arguments that can.",
            "Call the tool once more, with its own parameters only.{detail}",
        ),
    ),
    Failure(
        "schema",
        on=CheckedArguments,
        detect=detectors.schema_violated,
        when="buffered arguments that do not match the schema even after coercion",
        outcome=Outcome.EITHER,
        setting='`arguments = "complete"`',
        corrections=(
            "The arguments of your call do not fit the tool. {detail} Write the call again, with arguments that fit.",
            "The arguments are still wrong. {detail} Correct them and write the whole call again.",
            "{detail} Write the call once more, and keep exactly to that schema.",
        ),
        native=(
            "The arguments of your call did not fit the tool, and it was not made. {detail} Call the tool again.",
            "The arguments are still wrong. {detail} Call the tool with arguments that fit.",
            "{detail} Call the tool once more, and keep exactly to that schema.",
        ),
    ),
)

EMPTY: Final = Failure(
    "empty",
    on=EndOfReply,
    detect=detectors.empty_reply,
    when="the tool choice is free, and the reply is empty",
    outcome=Outcome.RETRIED,
    corrections=(
        "Your reply was empty. Answer the user, or write a call.",
        "You did not reply. Answer the user, or call another tool.",
        "Write a reply: the answer, or a call.",
    ),
    demands_call=False,
)
CALL_MISSING: Final = Failure(
    "required call missing",
    on=EndOfReply,
    detect=detectors.call_missing,
    when="the tool choice is `required` or names a tool, and the reply contains no call",
    outcome=Outcome.EITHER,
    corrections=(
        (
            "Your reply did not contain the tool call that is required now. "
            "Write the call, exactly in the form that was shown, and nothing else.{tool}"
        ),
        (
            "There is still no tool call in your reply. "
            "Reply with one tool call in the form that was shown; put no other text around it.{tool}"
        ),
        "A tool call is needed before anything else can happen. Begin your reply with the call itself.{tool}",
    ),
)

_ENDS: Final = (
    Failure(
        "malformed",
        on=EndOfReply,
        detect=detectors.unreadable_call,
        when="a buffered call that cannot be parsed",
        outcome=Outcome.EITHER,
        setting='`arguments = "complete"`',
        corrections=_BROKEN,
    ),
    CALL_MISSING,
    Failure(
        "call forbidden",
        on=EndOfReply,
        detect=detectors.call_forbidden,
        when="the tool choice is `none`, and the reply consists only of calls",
        outcome=Outcome.RETRIED,
        corrections=(
            "No tool can be called in this turn. Answer in plain text, from what you already know.",
            "Tools are switched off for this reply. Write the answer itself, without any call.",
            "Do not write a call. Answer the user in plain sentences.",
        ),
        demands_call=False,
    ),
    Failure(
        "incomplete",
        on=EndOfReply,
        detect=detectors.incomplete_call,
        when="a call that was cut off, or that the client has seen begin and cannot be read",
        outcome=Outcome.DELIVERED,
        setting="`truncated`",
        in_record=False,
    ),
    Failure(
        "answer",
        on=EndOfReply,
        detect=detectors.answer_form_violated,
        when="tools are offered, and the answer is not JSON or does not match the schema that the client asked for",
        outcome=Outcome.RETRIED,
        setting="`answers`",
        corrections=(
            "Your answer has not the form that was asked for. {detail} Write the whole answer again, as JSON alone.",
            "The answer is still wrong. {detail} Write it again: one JSON value, without a fence and without a word.",
            "{detail} Write the answer once more, and keep exactly to the schema.",
        ),
        demands_call=False,
    ),
    Failure(
        "only reasoning",
        on=EndOfReply,
        detect=detectors.reasoning_only,
        when="the tool choice is free, and the reply contains only reasoning, even if there is a call inside it",
        outcome=Outcome.RETRIED,
        corrections=(
            "Your reply was only reasoning, which the user does not read. Close it, then write the answer or the call.",
            "No reply followed your reasoning. Write the answer or the call outside of it.",
            "Write the answer, or the call, and no reasoning before it.",
        ),
        demands_call=False,
    ),
    EMPTY,
    Failure(
        "announced but not called",
        on=EndOfReply,
        detect=detectors.announced_only,
        when="the tool choice is free, and the last sentence announces a call that does not follow",
        outcome=Outcome.CONTINUED,
        setting="`refusals`",
        corrections=(
            "You announced an action, but wrote no call. Write the call now, in the form that was shown.",
            "An announcement does nothing. Go on with the call itself.",
            "Write the call that you announced, and nothing before it.",
        ),
        detail_is_ours=True,
    ),
)

_AGENT: Final = (
    Failure(
        "unknown tool",
        on=ProposedCall,
        detect=detectors.unknown_agent_tool,
        when="a call to a tool that the agent does not have",
        outcome=Outcome.ANSWERED,
        corrections=("{detail} Use their exact names.",),
    ),
    Failure(
        "incomplete",
        on=ProposedCall,
        detect=detectors.truncated_call,
        when="a call that was truncated before its arguments were complete",
        outcome=Outcome.ANSWERED,
        corrections=("The call was cut off before its arguments were complete, and was not executed.",),
    ),
    Failure(
        "arguments",
        on=ProposedCall,
        detect=detectors.invalid_arguments,
        when="arguments that do not match the schema, even after coercion",
        outcome=Outcome.ANSWERED,
        corrections=("{detail}\nThe call was not executed. Write it again.",),
    ),
    Failure(
        "quoted",
        on=ProposedCall,
        detect=detectors.quoted_call,
        when="a call that repeats a result or a tool's description, but no user's message",
        outcome=Outcome.ANSWERED,
        setting="`quoted`",
        corrections=(
            (
                "This call was not executed, because its text is copied from the output or the description of a tool, "
                "which cannot ask for calls; only the user can. If the user's task needs it, tell the user so. "
                "Do not repeat the call; go on with the task."
            ),
        ),
    ),
    Failure(
        "refused",
        on=ProposedCall,
        detect=detectors.not_approved,
        when="a call that `approve` does not allow",
        outcome=Outcome.ANSWERED,
        corrections=("The user refused this call. {detail}",),
    ),
    Failure(
        "protocol",
        on=WholeReply,
        detect=detectors.not_one_object,
        when="a reply that is not a single object, in a format that requires it",
        outcome=Outcome.RETRIED,
        corrections=("{detail}",),
    ),
)

FAILURES: Final[list[Failure[Any]]] = [
    *_REQUESTS,
    *_OPENINGS,
    *_CALLS,
    *_ENDS,
    *_AGENT,
]  # rows with different types of evidence
"""All classes of failures, in order. `register` appends one."""
