"""The naive baseline: tool calling with a short prompt and one regular expression, without streamtool.

It does the same as programs that add tools to a model that only writes text, in a few lines: the tools are JSON in the
system prompt, the complete reply is searched for `<tool_call>{json}</tool_call>`, and results are user messages. Calls
that the pattern does not match, or that are not valid JSON, stay text: nothing is repaired, retried or forced.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

from attrs import evolve

from streamtool.core.conversation import Conversation, Message, TextPart, Tool, ToolChoice
from streamtool.core.json_value import Json, json_line
from streamtool.core.reply import Choice, ReplyCall, ReplyPart, ReplyText

PROMPT: Final = """\
You have access to the following tools:

{tools}

To call a tool, write a block in exactly this form:

<tool_call>
{{"name": "tool_name", "arguments": {{"parameter": "value"}}}}
</tool_call>

{policy}"""
"""The system prompt."""
POLICIES: Final[Mapping[str, str]] = {
    "auto": "Call a tool if it helps to answer. If no tool fits, reply in plain text.",
    "required": "You must call at least one tool.",
    "none": "Do not call any tool. Reply in plain text.",
}
"""Mode of the tool choice → its sentence in the prompt."""
NAMED_POLICY: Final = 'You must call the tool "{}".'
_CALL: Final = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


def without_tools(conversation: Conversation) -> Conversation:
    """Return the conversation with its tools, past calls and results as text."""
    messages = list(map(_as_text, conversation.messages))
    if conversation.tools:
        prompt = PROMPT.format(
            tools=json_line([_described(tool) for tool in conversation.tools]), policy=_policy(conversation.choice)
        )
        if messages and messages[0].role == "system":
            prompt = f"{messages.pop(0).text}\n\n{prompt}"
        messages.insert(0, Message("system", (TextPart(prompt),)))
    return evolve(conversation, messages=tuple(messages), tools=(), choice=ToolChoice())


def with_calls(choice: Choice) -> Choice:
    """Return the reply with the calls that its text contains."""
    calls = tuple(_calls(choice.text))
    rest = _CALL.sub("", choice.text).strip() if calls else choice.text
    parts: tuple[ReplyPart, ...] = (ReplyText(rest), *calls) if rest else calls
    return evolve(choice, parts=parts)


def _described(tool: Tool) -> Json:
    return {"name": tool.name, "description": tool.description, "parameters": tool.parameters or {"type": "object"}}


def _policy(choice: ToolChoice) -> str:
    if choice.mode == "required" and choice.names:
        return NAMED_POLICY.format(choice.names[0])
    return POLICIES[choice.mode]


def _as_text(message: Message) -> Message:
    """Return the message with calls in the form of the prompt, and results in tags."""
    texts = [message.text] if message.content else []
    texts += [
        f'<tool_call>\n{{"name": {json_line(call.name)}, "arguments": {call.arguments}}}\n</tool_call>'
        for call in message.calls
    ]
    texts += [
        f'<tool_result id="{result.id}">\n{Message("user", result.content).text}\n</tool_result>'
        for result in message.results
    ]
    return Message(message.role, (TextPart("\n".join(texts)),))


def _calls(text: str) -> Iterator[ReplyCall]:
    for number, found in enumerate(_CALL.findall(text)):
        try:
            call = json.loads(found)
        except ValueError:
            continue
        if isinstance(call.get("name"), str):
            yield ReplyCall(f"call_{number}", call["name"], json_line(call.get("arguments", {})))
