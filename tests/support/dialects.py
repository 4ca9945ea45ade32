"""Independent readers and writers of the protocols: an upstream's reply in each dialect, a client's request and its
result.

No code is shared with the library's own readers and writers.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from attrs import frozen
from support.validators import UNREPAIRABLE

from streamtool.testing import Script

CLIENTS = ("chat", "messages", "responses")
"""Clients that can express everything a request may contain."""
ALL_CLIENTS = (*CLIENTS, "ollama", "gemini")
WITH_CHOICE = (*CLIENTS, "gemini")
"""Clients that support a tool choice."""
UPSTREAMS = ("chat", "messages", "responses", "ollama", "gemini", "completions")
PATHS = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "ollama": "/api/chat",
    "gemini": "/v1beta/models/m:streamGenerateContent?alt=sse",
}
"""Paths of requests for replies; for Gemini, that of streamed ones from the model `m` (see `path`)."""

USAGE = (11, 7)
"""Input and output tokens that every upstream reports."""


def path(client: str, *, stream: bool = True, model: str = "m") -> str:
    """Return the path of this client's requests."""
    if client != "gemini":
        return PATHS[client]
    verb = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return f"/v1beta/models/{model}:{verb}"


def sse(payload: Any, name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(payload)}\n\n".encode()


def compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def named(payload: Any) -> bytes:
    return sse(payload, payload["type"])


# --- an upstream's reply: pieces of text, and how it ends ("stop", "length", "filter", "error" or "die")


def chat(pieces: Sequence[str], end: str, n: int = 1) -> list[bytes]:
    head = {"id": "chatcmpl-up", "object": "chat.completion.chunk", "created": 1700000000, "model": "up"}

    def chunk(choice: int, delta: Any, reason: str | None = None) -> bytes:
        entry = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": reason}
        return sse({**head, "choices": [entry]})

    out = [chunk(i, {"role": "assistant", "content": ""}) for i in range(n)]
    out += [chunk(i, {"content": piece}) for piece in pieces for i in range(n)]
    if end == "error":
        return [*out, sse({"error": {"message": "broken pipe", "type": "server_error", "code": None}})]
    if end == "die":
        return out
    reason = {"stop": "stop", "length": "length", "filter": "content_filter"}[end]
    out += [chunk(i, {}, reason) for i in range(n)]
    usage = {"prompt_tokens": USAGE[0], "completion_tokens": USAGE[1], "total_tokens": sum(USAGE)}
    return [*out, sse({**head, "choices": [], "usage": usage}), b"data: [DONE]\n\n"]


def messages(pieces: Sequence[str], end: str, n: int = 1) -> list[bytes]:
    assert n == 1
    message = {
        "id": "msg_up",
        "type": "message",
        "role": "assistant",
        "model": "up",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": USAGE[0], "output_tokens": 1},
    }
    out = [named({"type": "message_start", "message": message}), named({"type": "ping"})]
    out.append(named({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}))
    for piece in pieces:
        delta = {"type": "text_delta", "text": piece}
        out.append(named({"type": "content_block_delta", "index": 0, "delta": delta}))
    if end == "error":
        return [*out, named({"type": "error", "error": {"type": "api_error", "message": "broken pipe"}})]
    if end == "die":
        return out
    reason = {"stop": "end_turn", "length": "max_tokens", "filter": "refusal"}[end]
    out.append(named({"type": "content_block_stop", "index": 0}))
    over = {"delta": {"stop_reason": reason, "stop_sequence": None}, "usage": {"output_tokens": USAGE[1]}}
    return [*out, named({"type": "message_delta", **over}), named({"type": "message_stop"})]


