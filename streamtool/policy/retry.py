"""When an attempt is not accepted, and what the model is then told.

An attempt that showed nothing is thrown away and *retried*; one that showed text is *continued*: its text becomes an
assistant message, the correction follows, and what the model says next is appended to the same reply. Both are bounded
by the caller. The turn state matters only through the choice: nothing is asked for again unless a rule was broken.
"""

from typing import Literal

from streamtool.conversation import Conversation
from streamtool.policy.gate import Gate
from streamtool.policy.rules import Rules
from streamtool.reply import Reason

Cause = Literal["required call missing", "call forbidden", "tools unsupported"]
"""Why an attempt was not accepted; the word of the log record."""

_REQUIRED = (
    (
        "Your reply did not contain the tool call that is required now. "
        "Write the call, exactly in the form that was shown, and nothing else."
    ),
    (
        "There is still no tool call in your reply. "
        "Reply with one tool call in the form that was shown; put no other text around it."
    ),
    "A tool call is needed before anything else can happen. Begin your reply with the call itself.",
)
_FORBIDDEN = (
    "No tool can be called in this turn. Answer in plain text, from what you already know.",
    "Tools are switched off for this reply. Write the answer itself, without any call.",
    "Do not write a call. Answer the user in plain sentences.",
)


def cause(gate: Gate, rules: Rules, reason: Reason) -> Cause | None:
    """Why this attempt, which ended with `reason`, is not accepted; None when it is."""
    if reason in (Reason.LENGTH, Reason.FILTER, Reason.PAUSE):
        return None
    if rules.forced and gate.calls == 0:
        return "required call missing"
    if rules.forbidden and gate.refused and not gate.visible:
        return "call forbidden"
    return None


def correction(why: Cause, conversation: Conversation, attempt: int) -> str:
    """What the model is told after its `attempt`-th try (1 is the first); the wording differs from try to try."""
    wordings = _REQUIRED if why == "required call missing" else _FORBIDDEN
    text = wordings[(attempt - 1) % len(wordings)]
    if why == "required call missing" and len(conversation.choice.names) == 1:
        text += f" The tool to call is `{conversation.choice.names[0]}`."
    return text
