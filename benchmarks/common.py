"""Code shared by the benchmarks of the whole path: requests, upstream events as real servers write them, and tables.

The events are compact JSON and differ between upstreams as on real servers: Chat Completions and completions repeat
their header fields, Messages names its events, Ollama writes lines, Gemini ends its lines with CR LF and counts tokens
in each event. Deltas are four characters long. Events with equal text share one object, so that the path is measured
and not the memory used by a long reply.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from attrs import field, frozen

from streamtool.bench import CODE, DELTA, PROSE, json_escape, repeat

CLIENTS = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "ollama": "/api/chat",
    "gemini": "/v1beta/models/m:streamGenerateContent?alt=sse",
}
"""Client protocol → path."""
UPSTREAMS = ("chat", "messages", "responses", "ollama", "gemini", "completions")
KINDS = ("text", "arguments")
FEW, MANY = 2_000, 20_000
"""Numbers of deltas in a short reply and in a long one."""
GROWTH = 1.1
"""Maximum cost of a delta in a reply of MANY deltas, relative to a delta in a reply of FEW."""
OPENER = '<tool_call>{"name": "write_file", "arguments": {"path": "a.py", "content": "'

_ABOUT = "Does something useful with a file, and says how it went."
_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}


# --- client requests


def request(client: str, tools: int, model: str = "m", about: str = _ABOUT) -> bytes:
    """Return a streaming request with `tools` tools, all described as `about`."""
    names = ["write_file", *(f"tool_{number}" for number in range(1, tools))][:tools]
    asked: dict[str, Any] = {"model": model, "stream": True}
    user = {"role": "user", "content": "Write the file."}
    match client:
        case "chat" | "ollama":
            functions = [{"name": name, "description": about, "parameters": _SCHEMA} for name in names]
            asked |= {"messages": [user], "tools": [{"type": "function", "function": it} for it in functions]}
        case "messages":
            given = [{"name": name, "description": about, "input_schema": _SCHEMA} for name in names]
            asked |= {"messages": [user], "max_tokens": 100_000, "tools": given}
        case "gemini":
            given = [{"name": name, "description": about, "parametersJsonSchema": _SCHEMA} for name in names]
            asked = {"contents": [{"role": "user", "parts": [{"text": user["content"]}]}]}
            asked["tools"] = [{"functionDeclarations": given}]
        case _:
            given = [{"type": "function", "name": name, "description": about, "parameters": _SCHEMA} for name in names]
            asked |= {"input": [user], "store": False, "tools": given}
    return json.dumps(asked).encode()


# --- upstream replies


def _json(payload: Any) -> str:
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":"))


_CHUNK = '{"id":"chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG","object":"%s","created":1741570283,"model":"m","choices":[%s]}'
_DELTAS = {
    "chat": "data: " + _CHUNK.replace("%s", "chat.completion.chunk", 1)
    % '{"index":0,"delta":{"content":%s},"logprobs":null,"finish_reason":null}' + "\n\n",
    "messages": 'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
    '"delta":{"type":"text_delta","text":%s}}\n\n',
    "responses": 'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":4,'
    '"item_id":"msg_67c9fdcf37fc8190","output_index":0,"content_index":0,"delta":%s,"logprobs":[],'
    '"obfuscation":"7dKd2yQ"}\n\n',
    "ollama": '{"model":"m","created_at":"2025-03-09T22:31:23.512Z","message":{"role":"assistant","content":%s},'
    '"done":false}\n',
    "gemini": 'data: {"candidates":[{"content":{"parts":[{"text":%s}],"role":"model"},"index":0}],'
    '"usageMetadata":{"promptTokenCount":512,"candidatesTokenCount":7,"totalTokenCount":519},'
    '"modelVersion":"m","responseId":"mVXOZ5qUJpy8nvgPxu2y0A4"}\r\n\r\n',
    "completions": "data: " + _CHUNK.replace("%s", "text_completion", 1)
    % '{"text":%s,"index":0,"logprobs":null,"finish_reason":null}' + "\n\n",
}  # fmt: skip
_MESSAGE = {"id": "msg_01XFDUDYJgAACzvnptvVoYEL", "type": "message", "role": "assistant", "model": "m", "content": [],
            "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 512, "output_tokens": 1}}  # fmt: skip
_BEGINS = {
    "chat": _DELTAS["chat"].replace('{"content":%s}', '{"role":"assistant","content":""}'),
    "messages": f"event: message_start\ndata: {_json({'type': 'message_start', 'message': _MESSAGE})}\n\n"
    'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
    '"content_block":{"type":"text","text":""}}\n\n',
}
_RESPONSE = {"id": "resp_67c9fdcecf488190", "object": "response", "created_at": 1741290958, "model": "m",
             "status": "in_progress", "output": [], "error": None, "incomplete_details": None}  # fmt: skip
_BEGINS["responses"] = "".join(
    f"event: {name}\ndata: {_json({'type': name, 'sequence_number': number, **more})}\n\n"
    for number, (name, more) in enumerate(
        (
            ("response.created", {"response": _RESPONSE}),
            (
                "response.output_item.added",
                {"output_index": 0, "item": {"id": "msg_67c9fdcf37fc8190", "type": "message", "role": "assistant",
                                             "status": "in_progress", "content": []}},
            ),
        )
    )
)  # fmt: skip
CHAT_END = (_DELTAS["chat"].replace('{"content":%s}', "{}").replace('reason":null', 'reason":"stop"')).encode()


def beginning(upstream: str) -> bytes:
    """Return the bytes that precede the first delta."""
    return _BEGINS.get(upstream, "").encode()


@cache
def delta(upstream: str, text: str) -> bytes:
    """Return the event that contains this text."""
    return (_DELTAS[upstream] % _json(text)).encode()


def first_texts(kind: str) -> list[str]:
    """Return the text before the measured deltas: a word, or the beginning of a call."""
    return [OPENER[at : at + DELTA] for at in range(0, len(OPENER), DELTA)] if kind == "arguments" else ["Paris"]


def opening(upstream: str, kind: str) -> list[bytes]:
    """Return the events before the measured deltas."""
    begins = beginning(upstream)
    return [*([begins] if begins else []), *(delta(upstream, text) for text in first_texts(kind))]


def texts(kind: str, count: int) -> list[str]:
    """Return `count` deltas of prose, or of a file written by a call."""
    whole = repeat(PROSE if kind == "text" else json_escape(CODE), count * DELTA)
    return [whole[at : at + DELTA] for at in range(0, count * DELTA, DELTA)]


def deltas(upstream: str, kind: str, count: int) -> list[bytes]:
    """Return `count` events of text or of arguments."""
    return [delta(upstream, text) for text in texts(kind, count)]


# --- tables


@frozen
class Row:
    """One line of a table. Without a target, `ok` stays None."""

    cells: tuple[str, ...]
    target: str = ""
    ok: bool | None = None


@frozen
class Table:
    """A table, printed as Markdown."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Row] = field(converter=list)

    def show(self) -> int:
        """Print the table and return the number of missed targets."""
        heads = (*self.columns, "target", "")
        lines = [(*row.cells, row.target, {None: "", True: "ok", False: "MISS"}[row.ok]) for row in self.rows]
        sizes = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
        print(f"\n{self.title}\n")
        for line in (heads, tuple("-" * size for size in sizes), *lines):
            print("| " + " | ".join(cell.ljust(size) for cell, size in zip(line, sizes, strict=True)) + " |")
        return sum(row.ok is False for row in self.rows)


def taking_turns(rounds: int, *runs: Callable[[], float]) -> list[float]:
    """Return the minimum of each run over `rounds` rounds. The runs take turns within each round, so that all of them
    are measured under the same load.
    """
    found = [[run() for run in runs] for _ in range(rounds)]
    return [min(column) for column in zip(*found, strict=True)]


def median(values: Iterable[float]) -> float:
    """Return the median of the values."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
