"""Native calls of upstreams."""

import json
from typing import Any

from streamtool.testing import Script, chunk
from streamtool.testing.upstream import DONE


def native_call(name: str, arguments: str, *, id: str = "call_native1", **more: object) -> Script:
    """Return a Chat Completions reply that makes one call."""
    call = {"index": 0, "id": id, "type": "function", "function": {"name": name, "arguments": ""}, **more}
    half = len(arguments) // 2
    pieces = [{"index": 0, "function": {"arguments": piece}} for piece in (arguments[:half], arguments[half:])]
    deltas = [{"role": "assistant", "content": None, "tool_calls": [call]}, *({"tool_calls": [p]} for p in pieces)]
    return Script((*map(chunk, deltas), chunk({}, finish="tool_calls"), DONE))


def gemini_reply(*parts: dict[str, object]) -> Script:
    """Return a Gemini reply."""
    body = {"candidates": [{"index": 0, "content": {"role": "model", "parts": parts}, "finishReason": "STOP"}]}
    return Script((f"data: {json.dumps(body)}\r\n\r\n".encode(),))


def messages_reply(*blocks: dict[str, Any]) -> Script:
    """Return a Messages reply whose arguments come in two pieces."""
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": {}}
    events: list[Any] = [
        {"type": "message_start", "message": {**start, "usage": {"input_tokens": 3, "output_tokens": 0}}}
    ]
    for index, block in enumerate(blocks):
        if block["type"] == "tool_use":
            said = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": one} for one in (said[:5], said[5:])]
            begun = {**block, "input": {}}
        else:
            deltas, begun = [{"type": "text_delta", "text": block["text"]}], {**block, "text": ""}
        events.append({"type": "content_block_start", "index": index, "content_block": begun})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    reason = "tool_use" if blocks[-1]["type"] == "tool_use" else "end_turn"
    events.append({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}})
    events.append({"type": "message_stop"})
    return Script(tuple(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events))


def ollama_reply(**message: Any) -> Script:
    """Return an Ollama reply."""
    said = {"model": "m", "message": {"role": "assistant", "content": "", **message}, "done": False}
    done = {"model": "m", "message": {"role": "assistant", "content": ""}, "done": True, "done_reason": "stop"}
    return Script(tuple(json.dumps(one).encode() + b"\n" for one in (said, done)), content_type="application/x-ndjson")


def responses_reply(item: dict[str, Any]) -> Script:
    """Return a Responses reply with one item."""
    response = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed"}
    events: list[Any] = [{"type": "response.created", "response": {**response, "status": "in_progress", "output": []}}]
    if item["type"] == "function_call":
        begun, kind = {**item, "arguments": ""}, "response.function_call_arguments.delta"
        pieces = [item["arguments"][:5], item["arguments"][5:]]
    else:
        begun, kind = {**item, "content": []}, "response.output_text.delta"
        pieces = [item["content"][0]["text"]]
    events.append({"type": "response.output_item.added", "output_index": 0, "item": begun})
    events += [
        {"type": kind, "output_index": 0, "content_index": 0, "item_id": item["id"], "delta": one} for one in pieces
    ]
    events.append({"type": "response.output_item.done", "output_index": 0, "item": item})
    usage = {"input_tokens": 3, "output_tokens": 5, "total_tokens": 8}
    events.append({"type": "response.completed", "response": {**response, "output": [item], "usage": usage}})
    return Script(tuple(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events))
