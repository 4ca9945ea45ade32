"""The embedded upstream: a small deterministic stand-in for a model that only writes text.

It is honest: all it knows is the text of its prompt. It finds the contract there, reads the tools out of it in
whatever style they are listed, learns the form of a call and the frame of a result from the contract's own example,
and then plays a plain turn: a sentence and a call first, a final answer that quotes the results when they have come,
an echo when there are no tools. The sentences of the tail (no call, a certain tool, at most one) are obeyed.

`reply` is the model, a pure function. `Sample` serves it as an ASGI app that speaks Chat Completions, streamed in
small pieces or whole, so that everything else can run without network: the demo, the docs, the tests.
"""

import itertools
import json
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import lru_cache
from typing import Any

import anyio
from attrs import field, frozen

from statemachine import FORMATS, Call, parse, write
from streamtool import schema
from streamtool.prompting import tool_prompt as words

Json = Any
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_TAIL = re.compile(r"For this reply: .*", re.DOTALL)
_BODY = 32 * 1024 * 1024


# --- what the prompt says --------------------------------------------------------------------------------------------


@frozen
class SampleParameter:
    """A parameter as the contract lists it."""

    name: str
    type: Json
    """("literal", value) · ("array", type) · ("object", parameters) · ("word", name)"""
    required: bool = True
    default: Json = None


@frozen
class OfferedTool:
    """A tool as the contract lists it."""

    name: str
    parameters: tuple[SampleParameter, ...] = ()


@frozen
class Lesson:
    """All that the contract taught."""

    offers: tuple[OfferedTool, ...]
    format: str
    result: "re.Pattern[str]"
    """Matches a framed result; group 1 is its content."""
    answer: str
    """The example of a final answer."""

    def final(self, text: str) -> str:
        """The final answer in the form of the example."""
        if self.answer == words.EXAMPLE_ANSWER:
            return text
        return self.answer.replace(json.dumps(words.EXAMPLE_ANSWER), json.dumps(text, ensure_ascii=False))

    @property
    def plain(self) -> bool:
        """True if text may stand beside calls."""
        return self.answer == words.EXAMPLE_ANSWER


class _Signature:
    """Reads types and parameters as the contract writes them: `a: string, b?: integer = 3, c: "x"|"y"`."""

    __slots__ = ("at", "text")

    def __init__(self, text: str, at: int = 0) -> None:
        self.text = text
        self.at = at

    def skip(self, word: str) -> bool:
        found = self.text.startswith(word, self.at)
        self.at += len(word) if found else 0
        return found

    def value(self) -> Json:
        found, self.at = json.JSONDecoder().raw_decode(self.text, self.at)
        return found

    def word(self) -> str:
        if self.text.startswith('"', self.at):
            return str(self.value())
        found = re.compile(r"[\w$.-]+|\[key\]").match(self.text, self.at)
        if found is None:
            raise ValueError(self.text[self.at :])
        self.at = found.end()
        return found[0]

    def parameters(self, closer: str) -> tuple[SampleParameter, ...]:
        read = []
        while not self.skip(closer):
            name, optional = self.word(), self.skip("?")
            if not self.skip(": "):
                raise ValueError(self.text[self.at :])
            kind = self.type()
            default = self.value() if self.skip(" = ") else None
            if name != "[key]":
                read.append(SampleParameter(name, kind, not optional, default))
            self.skip(", ")
        return tuple(read)

    def type(self) -> Json:
        """The first alternative that is not null."""
        kinds = [self.single()]
        while self.skip("|"):
            kinds.append(self.single())
        return next((kind for kind in kinds if kind not in (("literal", None), ("word", "null"))), kinds[0])

    def single(self) -> Json:
        kind: Json
        if self.skip("("):
            kind = self.type()
            self.skip(")")
        elif self.skip("{"):
            kind = ("object", self.parameters("}"))
        else:
            try:
                kind = ("literal", self.value())
            except ValueError:
                kind = ("word", self.word())
        while self.skip("[]"):
            kind = ("array", kind)
        return kind


