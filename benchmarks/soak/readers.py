"""Reply readers, one for each protocol. They share no code with streamtool's own readers and validators."""

import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from attrs import define, field

REASONS: Final = {
    "stop": "stop",
    "tool_calls": "calls",
    "length": "length",
    "end_turn": "stop",
    "tool_use": "calls",
    "max_tokens": "length",
    "max_output_tokens": "length",
}


@define
class Got:
    """A reply as read by a client."""

    text: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(factory=list)
    """Name and arguments of each call."""
    reason: str | None = None
    """Reason why the reply ended; None if it was cut off."""
    error: str | None = None


Step = Callable[[Any, Got], None]


def read(protocol: str, body: bytes, *, stream: bool) -> Got:
    """Read the reply. Raises ValueError, KeyError, TypeError or IndexError if clients cannot read it."""
    got = Got()
    if not stream:
        whole = json.loads(body)
        if whole.get("error"):
            got.error = whole["error"]["message"]
        else:
            WHOLE[protocol](whole, got)
        return got
    for event in events(body):
        STEPS[protocol](event, got)
    return got


def events(body: bytes) -> Iterator[Any]:
    """Yield the payloads of a stream."""
    for line in body.decode().split("\n"):
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line[6:])


def _chat(chunk: Any, got: Got) -> None:
    if "error" in chunk:
        got.error = chunk["error"]["message"]
        return
    for choice in chunk["choices"]:
        delta = choice["delta"]
        got.text += delta.get("content") or ""
        got.reasoning += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                got.calls.append([call["function"]["name"], ""])
            got.calls[call["index"]][1] += call["function"]["arguments"]
        if choice["finish_reason"]:
            got.reason = REASONS[choice["finish_reason"]]


def _chat_whole(reply: Any, got: Got) -> None:
    message = reply["choices"][0]["message"]
    got.text = message["content"] or ""
    got.reasoning = message.get("reasoning_content") or ""
    got.calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls", ())]
    got.reason = REASONS[reply["choices"][0]["finish_reason"]]


def _messages(event: Any, got: Got) -> None:
    match event:
        case {"type": "content_block_start", "content_block": {"type": "tool_use", "name": name}}:
            got.calls.append([name, ""])
        case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}:
            got.text += text
        case {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": text}}:
            got.reasoning += text
        case {"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": text}}:
            got.calls[-1][1] += text
        case {"type": "message_delta", "delta": {"stop_reason": reason}}:
            got.reason = REASONS[reason]
        case {"type": "error", "error": {"message": message}}:
            got.error = message


def _messages_whole(reply: Any, got: Got) -> None:
    for block in reply["content"]:
        match block:
            case {"type": "text", "text": text}:
                got.text += text
            case {"type": "thinking", "thinking": text}:
                got.reasoning += text
            case {"type": "tool_use", "name": name, "input": arguments}:
                got.calls.append([name, json.dumps(arguments)])
    got.reason = REASONS[reply["stop_reason"]]


def _responses(event: Any, got: Got) -> None:
    match event:
        case {"type": "response.output_text.delta", "delta": text}:
            got.text += text
        case {"type": "response.reasoning_text.delta" | "response.reasoning_summary_text.delta", "delta": text}:
            got.reasoning += text
        case {"type": "response.output_item.added", "item": {"type": "function_call", "name": name}}:
            got.calls.append([name, ""])
        case {"type": "response.function_call_arguments.delta", "delta": text}:
            got.calls[-1][1] += text
        case {"type": "response.completed" | "response.incomplete" | "response.failed", "response": response}:
            said = Got()
            _response(response, said)
            got.reason, got.error = said.reason, said.error
            if (said.text, said.reasoning, said.calls) != (got.text, got.reasoning, got.calls):
                raise ValueError("the response at the end differs from its deltas")
        case {"type": "error", "message": message}:
            got.error = message


def _response(reply: Any, got: Got) -> None:
    for item in reply["output"]:
        match item:
            case {"type": "message", "content": content}:
                got.text += "".join(part["text"] for part in content)
            case {"type": "reasoning"}:
                parts = item.get("content") or item.get("summary") or ()
                got.reasoning += "".join(part["text"] for part in parts)
            case {"type": "function_call", "name": name, "arguments": arguments}:
                got.calls.append([name, arguments])
    match reply["status"]:
        case "failed":
            got.error = reply["error"]["message"]
        case "incomplete":
            got.reason = REASONS[reply["incomplete_details"]["reason"]]
        case "completed":
            got.reason = "calls" if got.calls else "stop"


STEPS: Final[dict[str, Step]] = {"chat": _chat, "messages": _messages, "responses": _responses}
"""Functions that read one event of a stream."""
WHOLE: Final[dict[str, Step]] = {"chat": _chat_whole, "messages": _messages_whole, "responses": _response}
"""Functions that read a complete reply."""
