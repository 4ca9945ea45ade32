"""Upstreams that send values of wrong types: a reader ignores them or reports an invalid reply; it never raises.

A reply with reasoning, text, a call and usage is written in each protocol. In each of its JSON documents, each value in
turn is replaced by values of other types. The events that the reader returns must be writable in all client protocols.
"""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from streamtool.core.conversation import Conversation
from streamtool.core.reply import (
    Reason,
    ReplyArgumentsDelta,
    ReplyCallEnd,
    ReplyCallStart,
    ReplyEnd,
    ReplyEvent,
    ReplyFailure,
    ReplyFinish,
    ReplyReasoningDelta,
    ReplyStart,
    ReplyTextDelta,
    Usage,
    UsageReport,
)
from streamtool.protocols.registry import CLIENTS, UPSTREAMS

PROTOCOLS = ("chat", "messages", "responses", "ollama", "gemini")
REPLY: list[ReplyEvent] = [
    ReplyStart("id-of-reply", 1_700_000_000, "up"),
    ReplyReasoningDelta(0, "Let me think."),
    ReplyTextDelta(0, "Hello "),
    ReplyTextDelta(0, "there."),
    ReplyCallStart(0, 0, "call_1", "ping"),
    ReplyArgumentsDelta(0, 0, '{"a": '),
    ReplyArgumentsDelta(0, 0, "1}"),
    ReplyCallEnd(0, 0, True),
    ReplyFinish(0, Reason.STOP),
    UsageReport(Usage(input=5, output=7)),
    ReplyEnd(),
]
NAN, HUGE = "\0nan", "\0huge"
ODD: tuple[Any, ...] = (None, True, [], ["x"], {}, {"a": []}, "", "x", -1, 1.5, 10**30, 10**400, NAN, HUGE, [[]])
"""Values to put in place of another one. Python's encoder cannot write the two that begin with NUL."""
_DOCUMENT = re.compile(rb"(?:(?<=data: )|^)\{.*\}(?=\r?$)", re.MULTILINE)


def conversation(protocol: str) -> Conversation:
    return Conversation(protocol, "m", (), stream=True)


def written(protocol: str) -> bytes:
    """Return the reply as a stream of this protocol."""
    writer = CLIENTS[protocol].ReplyWriter(conversation(protocol), id="r", created=1, model="m")
    return writer.feed(REPLY)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in a document."""
    if path:
        yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(item, (*path, key))


def replaced(document: Any, path: tuple[Any, ...], odd: Any) -> bytes:
    """Return the JSON of the document with another value at this path."""
    changed = deepcopy(document)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = odd
    text = json.dumps(changed)
    return text.replace(json.dumps(NAN), "NaN").replace(json.dumps(HUGE), "1e999").encode()


def streams(protocol: str) -> Iterator[tuple[str, bytes]]:
    """Yield the streams with one value replaced, and a description of the change."""
    stream = written(protocol)
    for found in _DOCUMENT.finditer(stream):
        document = json.loads(found[0])
        for path in places(document):
            for odd in ODD:
                changed = replaced(document, path, odd)
                yield f"{path} = {odd!r:.20}", stream[: found.start()] + changed + stream[found.end() :]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_values_of_wrong_types_never_raise(protocol: str):
    clients = {name: CLIENTS[name] for name in PROTOCOLS}
    for place, (change, stream) in enumerate(streams(protocol)):
        reader = UPSTREAMS[protocol].ReplyReader(n=1)
        events = [*reader.feed(stream), *reader.close()]
        assert reader.ended, change
        assert type(events[-1]) in (ReplyEnd, ReplyFailure, UsageReport), change
        for event in events:
            if type(event) is ReplyStart and event.created is not None:
                assert type(event.created) is int, change
        name = PROTOCOLS[place % len(PROTOCOLS)]
        assert clients[name].ReplyWriter(conversation(name), id="r", created=1, model="m").feed(events), change


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"type":"response.created"', '"type":["response.created"]'),
        ('"status":"completed"', '"status":["completed"]'),
        ('"created_at":1', '"created_at":NaN'),
        ('"created_at":1', '"created_at":1e999'),
    ],
)
def test_an_invalid_responses_reply_is_reported(old: str, new: str):
    stream = written("responses").replace(b"1700000000", b"1")
    assert old.encode() in stream
    reader = UPSTREAMS["responses"].ReplyReader(n=1)
    [*_, last] = [*reader.feed(stream.replace(old.encode(), new.encode())), *reader.close()]
    assert isinstance(last, ReplyFailure)
    assert last.error.status == 502


@pytest.mark.parametrize("odd", [1.0, True, "1", None, 1.5, [1]])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_creation_time_that_is_not_an_integer_never_reaches_the_client(odd: Any, place: int):
    """1.0 and True equal 1, so a chunk with one of them looks like the chunks around it."""

    def chunk(created: Any, text: str) -> bytes:
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        head = {"id": "x", "object": "chat.completion.chunk", "created": created, "model": "m"}
        return f"data: {json.dumps({**head, 'choices': [choice]})}\n\n".encode()

    reader = UPSTREAMS["chat"].ReplyReader(n=1)
    writer = CLIENTS["chat"].ReplyWriter(conversation("chat"), id="r", created=7, model="m", forwards=True)
    out = b"".join(writer.feed(reader.feed(chunk(odd if n == place else 1, f"word{n} "))) for n in range(4))
    sent = [json.loads(found[0]) for found in _DOCUMENT.finditer(out)]
    assert all(type(each["created"]) is int for each in sent)
    assert b"word3" in out