def read_offers(listed: str) -> tuple[OfferedTool, ...]:
    """The tools out of the contract's list, in whatever style it is."""
    lines = listed.split("\n")
    if any(line.startswith("**") for line in lines):
        return tuple(_markdown_offers(lines))
    offers = []
    for line in lines:
        if line.startswith('{"name"'):
            entry = json.loads(line)
            line = schema.signature(entry["name"], entry["parameters"])  # noqa: PLW2901 - one way of reading
        if not line or line.startswith(" "):
            continue
        head = re.match(r"(\S+?)\(|(\S+?)(?:: .*)?\Z", line)
        if head and head[1]:
            reader = _Signature(line, head.end())
            offers.append(OfferedTool(head[1], reader.parameters(")")))
        elif head:
            offers.append(OfferedTool(head[2]))
    return tuple(offers)


def _markdown_offers(lines: Sequence[str]) -> Iterator[OfferedTool]:
    name, listing = "", False
    parameters: list[SampleParameter] = []
    for line in lines:
        if line.startswith("**") and line.endswith("**"):
            if name:
                yield OfferedTool(name, tuple(parameters))
            name, listing, parameters = line[2:-2], False, []
        elif not line.startswith("  "):
            listing = line == "Parameters:"
        elif listing and (parameter := _markdown_parameter(line)):
            parameters.append(parameter)
    yield OfferedTool(name, tuple(parameters))


def _markdown_parameter(line: str) -> SampleParameter | None:
    reader = _Signature(line, 4)
    try:
        name = reader.word()
        kind = reader.type() if reader.skip(" (") else None
    except ValueError:
        return None
    if kind is None or not reader.skip(") ("):
        return None
    return SampleParameter(name, kind, reader.skip("required"))


def _between(text: str, opener: str, closer: str) -> str:
    return text.partition(opener)[2].partition(closer)[0].strip("\n")


@lru_cache(maxsize=16)
def learn(prompt: str) -> Lesson | None:
    """What the contract in this prompt teaches; None when there is none, or none that can be read."""
    if words.LIST_HEADING not in prompt or words.EXAMPLE_HEADING not in prompt:
        return None
    before, _, example = prompt.partition(words.END)[0].rpartition(f"\n{words.EXAMPLE_HEADING}\n")
    listed = before.rpartition(f"\n{words.LIST_HEADING}\n")[2]
    try:
        offers = read_offers(listed)
    except (ValueError, KeyError, RecursionError):  # somebody else's headings
        return None
    first = _between(example, words.YOU_WRITE, words.NEXT_MESSAGE)
    answer = _between(example, words.ANSWER, words.SEVERAL)
    frame = _between(example, words.NEXT_MESSAGE, "\n\nYou need one thing more.")
    return Lesson(offers, _format_of(first, [offer.name for offer in offers]), _frame_of(frame, offers), answer)


def _format_of(example: str, names: Sequence[str]) -> str:
    """The format whose own writing of the example's call is the example."""
    together = [name for name, form in FORMATS.items() if not form.by_tool]  # their tables are made once for all tools
    for formats in (together, *([name] for name in FORMATS)):
        _, calls = parse(example, names, formats=formats)
        for name in formats if len(calls) == 1 else ():
            if write(calls, name) == example:
                return name
    return "tool_call"


def _frame_of(example: str, offers: Sequence[OfferedTool]) -> "re.Pattern[str]":
    pattern = re.escape(example)
    for offer in offers:
        content = re.escape(words.example_result(offer.name))
        if content in pattern:
            before, after = pattern.split(content, 1)
            before = before.replace(re.escape(offer.name), r"[^\n]*?").replace(words.EXAMPLE_ID, r"[^\n]*?")
            return re.compile(before + "(.*?)" + (after or r"(?=\n\n|\Z)"), re.DOTALL)
    return re.compile(r"(.*)", re.DOTALL)


# --- what it answers -------------------------------------------------------------------------------------------------


