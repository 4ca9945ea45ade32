"""Turn instructions: text after the last message that applies to this reply only.

The tool choice and corrections change from turn to turn; the tool prompt and the history do not. The prompt without its
turn instructions is therefore a prefix of the next prompt, and remains in the upstream's prefix cache. If `verbatim` is
enabled, the turn instructions for a reply with calls are stored with the reply, and precede it in all later prompts. A
free tool choice adds no text. A limit of one call per reply is a rule in the tool prompt instead, since clients that
set the limit do so in every request.
"""

import json

from attrs import evolve

from streamtool.core.conversation import Conversation, Message, OutputFormat, TextPart, ToolChoice


def choice_text(choice: ToolChoice) -> str:
    """Return the tool choice as one or two sentences, or an empty string if the model is free to choose."""
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
    """Return an instruction about the form of the answer, because the upstream cannot enforce the form while calls are
    text.
    """
    if output is None or output.foreign:
        return ""
    if output.schema is None:
        return "When you answer without a call, the whole answer is one JSON object and nothing else."
    schema = json.dumps(output.schema, ensure_ascii=False, separators=(",", ":"))
    return (
        "When you answer without a call, the whole answer is one JSON value that fits this schema, "
        f"and nothing else: {schema}"
    )


def instructions_text(
    choice: ToolChoice, correction: str | None, output: OutputFormat | None = None, volatile: str = ""
) -> str:
    """Return all turn instructions, or an empty string. The first is the text that the client changes with each
    request.
    """
    if correction is None and output is None and choice.mode == "auto" and not choice.names:
        return volatile
    return "\n\n".join(text for text in (volatile, correction, choice_text(choice), output_text(output)) if text)


def with_correction(conversation: Conversation, correction: str | None) -> Conversation:
    """Return the conversation with its volatile text and a correction as the last user message, for a model that
    receives its tools natively.
    """
    text = "\n\n".join(text for text in (conversation.volatile, correction) if text)
    if not text:
        return conversation
    *before, last = conversation.messages
    said = Message("user", (TextPart(text),))
    if last.role == "user" and not last.results:  # some upstreams reject two user messages in a row
        return evolve(conversation, messages=(*before, evolve(said, content=(*last.content, *said.content))))
    return evolve(conversation, messages=(*before, last, said))
