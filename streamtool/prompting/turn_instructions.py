"""The tail: what holds for this one reply, said after the last message.

The tool choice and a correction change from turn to turn; the tool prompt and the history do not. So the prompt without
its tail stays a prefix of the next prompt, and an upstream's prefix cache keeps it. With `verbatim` the tail of a reply
that calls is remembered with the reply, and stands before it ever after. A free choice says nothing, and that a reply
holds one call at most is a rule of the tool prompt, since clients say it in every request.
"""

import json

from attrs import evolve

from streamtool.conversation import Conversation, Message, OutputFormat, TextPart, ToolChoice


def choice_text(choice: ToolChoice) -> str:
    """The choice as one or two sentences; empty when the model may do as it likes."""
    names = ", ".join(f"`{name}`" for name in choice.names)
    if choice.mode == "none":
        return "For this reply: write no call. Answer without tools."
    sentences = []
    if choice.mode == "required":
        count = "one call" if choice.parallel else "exactly one call"
        if len(choice.names) == 1:
            sentences.append(f"For this reply: write {count} of the tool {names}, and call no other tool.")
        elif names:
            sentences.append(f"For this reply: write {_at_least(count)}, and only of these tools: {names}.")
        else:
            sentences.append(f"For this reply: write {_at_least(count)}; an answer without a call is not accepted.")
    elif names:
        sentences.append(f"For this reply: call only these tools: {names}.")
    return " ".join(sentences)


def _at_least(count: str) -> str:
    return count if count.startswith("exactly") else f"at least {count}"


def output_text(output: OutputFormat | None) -> str:
    """The form of the answer, which the upstream cannot be held to while calls are text."""
    if output is None or output.foreign:
        return ""
    if output.schema is None:
        return "When you answer without a call, the whole answer is one JSON object and nothing else."
    schema = json.dumps(output.schema, ensure_ascii=False, separators=(",", ":"))
    return (
        "When you answer without a call, the whole answer is one JSON value that fits this schema, "
        f"and nothing else: {schema}"
    )


def tail(choice: ToolChoice, correction: str | None, output: OutputFormat | None = None) -> str:
    """Everything that stands after the last message; empty when there is nothing to say."""
    return "\n\n".join(text for text in (correction, choice_text(choice), output_text(output)) if text)


def corrected(conversation: Conversation, correction: str) -> Conversation:
    """The conversation with a correction as the user's last words, for a model that has its tools natively."""
    *before, last = conversation.messages
    said = Message("user", (TextPart(correction),))
    if last.role == "user" and not last.results:  # not every upstream takes two messages of the user in a row
        return evolve(conversation, messages=(*before, evolve(said, content=(*last.content, *said.content))))
    return evolve(conversation, messages=(*before, last, said))