def reply(messages: Sequence[Mapping[str, Json]]) -> str:
    """The model: prompt messages (`role`, `content`) in, its whole reply out. Never raises on what a client may say."""
    turns = [(str(message.get("role")), _content(message.get("content"))) for message in messages]
    taught = next((text for _, text in turns if words.LIST_HEADING in text and words.EXAMPLE_HEADING in text), "")
    lesson = learn(taught)
    last = turns[-1][1].rpartition(words.END)[2].strip() if turns else ""
    tail = _TAIL.search(last)
    said = last[: tail.start()].strip() if tail else last
    rule = tail[0] if tail else ""
    if lesson is None:
        return f"You said: {said}"
    if "write no call" in rule:
        return lesson.final(f"Without tools I can only say: {said}")
    called = any(role == "assistant" for role, _ in turns)
    results = [found.strip("\n") for found in lesson.result.findall(said)] if called else []
    if results and not re.search(r"write (at least |exactly )?one call", rule):
        return lesson.final(f"Here is what I found: {' | '.join(results)}")
    calls = [Call(offer.name, _arguments(offer, said)) for offer in _chosen(lesson, said, rule)]
    if not calls:
        return lesson.final(f"You said: {said}")
    text = write(calls, lesson.format)
    return f"Let me look that up.\n{text}" if lesson.plain else text


def _content(content: Json) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return str(content or "")


def _chosen(lesson: Lesson, said: str, rule: str) -> Sequence[OfferedTool]:
    """The tools that are called now: those that the user names, else the first; two for "both" and "and"."""
    allowed = set(re.findall(r"`([^`]*)`", rule))
    offers = [offer for offer in lesson.offers if not allowed or offer.name in allowed]
    lowered = said.lower()
    named = sorted((o for o in offers if o.name.lower() in lowered), key=lambda o: lowered.index(o.name.lower()))
    count = 2 if len(named) > 1 or re.search(r"\b(both|and)\b", lowered) else 1
    if not lesson.plain or re.search(r"at most one|exactly one", rule):
        count = 1
    return [*named, *(offer for offer in offers if offer not in named)][:count]


def _arguments(offer: OfferedTool, said: str) -> str:
    """The arguments of a call as JSON: what the signature asks for, filled from the user's own words."""
    return json.dumps(_filled(offer.parameters, _SampleWords(said)), ensure_ascii=False)


class _SampleWords:
    """The user's words, the telling ones first; each is given out in turn."""

    __slots__ = ("_numbers", "_texts")

    def __init__(self, said: str) -> None:
        quoted: list[str] = re.findall(r"[\"“'‘]([^\"”'’\n]{1,80})[\"”'’]", said)
        found: list[str] = re.findall(r"[^\W\d_]{2,}", said)
        proper = [word for word in found[1:] if word[0].isupper()]
        self._texts = itertools.cycle([*quoted, *proper] or found[-1:] or ["sample"])
        self._numbers = itertools.cycle([int(number) for number in re.findall(r"\b\d{1,9}\b", said)] or [1])

    def text(self) -> str:
        return next(self._texts)

    def number(self) -> int:
        return next(self._numbers)


def _filled(parameters: Sequence[SampleParameter], said: _SampleWords) -> dict[str, Json]:
    chosen = [parameter for parameter in parameters if parameter.required] or parameters[:1]
    return {p.name: _value(p.type, said) if p.default is None else p.default for p in chosen}


def _value(kind: Json, said: _SampleWords) -> Json:
    match kind:
        case ("literal", value):
            return value
        case ("array", item):
            return [_value(item, said)]
        case ("object", parameters):
            return _filled(parameters, said)
        case ("word", "integer" | "number"):
            return said.number()
        case ("word", "boolean"):
            return True
        case ("word", "object"):
            return {}
        case ("word", "null"):
            return None
        case _:
            return said.text()


# --- how it is served ------------------------------------------------------------------------------------------------


