"""When an attempt is not accepted, and what the model is then told.

An attempt that showed nothing is thrown away and *retried*; one that showed text is *continued*: its text becomes an
assistant message, the correction follows, and what the model says next is appended to the same reply. Both are bounded
by the caller. A correction is never part of the history: the next turn's prompt knows nothing of it.
"""

from collections.abc import Mapping
from typing import Final

from streamtool.conversation import Conversation
from streamtool.policy.causes import Cause
from streamtool.policy.gate import Gate
from streamtool.policy.refusals import announced
from streamtool.policy.rules import Rules
from streamtool.reply import Reason

_EXIT: Final = " If the task is done, say so in plain text."
"""What ends a demand for a call, unless the client demands it as well."""
_WITHOUT_EXIT: Final = frozenset[Cause](("call forbidden", "empty"))
"""Causes after which no call is asked for, or not only."""
_WORDINGS: Final[Mapping[Cause, tuple[str, ...]]] = {
    "required call missing": (
        (
            "Your reply did not contain the tool call that is required now. "
            "Write the call, exactly in the form that was shown, and nothing else."
        ),
        (
            "There is still no tool call in your reply. "
            "Reply with one tool call in the form that was shown; put no other text around it."
        ),
        "A tool call is needed before anything else can happen. Begin your reply with the call itself.",
    ),
    "call forbidden": (
        "No tool can be called in this turn. Answer in plain text, from what you already know.",
        "Tools are switched off for this reply. Write the answer itself, without any call.",
        "Do not write a call. Answer the user in plain sentences.",
    ),
    "tools denied": (
        (
            "You do have tools in this conversation: those that are listed above. You need not run them yourself. "
            "Write the call in the form that was shown, and its result comes in the next message."
        ),
        "The tools above are real, and a call is only text that you write. Write the call that helps here.",
        "Begin your reply with a call of one of the tools above, in the form that was shown.",
    ),
    "environment denied": (
        (
            "You need no access of your own: the tools above act for you. "
            "Write the call that does what is needed, and its result comes in the next message."
        ),
        "What you cannot do yourself, a tool does when you write its call. Write the call now.",
        "Begin your reply with the call of a tool that does it, in the form that was shown.",
    ),
    "announced but not called": (
        "You said what you were going to do, but wrote no call. Write the call now, in the form that was shown.",
        "An announcement does nothing. Go on with the call itself.",
        "Write the call that you announced, and nothing before it.",
    ),
    "unknown tool": (
        "There is no tool of the name that you called. The tools are: {detail}. Call one of these by its exact name.",
        "That tool does not exist either. Only these can be called: {detail}.",
        "Call one of {detail}, by its name in the list.",
    ),
    "wrong tool": (
        "That is not the tool to call now. Call {detail}, exactly in the form that was shown, and nothing else.",
        "The only tool that can be called in this reply is {detail}. Write its call, and no other.",
        "Begin your reply with a call of {detail}.",
    ),
    "malformed": (
        (
            "Your call could not be read. "
            "Write it again, exactly in the form that was shown, from the first to the last character of it."
        ),
        "The call is still broken: check its brackets and quotes, and write all of it once more.",
        "Write the whole call again, shorter if you can, with every bracket and quote closed.",
    ),
    "schema": (
        "The arguments of your call do not fit the tool. {detail} Write the call again, with arguments that fit.",
        "The arguments are still wrong. {detail} Correct them and write the whole call again.",
        "{detail} Write the call once more, and keep exactly to that schema.",
    ),
    "empty": (
        "Your reply was empty. Say what follows from the result above, or write the next call.",
        "There was no reply. Answer the user, or call another tool.",
        "Write a reply: the answer, or the next call.",
    ),
}
"""What the model is told; the wording differs from try to try."""


def cause(gate: Gate, rules: Rules, reason: Reason) -> tuple[Cause, str] | None:
    """Why this attempt, which ended with `reason`, is not accepted, and the detail of it; None when it is."""
    if gate.denied is not None:
        return gate.denied, gate.detail
    if reason in (Reason.LENGTH, Reason.FILTER, Reason.PAUSE):
        return None
    if gate.spoilt and gate.calls == 0:
        return "malformed", ""
    if rules.forced and gate.calls == 0:
        return "required call missing", ""
    if rules.forbidden and gate.refused and not gate.visible:
        return "call forbidden", ""
    if gate.incomplete:
        return None
    if rules.answers and not gate.visible and not gate.refused:
        return "empty", ""
    if rules.watches and gate.visible and gate.calls == 0 and gate.stopped is None:
        phrase = announced(gate.wrote, rules.phrases)
        if phrase is not None:
            return "announced but not called", phrase
    return None


def correction(why: Cause, detail: str, conversation: Conversation, attempt: int) -> str:
    """What the model is told after its `attempt`-th try (1 is the first)."""
    wordings = _WORDINGS[why]
    text = wordings[(attempt - 1) % len(wordings)].replace("{detail}", detail)
    if why == "required call missing" and len(conversation.choice.names) == 1:
        text += f" The tool to call is `{conversation.choice.names[0]}`."
    if conversation.choice.mode != "required" and why not in _WITHOUT_EXIT:
        text += _EXIT
    return text
