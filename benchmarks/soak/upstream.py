"""An upstream that speaks Chat Completions and sends the given replies, including their false claims and faults."""

import asyncio
import contextlib
import gzip
import json
import re
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

from replies import Reply

PATIENCE: Final = 60.0
"""Maximum seconds of silence in a reply."""
LONGEST: Final = 2.0
"""Maximum total length of the pauses in a reply, in seconds."""
PAUSES: Final = 400
"""Maximum number of pieces of a reply that are followed by a pause; even the shortest sleep takes a millisecond."""
_HEAD: Final = {"id": "chatcmpl-up", "object": "chat.completion.chunk", "created": 1741570283, "model": "up"}
_ERROR: Final = {"error": {"message": "the engine broke", "type": "server_error", "param": None, "code": None}}
_USAGE: Final = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


class Upstream:
    """The server. `reply_to(model, attempt)` returns the reply to send, or None for an unknown model.

    `body[model]` is the body of the last response for that model.
    """

    def __init__(self, reply_to: Callable[[str, int], Reply | None]) -> None:
        self._reply_to = reply_to
        self._attempts: dict[str, int] = {}
        self.body: dict[str, bytearray] = {}
        self._writers: set[asyncio.StreamWriter] = set()
        self.saying: list[str] = []
        """Models whose replies are being sent, listed once per reply."""
        self.characters = 0
        """Number of characters in all deltas so far."""

    def forget(self, model: str) -> None:
        """Forget the replies for this model."""
        self.body.pop(model, None)
        self._attempts.pop(model, None)

    def rest(self) -> None:
        """Forget all replies and close all connections."""
        for writer in self._writers:
            writer.close()
        self.body.clear()
        self._attempts.clear()

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        self._writers.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(length[1]) if length else 0)
                if b"/chat/completions" not in head.partition(b"\r\n")[0]:  # a request for information about the server
                    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                    continue
                asked = json.loads(body)
                self.saying.append(asked.get("model", ""))
                try:
                    if not await self._answer(asked, reader, writer):
                        return
                finally:
                    self.saying.remove(asked.get("model", ""))
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answer(self, asked: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Send the reply, and return whether the connection can be used again."""
        model = asked.get("model", "")
        attempt = self._attempts.get(model, 0)
        said = self._reply_to(model, attempt)
        if said is None:
            writer.write(_instead("no model"))
            return True
        if said.fault == "nothing":
            return False
        self._attempts[model] = attempt + 1
        self.body[model] = bytearray()
        self.characters += sum(len(value) for _, value in said.said if isinstance(value, str))
        if said.fault in _INSTEAD:
            writer.write(_instead(said.fault))
            self.body[model] += _INSTEAD[said.fault][2]
            await writer.drain()
            return not said.fault.endswith("cut") and said.fault != "no HTTP"
        return await Answer(said, bool(asked.get("stream")), writer, self.body[model]).say(reader)


_INSTEAD: Final[dict[str, tuple[str, str, bytes]]] = {
    "status 429": ("429 Slow Down", "application/json", json.dumps(_ERROR).encode()),
    "status 500": ("500 Broken", "text/plain", b"Internal Server Error"),
    "status 503, cut": ("503 Busy", "application/json", json.dumps(_ERROR).encode()),
    "no model": ("400 No Model", "application/json", json.dumps(_ERROR).encode()),
    "no HTTP": ("", "", b"this is not HTTP at all\r\n\r\n"),
    "a page": ("200 OK", "text/html", b"<!doctype html><html><head><title>Sign in</title></head></html>"),
    "an error as 200": ("200 OK", "application/json", json.dumps(_ERROR).encode()),
}
"""Status, content type and body of the responses that are sent instead of a reply."""


def _instead(fault: str) -> bytes:
    status, kind, words = _INSTEAD[fault]
    size = len(words) + (99 if fault.endswith("cut") else 0)
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {size}\r\n\r\n"
    return (head.encode() if status else b"") + words


class Answer:
    """A reply that is being sent."""

    def __init__(self, said: Reply, stream: bool, writer: asyncio.StreamWriter, body: bytearray) -> None:
        self._said = said
        self._stream = stream and said.lie != "document"
        self._writer = writer
        self._body = body
        self._chunked = said.lie != "until closed"
        packs = said.lie == "gzip" or said.fault == "gzip breaks"
        self._pack: Any = None
        if packs:
            self._packed = _Sink()
            self._pack = gzip.GzipFile(fileobj=self._packed, mode="wb")

    async def say(self, reader: asyncio.StreamReader) -> bool:
        """Send the reply, and return whether the connection can be used again."""
        said = self._said
        kind = "text/event-stream" if self._stream else "application/json"
        if said.lie == "content type":
            kind = "text/plain" if self._stream else "text/event-stream"
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n"
        head += "content-encoding: gzip\r\n" if self._pack else ""
        head += "transfer-encoding: chunked\r\n\r\n" if self._chunked else "connection: close\r\n\r\n"
        self._writer.write(head.encode())
        pieces = [*self._pieces()]
        pace = min(said.pace, LONGEST / len(pieces)) if len(pieces) <= PAUSES else 0
        for piece in pieces:
            await self._send(piece)
            if pace:
                await asyncio.sleep(pace)
        match said.fault:
            case "":
                await self._end()
                return self._chunked
            case "ended" | "error event" | "no JSON":
                await self._end()
                return self._chunked
            case "gzip breaks":
                self._pack = None
                await self._send(b"this was never packed")
                await self._end()
                return self._chunked
            case "silence":
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1), PATIENCE)
            case "reset":
                await self._writer.drain()
                sock = self._writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            case _:
                self._writer.write(b"ff\r\ncut" if self._chunked else b"")
                self._body += b"cut" if self._chunked else b""
                await self._writer.drain()
        return False

    def _pieces(self) -> Iterator[bytes]:
        """Yield the body in the pieces to send."""
        said = self._said
        events = self._events() if self._stream else iter((self._document(),))
        if not said.sizes:
            yield from events
            return
        whole, at, number = b"".join(events), 0, 0
        while at < len(whole):
            size = said.sizes[number % len(said.sizes)]
            yield whole[at : at + size]
            at, number = at + size, number + 1

    def _events(self) -> Iterator[bytes]:
        said = self._said
        yield self._chunk({"role": "assistant", "content": ""})
        reason = "stop" if said.lie == "a reason each" else None
        for key, value in said.said:
            yield self._chunk({key: [value] if key == "tool_calls" else value}, reason)
        match said.fault:
            case "":
                reason = "function_call" if said.lie == "reason" else said.reason
                yield self._chunk({}, reason)
                if said.lie == "two reasons":
                    yield self._chunk({}, reason)
                if said.counted:
                    yield b"data: %b\n\n" % self._json({**_HEAD, "choices": [], "usage": _USAGE})
                if said.lie != "no [DONE]":
                    yield b"data: [DONE]\n\n"
            case "error event":
                yield b"data: %b\n\n" % self._json(_ERROR)
            case "no JSON":
                yield b'data: {"choices": oops! not JSON\n\n'
            case "half a character":
                yield b'data: {"choices":[{"index":0,"delta":{"content":"\xc3'

    def _document(self) -> bytes:
        """Return the reply as one object; if the reply is broken, the end of the object is missing."""
        said = self._said
        calls = [
            {"id": f"call_up{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for i, (name, arguments) in enumerate(said.native)
        ]
        message = {"role": "assistant", "content": said.field("content"), **({"tool_calls": calls} if calls else {})}
        if thought := said.field("reasoning_content"):
            message["reasoning_content"] = thought
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": said.reason}
        made = self._json({**_HEAD, "object": "chat.completion", "choices": [choice], "usage": _USAGE})
        return made[:-20] if said.fault else made

    def _chunk(self, delta: Any, reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return b"data: %b\n\n" % self._json({**_HEAD, "choices": [choice]})

    def _json(self, value: Any) -> bytes:
        return json.dumps(value, ensure_ascii=self._said.escaped, separators=(",", ":")).encode()

    async def _send(self, data: bytes) -> None:
        if self._pack:
            self._pack.write(data)
            self._pack.flush()
            data = self._packed.taken()
        if not data:
            return
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        self._body += data
        await self._writer.drain()

    async def _end(self) -> None:
        if self._pack:
            self._pack.close()
            self._pack = None
            await self._send(self._packed.taken())
        if self._chunked:
            self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()


class _Sink:
    """Collects a compressor's output."""

    def __init__(self) -> None:
        self._data = b""

    def write(self, data: bytes) -> int:
        self._data += data
        return len(data)

    def flush(self) -> None:
        pass

    def taken(self) -> bytes:
        """Return the output since the last call to this method."""
        data, self._data = self._data, b""
        return data