@frozen
class Sample:
    """An ASGI app that serves the model: `POST /v1/chat/completions` and `GET /v1/models`."""

    delta: int = 4
    """Characters of one piece of the stream."""
    delay: float = 0.0
    """Seconds before each piece."""
    model: str = "sample"
    _count: "itertools.count[int]" = field(factory=lambda: itertools.count(1), init=False, repr=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
        if path == "/v1/models":
            listed = {"object": "list", "data": [{"id": self.model, "object": "model", "created": 0, "owned_by": "me"}]}
            await _json(send, 200, listed)
            return
        if path != "/v1/chat/completions":
            await _json(send, 404, _error(f"nothing is served at {path}", "not_found_error"))
            return
        if scope["method"] != "POST":
            await _json(send, 405, _error("use POST", "invalid_request_error"))
            return
        try:
            request = json.loads(await _body(receive))
            messages = request["messages"]
            told = [message for message in messages if isinstance(message, Mapping)]
        except (ValueError, KeyError, TypeError, RecursionError):
            await _json(send, 400, _error("the body is no chat request", "invalid_request_error"))
            return
        await self._answer(request, told, receive, send)

    async def _answer(self, request: Json, told: Sequence[Json], receive: Receive, send: Send) -> None:
        text, reason = _cut(reply(told), request)
        head = {
            "id": f"chatcmpl-sample{next(self._count)}",
            "created": int(time.time()),
            "model": str(request.get("model") or self.model),
        }
        usage = _usage(told, text)
        choices = max(1, min(int(request.get("n") or 1), 16))
        if not request.get("stream"):
            message = {"role": "assistant", "content": text, "refusal": None}
            entries = [
                {"index": i, "message": message, "logprobs": None, "finish_reason": reason} for i in range(choices)
            ]
            whole = {**head, "object": "chat.completion", "choices": entries, "usage": usage}
            await anyio.sleep(self.delay)
            await _json(send, 200, whole)
            return
        wanted = bool((request.get("stream_options") or {}).get("include_usage"))
        chunks = self._chunks(
            {**head, "object": "chat.completion.chunk"}, text, reason, choices, usage if wanted else None
        )
        async with anyio.create_task_group() as group:
            group.start_soon(_watch, receive, group.cancel_scope)
            await self._stream(chunks, send)
            group.cancel_scope.cancel()

    def _chunks(self, head: Json, text: str, reason: str, choices: int, usage: Json) -> Iterator[Json]:
        for index in range(choices):
            yield _chunk(head, index, {"role": "assistant", "content": ""})
            for at in range(0, len(text), self.delta):
                yield _chunk(head, index, {"content": text[at : at + self.delta]})
            yield _chunk(head, index, {}, reason)
        if usage is not None:
            yield {**head, "choices": [], "usage": usage}

    async def _stream(self, chunks: Iterator[Json], send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for chunk in chunks:
            await anyio.sleep(self.delay)
            data = json.dumps(chunk, ensure_ascii=False, separators=(",", ":"))
            body = b"data: %b\n\n" % data.encode("utf-8", "replace")
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


app = Sample()


def _chunk(head: Json, index: int, delta: Json, reason: str | None = None) -> Json:
    return {**head, "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}]}


def _cut(text: str, request: Json) -> tuple[str, str]:
    """The reply under the request's limits, and why it ends."""
    stop = request.get("stop") or ()
    for word in [stop] if isinstance(stop, str) else stop:
        text = text.partition(word)[0] if isinstance(word, str) and word else text
    limit = request.get("max_completion_tokens") or request.get("max_tokens")
    if isinstance(limit, int) and _tokens(text) > limit > 0:
        return text[: limit * words.BYTES_PER_TOKEN], "length"
    return text, "stop"


def _tokens(text: str) -> int:
    return -(-len(text) // words.BYTES_PER_TOKEN)


def _usage(told: Sequence[Json], text: str) -> Json:
    prompt = sum(_tokens(_content(message.get("content"))) for message in told)
    return {"prompt_tokens": prompt, "completion_tokens": _tokens(text), "total_tokens": prompt + _tokens(text)}


def _error(message: str, kind: str) -> Json:
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


async def _json(send: Send, status: int, value: Json) -> None:
    body = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _body(receive: Receive) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > _BODY:
            raise ValueError("the body is too large")
        if not message.get("more_body"):
            return b"".join(parts)


async def _watch(receive: Receive, scope: anyio.CancelScope) -> None:
    """Stop the stream when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        word = (await receive())["type"].removeprefix("lifespan.")
        await send({"type": f"lifespan.{word}.complete"})
        if word == "shutdown":
            return