def responses(pieces: Sequence[str], end: str, n: int = 1) -> list[bytes]:
    assert n == 1
    head = {"id": "resp_up", "object": "response", "created_at": 1700000000, "model": "up", "error": None}
    text = "".join(pieces)
    item = {"id": "msg_up", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    at = {"item_id": "msg_up", "output_index": 0, "content_index": 0}
    begun = {**head, "status": "in_progress", "output": [], "usage": None}
    payloads: list[Any] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.content_part.added", **at, "part": part},
        *({"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []} for piece in pieces),
    ]
    if end == "error":
        payloads.append({"type": "error", "code": "server_error", "message": "broken pipe", "param": None})
    elif end != "die":
        status = "completed" if end == "stop" else "incomplete"
        why = {"stop": None, "length": {"reason": "max_output_tokens"}, "filter": {"reason": "content_filter"}}[end]
        whole = {**item, "status": status, "content": [{**part, "text": text}]}
        usage = {
            "input_tokens": USAGE[0],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": USAGE[1],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": sum(USAGE),
        }
        over = {**head, "status": status, "incomplete_details": why, "output": [whole], "usage": usage}
        payloads += [
            {"type": "response.output_text.done", **at, "text": text, "logprobs": []},
            {"type": "response.content_part.done", **at, "part": {**part, "text": text}},
            {"type": "response.output_item.done", "output_index": 0, "item": whole},
            {"type": f"response.{status}", "response": over},
        ]
    return [named({**payload, "sequence_number": number}) for number, payload in enumerate(payloads)]


def ollama(pieces: Sequence[str], end: str, n: int = 1) -> list[bytes]:
    assert n == 1
    head = {"model": "up", "created_at": "2024-01-01T00:00:00Z"}

    def line(payload: Any) -> bytes:
        return json.dumps(payload, ensure_ascii=False).encode() + b"\n"

    out = [line({**head, "message": {"role": "assistant", "content": piece}, "done": False}) for piece in pieces]
    if end == "error":
        return [*out, line({"error": "broken pipe"})]
    if end == "die":
        return out
    counts = {"prompt_eval_count": USAGE[0], "eval_count": USAGE[1]}
    last = {"message": {"role": "assistant", "content": ""}, "done": True, "done_reason": end, **counts}
    return [*out, line({**head, **last})]


def gemini(pieces: Sequence[str], end: str, n: int = 1) -> list[bytes]:
    def part(choice: int, text: str) -> Any:
        return {"content": {"parts": [{"text": text}], "role": "model"}, "index": choice}

    out = [sse({"candidates": [part(i, piece)], "modelVersion": "up"}) for piece in pieces for i in range(n)]
    out = [item.replace(b"\n", b"\r\n") for item in out]
    if end == "error":
        error = {"error": {"code": 500, "message": "broken pipe", "status": "INTERNAL"}}
        return [*out, f"data: {json.dumps(error)}\r\n\r\n".encode()]
    if end == "die":
        return out
    reason = {"stop": "STOP", "length": "MAX_TOKENS", "filter": "SAFETY"}[end]
    usage = {"promptTokenCount": USAGE[0], "candidatesTokenCount": USAGE[1], "totalTokenCount": sum(USAGE)}
    over = [{"finishReason": reason, "index": i} for i in range(n)]
    return [*out, sse({"candidates": over, "usageMetadata": usage, "modelVersion": "up"})]


def completions(pieces: Sequence[str], end: str, n: int = 1) -> list[bytes]:
    head = {"id": "cmpl-up", "object": "text_completion", "created": 1700000000, "model": "up"}

    def chunk(choice: int, text: str, reason: str | None = None) -> bytes:
        return sse({**head, "choices": [{"index": choice, "text": text, "logprobs": None, "finish_reason": reason}]})

    out = [chunk(i, piece) for piece in pieces for i in range(n)]
    if end == "error":
        return [*out, sse({"error": {"message": "broken pipe", "type": "server_error", "code": None}})]
    if end == "die":
        return out
    reason = {"stop": "stop", "length": "length", "filter": "content_filter"}[end]
    out += [chunk(i, "", reason) for i in range(n)]
    usage = {"prompt_tokens": USAGE[0], "completion_tokens": USAGE[1], "total_tokens": sum(USAGE)}
    return [*out, sse({**head, "choices": [], "usage": usage}), b"data: [DONE]\n\n"]


SAYS: dict[str, Callable[..., list[bytes]]] = {
    "chat": chat,
    "messages": messages,
    "responses": responses,
    "ollama": ollama,
    "gemini": gemini,
    "completions": completions,
}
REFUSALS = {
    "chat": {"error": {"message": "slow down", "type": "rate_limit_error", "param": None, "code": None}},
    "messages": {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}},
    "responses": {"error": {"message": "slow down", "type": "rate_limit_error", "param": None, "code": None}},
    "ollama": {"error": "slow down"},
    "gemini": {"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}},
    "completions": {"error": {"message": "slow down", "type": "rate_limit_error", "param": None, "code": None}},
}


def said(upstream: str, text: str, end: str = "stop", *, size: int = 4, n: int = 1) -> Script:
    """Return the upstream's streamed reply: `text` in pieces of `size` characters."""
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    kind = "application/x-ndjson" if upstream == "ollama" else "text/event-stream"
    return Script(tuple(SAYS[upstream](pieces, end, n)), content_type=kind)


def refusal(upstream: str, status: int = 429) -> Script:
    return Script((json.dumps(REFUSALS[upstream]).encode(),), status, "application/json")


# --- a client's request


@frozen
class Ask:
    """A request, before it is written in a protocol."""

    turns: tuple[Any, ...]
    """("system" | "user" | "assistant", text), ("call", id, name, arguments), ("result" | "error", id, text)."""
    tools: tuple[tuple[str, str, Any], ...] = ()
    """Name, description, schema."""
    stream: bool = True
    choice: str = "auto"
    """`auto`, `none`, `required` or a tool's name."""
    parallel: bool = True
    n: int = 1
    form: Any = None
    """JSON Schema of the answer."""


def write(protocol: str, ask: Ask) -> dict[str, Any]:
    """Return the body of the request."""
    writers = {
        "chat": _write_chat,
        "messages": _write_messages,
        "responses": _write_responses,
        "ollama": _write_ollama,
        "gemini": _write_gemini,
    }
    return writers[protocol](ask)


def _write_chat(ask: Ask) -> dict[str, Any]:
    sent: list[Any] = []
    for turn in ask.turns:
        match turn:
            case ("call", id_, name, arguments):
                call = {"id": id_, "type": "function", "function": {"name": name, "arguments": compact(arguments)}}
                if sent[-1]["role"] != "assistant":
                    sent.append({"role": "assistant", "content": None})
                sent[-1].setdefault("tool_calls", []).append(call)
            case ("result" | "error", id_, text):
                sent.append({"role": "tool", "tool_call_id": id_, "content": text})
            case (role, text):
                sent.append({"role": role, "content": text})
    body: dict[str, Any] = {"model": "m", "messages": sent, "stream": ask.stream}
    if ask.stream:
        body["stream_options"] = {"include_usage": True}
    if ask.tools:
        body["tools"] = [
            {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}
            for name, about, schema in ask.tools
        ]
    if ask.choice != "auto":
        known = ask.choice in ("none", "required")
        body["tool_choice"] = ask.choice if known else {"type": "function", "function": {"name": ask.choice}}
    if not ask.parallel:
        body["parallel_tool_calls"] = False
    if ask.n > 1:
        body["n"] = ask.n
    if ask.form is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": ask.form}}
    return body


def _write_messages(ask: Ask) -> dict[str, Any]:
    system = [{"type": "text", "text": turn[1]} for turn in ask.turns if turn[0] == "system"]
    sent: list[Any] = []

    def put(role: str, block: Any) -> None:
        if not sent or sent[-1]["role"] != role:
            sent.append({"role": role, "content": []})
        sent[-1]["content"].append(block)

    for turn in ask.turns:
        match turn:
            case ("call", id_, name, arguments):
                put("assistant", {"type": "tool_use", "id": id_, "name": name, "input": arguments})
            case ("result" | "error" as kind, id_, text):
                flag = {"is_error": True} if kind == "error" else {}
                put("user", {"type": "tool_result", "tool_use_id": id_, "content": text, **flag})
            case ("user" | "assistant" as role, text):
                put(role, {"type": "text", "text": text})
    body: dict[str, Any] = {"model": "m", "max_tokens": 1000, "messages": sent, "stream": ask.stream}
    if system:
        body["system"] = system
    if ask.tools:
        body["tools"] = [
            {"name": name, "description": about, "input_schema": schema} for name, about, schema in ask.tools
        ]
        kind = {"auto": "auto", "none": "none", "required": "any"}.get(ask.choice, "tool")
        choice: dict[str, Any] = {"type": kind}
        if kind == "tool":
            choice["name"] = ask.choice
        if not ask.parallel:
            choice["disable_parallel_tool_use"] = True
        if choice != {"type": "auto"}:
            body["tool_choice"] = choice
    if ask.form is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": ask.form}}
    return body


def _write_responses(ask: Ask) -> dict[str, Any]:
    items: list[Any] = []
    for turn in ask.turns:
        match turn:
            case ("call", id_, name, arguments):
                call = {"call_id": id_, "name": name, "arguments": compact(arguments)}
                items.append({"type": "function_call", **call})
            case ("result" | "error", id_, text):
                items.append({"type": "function_call_output", "call_id": id_, "output": text})
            case (role, text):
                items.append({"role": role, "content": text})
    body: dict[str, Any] = {"model": "m", "input": items, "stream": ask.stream, "store": False}
    if ask.tools:
        body["tools"] = [
            {"type": "function", "name": name, "description": about, "parameters": schema, "strict": False}
            for name, about, schema in ask.tools
        ]
    if ask.choice != "auto":
        known = ask.choice in ("none", "required")
        body["tool_choice"] = ask.choice if known else {"type": "function", "name": ask.choice}
    if not ask.parallel:
        body["parallel_tool_calls"] = False
    if ask.form is not None:
        body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": ask.form}}
    return body


def _write_ollama(ask: Ask) -> dict[str, Any]:
    sent: list[Any] = []
    names: dict[str, str] = {}
    for turn in ask.turns:
        match turn:
            case ("call", id_, name, arguments):
                names[id_] = name
                if sent[-1]["role"] != "assistant":
                    sent.append({"role": "assistant", "content": ""})
                call = {"id": id_, "function": {"name": name, "arguments": arguments}}
                sent[-1].setdefault("tool_calls", []).append(call)
            case ("result" | "error", id_, text):
                sent.append({"role": "tool", "tool_call_id": id_, "tool_name": names.get(id_, id_), "content": text})
            case (role, text):
                sent.append({"role": role, "content": text})
    body: dict[str, Any] = {"model": "m", "messages": sent, "stream": ask.stream}
    if ask.tools:
        body["tools"] = [
            {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}
            for name, about, schema in ask.tools
        ]
    return body


def _write_gemini(ask: Ask) -> dict[str, Any]:
    system = [{"text": turn[1]} for turn in ask.turns if turn[0] == "system"]
    sent: list[Any] = []
    names: dict[str, str] = {}

    def put(role: str, part: Any) -> None:
        if not sent or sent[-1]["role"] != role:
            sent.append({"role": role, "parts": []})
        sent[-1]["parts"].append(part)

    for turn in ask.turns:
        match turn:
            case ("call", id_, name, arguments):
                names[id_] = name
                put("model", {"functionCall": {"id": id_, "name": name, "args": arguments}})
            case ("result" | "error" as kind, id_, text):
                response = {"output" if kind == "result" else "error": text}
                answer = {"id": id_, "name": names.get(id_, id_), "response": response}
                put("user", {"functionResponse": answer})
            case ("user" | "assistant" as role, text):
                put("user" if role == "user" else "model", {"text": text})
    body: dict[str, Any] = {"contents": sent}
    if system:
        body["systemInstruction"] = {"parts": system}
    if ask.tools:
        declared = [
            {"name": name, "description": about, "parametersJsonSchema": schema} for name, about, schema in ask.tools
        ]
        body["tools"] = [{"functionDeclarations": declared}]
    if ask.choice != "auto":
        mode: dict[str, Any] = {"mode": {"none": "NONE"}.get(ask.choice, "ANY")}
        if ask.choice not in ("none", "required"):
            mode["allowedFunctionNames"] = [ask.choice]
        body["toolConfig"] = {"functionCallingConfig": mode}
    if ask.n > 1:
        body["generationConfig"] = {"candidateCount": ask.n}
    return body


# --- a client's result


@frozen
class Got:
    """A reply, whatever its protocol."""

    parts: tuple[Any, ...]
    """Texts, and (name, arguments) for calls, in order."""
    reason: str | None
    """`stop`, `calls`, `length`, `filter`; None: the reply was truncated."""
    usage: tuple[int, int] | None = None
    error: str | None = None
    ids: tuple[str, ...] = ()


def events(body: bytes) -> list[Any]:
    """Return the payloads of an event stream."""
    lines = body.decode().split("\n")
    found = [line.removeprefix("data: ") for line in lines if line.startswith(("data: ", '{"error"'))]
    return [json.loads(line) for line in found if line != "[DONE]"]


def read(protocol: str, body: bytes, *, stream: bool, choice: int = 0) -> Got:
    """Return the client's view of the reply."""
    readers: dict[tuple[str, bool], Callable[[bytes, int], Got]] = {
        ("chat", True): _chat_stream,
        ("chat", False): _chat_whole,
        ("messages", True): _messages_stream,
        ("messages", False): _messages_whole,
        ("responses", True): _responses_stream,
        ("responses", False): _responses_whole,
        ("ollama", True): _ollama_stream,
        ("ollama", False): _ollama_stream,
        ("gemini", True): _gemini_stream,
        ("gemini", False): _gemini_whole,
    }
    return readers[protocol, stream](body, choice)


REASONS = {
    "stop": "stop",
    "tool_calls": "calls",
    "length": "length",
    "content_filter": "filter",
    "end_turn": "stop",
    "tool_use": "calls",
    "max_tokens": "length",
    "refusal": "filter",
}


def _joined(parts: Iterable[Any]) -> tuple[Any, ...]:
    joined: list[Any] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif isinstance(part, tuple):
            joined.append((part[0], part[1].removesuffix(UNREPAIRABLE)))
        elif part != "":
            joined.append(part)
    return tuple(joined)


def _chat_stream(body: bytes, wanted: int) -> Got:
    texts: list[Any] = []
    calls: list[list[str]] = []
    ids: list[str] = []
    reason = error = usage = None
    for chunk in events(body):
        if "error" in chunk:
            error = chunk["error"]["message"]
            continue
        if chunk.get("usage"):
            usage = (chunk["usage"]["prompt_tokens"], chunk["usage"]["completion_tokens"])
        for entry in chunk["choices"]:
            if entry["index"] != wanted:
                continue
            texts.append(entry["delta"].get("content") or "")
            for call in entry["delta"].get("tool_calls", ()):
                if "id" in call:
                    calls.append([call["function"]["name"], ""])
                    ids.append(call["id"])
                calls[call["index"]][1] += call["function"]["arguments"]
            reason = entry["finish_reason"] or reason
    found = [(name, arguments) for name, arguments in calls]
    return Got(_joined([*texts, *found]), reason and REASONS[reason], usage, error, tuple(ids))


def _chat_whole(body: bytes, wanted: int) -> Got:
    reply = json.loads(body)
    if "error" in reply:
        return Got((), None, error=reply["error"]["message"])
    choice = reply["choices"][wanted]
    calls = choice["message"].get("tool_calls", ())
    parts = [choice["message"]["content"] or ""]
    found = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    usage = (reply["usage"]["prompt_tokens"], reply["usage"]["completion_tokens"])
    ids = tuple(call["id"] for call in calls)
    return Got(_joined([*parts, *found]), REASONS[choice["finish_reason"]], usage, None, ids)


def _messages_stream(body: bytes, wanted: int) -> Got:
    blocks: list[Any] = []
    ids: list[str] = []
    reason = error = None
    tokens = [0, 0]
    for event in events(body):
        match event:
            case {"type": "message_start", "message": {"usage": usage}}:
                tokens = [usage["input_tokens"], usage["output_tokens"]]
            case {"type": "content_block_start", "content_block": {"type": "tool_use", "name": name, "id": id_}}:
                blocks.append([name, ""])
                ids.append(id_)
            case {"type": "content_block_start", "content_block": {"type": "text" | "thinking"}}:
                blocks.append("")
            case {"type": "content_block_delta", "index": i, "delta": {"type": "text_delta", "text": text}}:
                blocks[i] += text
            case {"type": "content_block_delta", "index": i, "delta": {"type": "input_json_delta", "partial_json": t}}:
                blocks[i][1] += t
            case {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": usage}:
                reason = REASONS[stop]
                tokens = [usage.get("input_tokens", tokens[0]), usage["output_tokens"]]
            case {"type": "error", "error": {"message": message}}:
                error = message
    parts = [tuple(block) if isinstance(block, list) else block for block in blocks]
    return Got(_joined(parts), reason, (tokens[0], tokens[1]), error, tuple(ids))


def _messages_whole(body: bytes, wanted: int) -> Got:
    reply = json.loads(body)
    if reply["type"] == "error":
        return Got((), None, error=reply["error"]["message"])
    parts = [
        block["text"] if block["type"] == "text" else (block["name"], json.dumps(block["input"]))
        for block in reply["content"]
        if block["type"] != "thinking"
    ]
    usage = (reply["usage"]["input_tokens"], reply["usage"]["output_tokens"])
    ids = tuple(block["id"] for block in reply["content"] if block["type"] == "tool_use")
    return Got(_joined(parts), REASONS[reply["stop_reason"]], usage, None, ids)


def _response(reply: Any) -> Got:
    parts: list[Any] = []
    ids: list[str] = []
    for item in reply["output"]:
        match item:
            case {"type": "message", "content": content}:
                parts.append("".join(part["text"] for part in content))
            case {"type": "function_call", "name": name, "arguments": arguments, "call_id": id_}:
                parts.append((name, arguments))
                ids.append(id_)
    calls = any(isinstance(part, tuple) for part in parts)
    reason: str | None = "calls" if calls else "stop"
    if reply["status"] == "incomplete":
        reason = {"max_output_tokens": "length", "content_filter": "filter"}[reply["incomplete_details"]["reason"]]
    usage = reply["usage"]
    error = None
    if reply["status"] == "failed":
        reason, error = None, reply["error"]["message"]
    tokens = usage and (usage["input_tokens"], usage["output_tokens"])
    return Got(_joined(parts), reason, tokens, error, tuple(ids))


def _responses_stream(body: bytes, wanted: int) -> Got:
    last = events(body)[-1]
    return _response(last["response"]) if "response" in last else Got((), None)


def _responses_whole(body: bytes, wanted: int) -> Got:
    reply = json.loads(body)
    if "output" not in reply:
        return Got((), None, error=reply["error"]["message"])
    return _response(reply)


def _ollama_stream(body: bytes, wanted: int) -> Got:
    """Read a stream; a whole reply is a stream of a single line."""
    parts: list[Any] = []
    ids: list[str] = []
    reason = usage = error = None
    for line in filter(str.strip, body.decode().split("\n")):
        said = json.loads(line)
        error = said.get("error")
        if error:
            break
        parts.append(said["message"]["content"])
        for call in said["message"].get("tool_calls", ()):
            parts.append((call["function"]["name"], json.dumps(call["function"]["arguments"])))
            ids.append(call["id"])
        if said["done"]:
            reason = "calls" if ids and said["done_reason"] == "stop" else said["done_reason"]
            usage = (said["prompt_eval_count"], said["eval_count"])
    return Got(_joined(parts), reason, usage, error, tuple(ids))


def _gemini_stream(body: bytes, wanted: int) -> Got:
    return _gemini(events(body), wanted)


def _gemini_whole(body: bytes, wanted: int) -> Got:
    return _gemini([json.loads(body)], wanted)


def _gemini(chunks: Iterable[Any], wanted: int) -> Got:
    parts: list[Any] = []
    ids: list[str] = []
    reason = usage = error = None
    for chunk in chunks:
        if "error" in chunk:
            error = chunk["error"]["message"]
            break
        for candidate in chunk["candidates"]:
            if candidate["index"] != wanted:
                continue
            for part in candidate["content"]["parts"]:
                call = part.get("functionCall")
                if call:
                    parts.append((call["name"], json.dumps(call["args"])))
                    ids.append(call["id"])
                elif not part.get("thought"):
                    parts.append(part["text"])
            reason = candidate.get("finishReason") or reason
        told = chunk.get("usageMetadata")
        usage = (told["promptTokenCount"], told["candidatesTokenCount"]) if told else usage
    ended = {"STOP": "calls" if ids else "stop", "MAX_TOKENS": "length", "SAFETY": "filter"}
    ended["MALFORMED_FUNCTION_CALL"] = "length"
    return Got(_joined(parts), reason and ended[reason], usage, error, tuple(ids))
