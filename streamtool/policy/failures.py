"""The table of failures: why an attempt, or a call, is not accepted, and what follows from that.

A row says on which evidence a failure is detected and by what, what becomes of the attempt, and how the model is
corrected. Everything else reads the rows: the choice filter and the exchange decide by them whether to ask again, the
record and the log bear their causes, the agent answers calls with their words, and `docs/loop.md` lists them.

Order counts: of two failures with the same evidence, the first one is found. Both attempts and corrections are bounded
by the caller. A correction is never part of the history: the next turn's prompt knows nothing of it.
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
    RefusedRequest,
    UnreadCall,
    WholeReply,
)
from streamtool.policy.failure import Failure, Finding, Outcome


def find(evidence: Evidence) -> Finding | None:
    """The first failure that this evidence shows; None when there is none."""
    for failure in FAILURES:
        fits = failure.on is type(evidence) and failure.outcome.fits(visible=evidence.visible)
        if fits and (detail := failure.detect(evidence)) is not None:
            return Finding(failure, detail, evidence.problem)
    return None


def register(failure: Failure[Any]) -> None:  # of any kind of evidence
    """Add a class of failures, behind those that are there. Raises ValueError when its row contradicts itself."""
    if any(row.cause == failure.cause and row.on is failure.on for row in FAILURES):
        raise ValueError(f'"{failure.cause}" is already detected on {failure.on.__name__}')
    corrected = failure.outcome is not Outcome.DELIVERED and failure.on is not RefusedRequest
    if corrected and not failure.corrections:
        raise ValueError(f'"{failure.cause}" is {failure.outcome.value}, and needs at least one correction')
    FAILURES.append(failure)


_BROKEN: Final = (
    "Your call could not be read. Write all of it again, exactly in the form that was shown.",
    "The call is still broken: check its brackets and quotes, and write all of it once more.",
    "Write the whole call again, shorter if you can, with every bracket and quote closed.",
)
"""The corrections of a call that cannot be read, wherever that is detected."""

_request = partial(Failure[RefusedRequest], on=RefusedRequest, outcome=Outcome.RETRIED, demands_call=False)
USAGE_REFUSED: Final = _request(
    "usage unsupported",
    detect=detectors.usage_refused,
    when="the upstream refuses a field that the client has not sent, which asks for counts of tokens; the next attempt "
    "does without",
)
_REQUESTS: Final = (
    USAGE_REFUSED,
    _request(
        "tools unsupported",
        detect=detectors.tools_unsupported,
        when="the upstream refuses native tools; the next attempt sends them as text",
        setting='`mode = "auto"`',
    ),
    _request(
        "forcing unsupported",
        detect=detectors.forcing_unsupported,
        when="the upstream refuses the method that forces a call; the next attempt asks in words",
        setting="`forcing`",
    ),
    _request(
        "forcing refused",
        detect=detectors.forcing_refused,
        when="the upstream refuses a schema or grammar, or gives no reason; the next attempts force less, or only ask",
        setting="`forcing`",
    ),
)

_OPENINGS: Final = (
    Failure(
        "tools denied",
        on=Opening,
        detect=detectors.tools_denied,
        when="the choice is free, and the reply begins by saying that there are no tools",
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
        when="the same for files, commands or the network, and some tool acts on these",
        outcome=Outcome.RETRIED,
        setting="`refusals`",
        corrections=(
            (
                "You need no access of your own: the tools above act for you. "
                "Write the call that does what is needed, and its result comes in the next message."
            ),
            "What you cannot do yourself, a tool does when you write its call. Write the call now.",
            "Begin your reply with the call of a tool that does it, in the form that was shown.",
        ),
        native=(
            "You need no access of your own: your tools act for you. Call the one that does what is needed.",
            "What you cannot do yourself, a tool does when you call it. Call it now.",
            "Begin your reply with the call of a tool that does it.",
        ),
        detail_is_ours=True,
    ),
)

_CALLS: Final = (
    Failure(
        "wrong tool",
        on=UnreadCall,
        detect=detectors.wrong_tool,
        when="a call of another tool than the choice allows",
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
        when="a call of a tool that was not offered",
        outcome=Outcome.EITHER,
        setting='`unknown_tools = "retry"`',
        corrections=(
            (
                "There is no tool of the name that you called. The tools are: {detail}. "
                "Call one of these by its exact name."
            ),
            "That tool does not exist either. Only these can be called: {detail}.",
            "Call one of {detail}, by its name in the list.",
        ),
    ),
    Failure(
        "malformed",
        on=UnreadCall,
        detect=detectors.malformed_markup,
        when="markup that was meant as a call and cannot be read",
        outcome=Outcome.EITHER,
        setting='`malformed = "retry"`',
        corrections=_BROKEN,
        in_record=False,  # what is not asked for again is text
    ),
    Failure(
        "schema",
        on=CheckedArguments,
        detect=detectors.schema_violated,
        when="arguments that waited until they were whole, and do not match the schema even after coercion",
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

CALL_MISSING: Final = Failure(
    "required call missing",
    on=EndOfReply,
    detect=detectors.call_missing,
    when="`required`, or a named tool, and no call",
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
        detect=detectors.unreadable,
        when="a call that waited until it was whole, and cannot be read",
        outcome=Outcome.EITHER,
        setting='`arguments = "complete"`',
        corrections=_BROKEN,
    ),
    CALL_MISSING,
    Failure(
        "call forbidden",
        on=EndOfReply,
        detect=detectors.call_forbidden,
        when="the choice is `none`, and the reply is nothing but calls",
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
        when="a call that was cut; the reply ends as one that reached its length",
        outcome=Outcome.DELIVERED,
        setting="`truncated`",
        in_record=False,
    ),
    Failure(
        "empty",
        on=EndOfReply,
        detect=detectors.empty_reply,
        when="nothing at all after a result",
        outcome=Outcome.RETRIED,
        corrections=(
            "Your reply was empty. Say what follows from the result above, or write the next call.",
            "There was no reply. Answer the user, or call another tool.",
            "Write a reply: the answer, or the next call.",
        ),
        demands_call=False,
    ),
    Failure(
        "answer",
        on=EndOfReply,
        detect=detectors.answer_unfit,
        when="there are tools, and an answer that is not JSON or does not fit the schema that the client has asked for",
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
        detect=detectors.thought_only,
        when="the choice is free, and the reply is reasoning and nothing else, a call inside of it included",
        outcome=Outcome.RETRIED,
        corrections=(
            "Your reply was only reasoning, which nobody reads. Close it, and write the answer or the call behind it.",
            "There was no reply behind your reasoning. Write the answer or the call outside of it.",
            "Write the answer, or the call, and no reasoning before it.",
        ),
        demands_call=False,
    ),
    Failure(
        "announced but not called",
        on=EndOfReply,
        detect=detectors.announced_only,
        when="the choice is free, and the last sentence announces a call that is not there",
        outcome=Outcome.CONTINUED,
        setting="`refusals`",
        corrections=(
            "You said what you were going to do, but wrote no call. Write the call now, in the form that was shown.",
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
        detect=detectors.not_a_tool,
        when="a call of a tool that the agent does not have",
        outcome=Outcome.ANSWERED,
        corrections=("{detail} Use their exact names.",),
    ),
    Failure(
        "incomplete",
        on=ProposedCall,
        detect=detectors.cut_off,
        when="a call that was cut before its arguments were complete",
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
        when="a reply that is not one object, in a format where it has to be",
        outcome=Outcome.RETRIED,
        corrections=("{detail}",),
    ),
)

FAILURES: Final[list[Failure[Any]]] = [*_REQUESTS, *_OPENINGS, *_CALLS, *_ENDS, *_AGENT]  # each has its own evidence
"""All classes. `register` adds one."""
