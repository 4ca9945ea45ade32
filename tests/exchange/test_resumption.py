"""Replies whose upstream fails in the middle: another attempt continues them, and the client sees an undisturbed reply."""

import json
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import evolve
from support.continuing import COMPLETING, KINDS, TOKEN, Continuing, Fault, engine_of, seen, settings_for, talked
from support.dialects import ALL_CLIENTS, Ask, Got, events, path, sse, write
from support.sweeps import alternating, each

from statemachine import Call
from statemachine import write as write_calls
from streamtool.exchange.record import Record
from streamtool.forcing.continuation import rest_grammar
from streamtool.middleware import ToolMiddleware
from streamtool.testing import Hold, Script, ScriptedUpstream, stream_asgi

both = pytest.mark.anyio

WRITE = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}, "lines": {"type": "integer"}},
}
ASK = Ask((("user", "Write both files."),), (("write_file", "Writes a file.", WRITE), ("ping", "Pings.", {})))
BODY = 'def größe(a: int) -> float:\n\treturn a * 3.14159  # "π", 円周率\n'
CALL = {
    "name": "write_file",
    "arguments": {"path": "/src/main.py", "content": BODY * 2, "lines": 1234567},
}
OTHER = {"name": "write_file", "arguments": {"path": "b.txt", "content": "", "lines": -1}}
REASONING = "<think>The user wants two files, so I write them one after the other.</think>"
TEXT = "I will write both files now, starting with main.py. "
FIRST = f"<tool_call>{json.dumps(CALL, ensure_ascii=False)}</tool_call>"
SECOND = f"<tool_call>{json.dumps(OTHER)}</tool_call>"
WHOLE = f"{REASONING}{TEXT}{FIRST}\n{SECOND}"

PLACES = {
    "in reasoning": 30,
    "in text": WHOLE.index("starting") + 4,
    "in an opener": WHOLE.index("<tool_call>") + 5,
    "in the name": WHOLE.index("write_file") + 5,
    "after a colon": WHOLE.index('"path": ') + 8,
    "in a path": WHOLE.index("/main.py") + 4,
    "in a number": WHOLE.index("1234567") + 3,
    "in an escape": WHOLE.index("\\n") + 1,
    "between calls": WHOLE.index(SECOND) - 1,
    "in the second call": WHOLE.index("b.txt") + 2,
    "at the end": len(WHOLE) - 3,
}
KNOWN: dict[Any, tuple[Any, ...]] = {}
"""The replies of undisturbed upstreams."""
HOWS = ("reset", "fin", "error")


async def talk(upstream: Continuing, client: str = "chat", *, ask: Ask = ASK, **given: Any) -> tuple[Got, Record]:
    """Return the client's view of the reply, which is valid, and the record."""
    return (await talked(upstream, client, ask, **given)).pair


async def undisturbed(client: str, whole: str = WHOLE, kind: str = "completions", **given: Any) -> tuple[Any, ...]:
    key = (client, whole, kind, tuple(sorted(given)))
    if key not in KNOWN:
        got, record = await talk(Continuing(kind, whole), client, **given)
        assert got.error is None
        assert not record.resumed
        KNOWN[key] = seen(got)
    return KNOWN[key]


def cases(count: int, seed: int) -> Iterator[tuple[str, str, str, int, int]]:
    """Yield cases: failure, upstream, client, place, size of the upstream's pieces."""
    chance = random.Random(seed)
    begin = WHOLE.index(FIRST)
    offsets = [*PLACES.values(), *(chance.randrange(begin, len(WHOLE)) for _ in range(40))]
    for number in range(count):
        yield (
            HOWS[number % len(HOWS)],
            KINDS[number // 3 % len(KINDS)],
            ALL_CLIENTS[number // 12 % len(ALL_CLIENTS)],
            offsets[number % len(offsets)],
            chance.choice((1, 4, 16)),
        )


async def check(how: str, kind: str, client: str, at: int, size: int) -> None:
    upstream = Continuing(kind, WHOLE, Fault(at, how), tokens=lambda text: pieces(text, size))
    got, record = await talk(upstream, client)
    assert seen(got) == await undisturbed(client)
    assert len(upstream.requests) == 2
    assert [one.character for one in record.resumed] == [at]


def pieces(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


@both
@each("how,kind,client,at,size", cases(200, 1))
@alternating
async def test_the_client_sees_the_reply_as_if_nothing_had_happened(how, kind, client, at, size):
    await check(how, kind, client, at, size)


@pytest.mark.long
@both
@each("how,kind,client,at,size", [case for seed in range(2, 9) for case in cases(300, seed)])
@alternating
async def test_the_same_at_many_places(how, kind, client, at, size):
    await check(how, kind, client, at, size)


@both
@each("place", PLACES)
@alternating
async def test_the_prompt_ends_between_two_words(place):
    at = PLACES[place]
    for kind in KINDS:
        upstream = Continuing(kind, WHOLE, Fault(at, "reset"))
        await talk(upstream)
        given = upstream.beginnings[1]
        assert WHOLE[:at].startswith(given)
        assert 0 < at - len(given) <= 24
        assert given == given.rstrip()
        assert not (given[-1].isalnum() and WHOLE[len(given)].isalnum())


AT = WHOLE.index("3.14159") + 4
"""A position inside a number in the arguments."""


async def failed(upstream: Continuing, client: str = "chat", **given: Any) -> Record:
    """Check that the reply ends with the error of the first attempt, and return the record."""
    got, record = await talk(upstream, client, **given)
    assert got.error is not None
    assert got.reason is None
    expected, _ = await talk(Continuing(upstream.kind, WHOLE, Fault(AT, "error")), client, **{**given, "resume": 0})
    assert (got.parts, got.error) == (expected.parts, expected.error)
    assert not record.resumed
    return record


@both
async def test_without_the_setting_a_reply_is_not_continued():
    for given in (
        {"resume": 0},
        {"limits": {"attempts": 1}},
        {"models": [{"match": "m", "resume": 0}]},
        {"allow_overrides": True, "headers": ((b"x-streamtool-resume", b"0"),)},
        {"mode": "native"},
    ):
        upstream = Continuing("llama.cpp", WHOLE, Fault(AT, "error"))
        await failed(upstream, **given)
        assert len(upstream.requests) == 1


@both
async def test_an_invalid_header_is_rejected():
    for given in (b"many", b"-1", b"\xb2"):
        upstream = Continuing("completions", WHOLE)
        app = ToolMiddleware(upstream.app, settings=settings_for("completions", allow_overrides=True))
        body, headers = json.dumps(write("chat", ASK)).encode(), ((b"x-streamtool-resume", given),)
        async with stream_asgi(app, path("chat"), body=body, headers=headers) as reply:
            error = json.loads(await reply.body())["error"]
            assert (reply.status, error["param"]) == (400, "resume")
        assert not upstream.requests


@both
async def test_a_server_that_is_not_known_to_continue_is_not_asked():
    upstream = Continuing("unknown", WHOLE, Fault(AT, "error"))
    await failed(upstream)
    assert len(upstream.requests) == 1


@both
async def test_a_request_that_is_constrained_by_the_client_is_not_continued():
    upstream = Continuing("llama.cpp", WHOLE, Fault(AT, "error"))
    await failed(upstream, fields={"grammar": 'root ::= "x"'})
    assert len(upstream.requests) == 1


@both
@each("kind", KINDS)
@alternating
async def test_a_reply_is_continued_as_often_as_the_setting_allows(kind):
    faults = [Fault(at, "reset") for at in (30, AT, AT + 40)]
    upstream = Continuing(kind, WHOLE, *faults)
    got, record = await talk(upstream, resume=3, limits={"attempts": 4})
    assert seen(got) == await undisturbed("chat")
    assert [one.character for one in record.resumed] == [30, AT, AT + 40]
    upstream = Continuing(kind, WHOLE, *faults)
    got, record = await talk(upstream)
    assert got.error is not None
    assert len(upstream.requests) == 3


@both
@each("kind", KINDS)
@alternating
async def test_a_server_may_repeat_the_given_text(kind):
    for at in PLACES.values():
        got, record = await talk(Continuing(kind, WHOLE, Fault(at, "fin"), repeats=True))
        assert seen(got) == await undisturbed("chat")
        assert len(record.resumed) == 1


@both
@each("kind", KINDS)
@alternating
async def test_a_reply_that_contradicts_the_text_is_rejected(kind):
    upstream = Continuing(kind, WHOLE, Fault(AT, "error"), instead=["I am sorry, where was I?"])
    got, record = await talk(upstream)
    assert seen(got) == await undisturbed("chat")
    assert len(record.resumed) == 1
    assert len(upstream.requests) == 3
    assert len(upstream.beginnings[2]) < len(upstream.beginnings[1])
    upstream = Continuing(kind, WHOLE, Fault(AT, "error"), instead=["Sorry.", ""])
    await failed(upstream)
    assert len(upstream.requests) == 3


@both
@each("status", [400, 404, 500, 503, 429])
@alternating
async def test_an_error_response_to_the_continuation(status):
    upstream = Continuing("vLLM", WHOLE, Fault(AT, "error"), statuses=[status])
    if status in (400, 404):
        await failed(upstream)
        assert len(upstream.requests) == 2
    else:
        got, _ = await talk(upstream)
        assert seen(got) == await undisturbed("chat")
        await failed(Continuing("vLLM", WHOLE, Fault(AT, "error"), statuses=[status, status]))


@both
@each("kind", KINDS)
@alternating
async def test_the_servers_own_limit(kind):
    for at in PLACES.values():
        upstream = Continuing(kind, WHOLE, Fault(at, "length"))
        got, record = await talk(upstream, fields=limit(kind, 900))
        assert seen(got) == await undisturbed("chat")
        assert str(record.resumed[0]).startswith(f"upstream's own limit at character {at} inside ")
        again = WHOLE[len(upstream.beginnings[1]) : at]
        size = len(again.encode())
        room = -(-size // 4) if kind == "completions" else size
        assert most(kind, upstream.requests[1].json) == min(900, 900 - 7 + room)


class Limited(Continuing):
    """An upstream that counts its tokens, and ends each reply at the limit of the request."""

    def reply(self, request: Any) -> Any:
        given = self.beginning(request.json)
        rest = "".join(self.tokens(self.whole[len(given) :])[: request.json["max_tokens"]])
        self.faults = self.faults or [Fault(len(given + rest), "length")]
        return super().reply(request)


@both
@each("kind", ["llama.cpp", "vLLM"])
@alternating
async def test_a_reply_that_reaches_the_clients_limit_has_the_same_text(kind):
    """Whole words are written again, and count once."""
    for limit in (12, 30, 70):
        expected, _ = await talk(Limited(kind, WHOLE), fields={"max_tokens": limit}, resume=0)
        assert expected.reason == "length"
        tokens = TOKEN.findall(WHOLE)[:limit]
        for count in (1, 5, limit // 2, limit - 2, limit):
            at = len("".join(tokens[:count]))
            got, record = await talk(Limited(kind, WHOLE, Fault(at, "reset")), fields={"max_tokens": limit})
            assert seen(got) == seen(expected)
            assert len(record.resumed) == 1


class Shifted(Limited):
    """An upstream whose tokens depend on where its reply begins, so that one extends over the end of the known text."""

    def __init__(self, *args: Any, size: int) -> None:
        super().__init__(*args, tokens=lambda text: pieces(text, size))


@both
@each("kind", ["llama.cpp", "vLLM"])
@alternating
async def test_a_token_across_the_end_of_the_known_text_does_not_exceed_the_clients_limit(kind):
    reply = json.dumps({"name": "write_file", "arguments": {"path": "/a.py", "content": "x = 1; y = 22; z = 333"}})
    for size in (2, 3, 5):
        for most in (12, 15):
            expected, _ = await talk(Shifted(kind, reply, size=size), fields={"max_tokens": most}, resume=0)
            for count in range(4, most):
                upstream = Shifted(kind, reply, Fault(count * size, "reset"), size=size)
                got, record = await talk(upstream, fields={"max_tokens": most})
                assert got.reason == expected.reason == "length"
                assert len(record.resumed) == 1
                assert texts(expected).startswith(texts(got))


def texts(got: Got) -> str:
    return "".join(part if isinstance(part, str) else part[1] for part in got.parts)


XML = "".join(
    f'<invoke name="write_file">\n<parameter name="path">{name}</parameter>\n</invoke>\n' for name in ("a < b", "c")
)


@both
async def test_tokens_are_counted_by_the_tokenizer_if_it_is_known(monkeypatch):
    counted = lambda self, model: lambda text: len(TOKEN.findall(text))  # noqa: E731
    monkeypatch.setattr("streamtool.upstream.tokenizers.TokenizerFiles.of", counted)
    size = len(TOKEN.findall(XML))
    for most in (size - 1, size, size + 1):
        expected, _ = await talk(Limited(COMPLETING, XML), fields={"max_tokens": most}, resume=0)
        for count in (9, size // 2, size - 8):
            at = len("".join(TOKEN.findall(XML)[:count]))
            upstream = Limited(COMPLETING, XML, Fault(at, "reset"))
            got, record = await talk(upstream, fields={"max_tokens": most})
            assert seen(got) == seen(expected)
            assert record.resumed[0].character == at


class Withholding(Limited):
    """A server that withholds a token that may be the beginning of a stop sequence: its delta is empty, and the next
    one contains both.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, tokens=re.compile(r"</|<| ?\w{1,4}|[^\w\s<]{1,3}|\s+").findall)

    def deltas(self, tokens: list[str], how: str) -> list[str]:
        out, before = [], ""
        for token in tokens:
            withheld = token == "<"
            out.append("" if withheld else before + token)
            before = token if withheld else ""
        return [*out, before] if before and how != "reset" else out


TAGS = "one</b> two</b> three</b> four</b> five</b> six</b> seven</b> eight</b> nine</b>"
SPECIAL = "".join(f'<|python_start|>[write_file(path="{name}")]<|python_end|>' for name in "abcd")


@both
@each("text,format", [(XML, "auto"), (TAGS, "auto"), (SPECIAL, "pythonic")])
async def test_a_withheld_token_counts_once(text, format):
    """Whether the tokenizer has a token for `<parameter`, `</` or `<|python_start|>`, the reply ends at the limit."""
    for server in (Limited, Withholding):
        tokens = server(COMPLETING, text).tokens(text)
        withheld = [count for count, token in enumerate(tokens, 1) if token == "<" and count < len(tokens) - 4]
        for most in range(len(tokens) - 3, len(tokens) + 1):
            expected, _ = await talk(server(COMPLETING, text), fields={"max_tokens": most}, resume=0, format=format)
            for count in (9, len(tokens) // 2, len(tokens) - 8, *withheld[-2:]):
                upstream = server(COMPLETING, text, Fault(len("".join(tokens[:count])), "reset"))
                got, _ = await talk(upstream, fields={"max_tokens": most}, format=format)
                assert (seen(got), len(upstream.requests)) == (seen(expected), 2)


def limit(kind: str, tokens: int) -> dict[str, int]:
    return {"max_tokens": tokens}


def most(kind: str, body: Any) -> int:
    return body["options"]["num_predict"] if kind == "ollama" else body["max_tokens"]


@both
@each("kind", KINDS)
@alternating
async def test_the_clients_limit_is_not_exceeded(kind):
    for fields in ({"max_tokens": 7}, {"max_tokens": 5}):  # the upstream reports 7 tokens
        upstream = Continuing(kind, WHOLE, Fault(AT, "length"))
        got, record = await talk(upstream, fields=fields)
        assert (got.reason, len(upstream.requests)) == ("length", 1)
        assert not record.resumed


@both
@each("kind", KINDS)
@alternating
async def test_without_a_limit_of_the_client_the_servers_own_limit_is_exceeded_as_often_as_the_setting_allows(kind):
    for at in PLACES.values():
        got, record = await talk(Continuing(kind, WHOLE, Fault(at, "length")))
        assert seen(got) == await undisturbed("chat")
        assert [one.character for one in record.resumed] == [at]
    for most in (0, 2, 5):
        upstream = Continuing(kind, WHOLE, *(Fault(AT + 9 * n, "length") for n in range(9)))
        got, record = await talk(upstream, resume=most, limits={"attempts": 6})
        assert (got.reason, len(upstream.requests), len(record.resumed)) == ("length", 1 + most, most)


@both
@each("kind", KINDS)
@alternating
async def test_a_reply_that_fills_the_window_is_not_continued(kind):
    for room, requests in ((16, 2), (4000, 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("streamtool.exchange.resumption._ROOM", room)
            upstream = Continuing(kind, WHOLE, Fault(AT, "length"))
            got, _ = await talk(upstream, models=[{"match": "m", "context": 4000}], fields={"max_tokens": 900})
        assert (got.reason, len(upstream.requests)) == ("calls" if requests == 2 else "length", requests)


@both
@each("kind", KINDS)
@alternating
async def test_a_limit_within_the_word_at_the_seam_ends_the_reply(kind):
    """The continuation has no room for new text, and does not contradict the text."""
    expected, _ = await talk(Continuing(kind, WHOLE, Fault(AT, "length")), fields={"max_tokens": 7})
    seam = AT - 5
    for limit in (seam, seam + 1, AT):
        upstream = Continuing(kind, WHOLE, Fault(AT, "reset"), Fault(limit, "length"))
        got, record = await talk(upstream, fields={"max_tokens": 7})
        assert len(upstream.requests) == 2
        assert record.error is None
        assert seen(got) == seen(expected)


@both
async def test_a_limit_that_cannot_be_exceeded_ends_the_reply_as_before():
    expected, before = await talk(Continuing("vLLM", WHOLE, Fault(AT, "length")), fields={"max_tokens": 7})
    for given in ({"statuses": [400]}, {"instead": ["No.", "No."]}):
        upstream = Continuing("vLLM", WHOLE, Fault(AT, "length"), **given)
        got, record = await talk(upstream, fields={"max_tokens": 900})
        assert seen(got) == seen(expected)
        assert got.usage == expected.usage
        assert record.error is None
        assert (record.usage.retried is None) == ("statuses" in given)
        assert before.usage == evolve(record.usage, retried=None)


@both
@each("client", ALL_CLIENTS)
@alternating
async def test_a_whole_reply_is_continued_too(client):
    for at in PLACES.values():
        got, record = await talk(Continuing("vLLM", WHOLE, Fault(at, "error")), client, stream=False)
        assert seen(got) == await undisturbed(client, stream=False)
        assert len(record.resumed) == 1


FORCED = Ask(ASK.turns, ASK.tools, choice="write_file")


@both
@each("kind,forcing", [(k, f) for k in ("completions", "vLLM") for f in ("prompt", "prefill", "schema", "guided")])
@alternating
async def test_a_forced_call_is_continued_without_a_constraint_that_the_server_cannot_continue(kind, forcing):
    begin = '<tool_call>\n{"name": "write_file", "arguments":' if forcing == "prefill" else ""
    whole = {"prompt": FIRST, "prefill": FIRST.partition('"arguments":')[2]}.get(forcing, FIRST[11:-12])
    how = {"table": {"forcing": forcing}, "format": "tool_call", "ask": FORCED}
    expected, _ = await talk(Forced(kind, whole, begin=begin), **how)
    assert expected.reason == "calls"
    for at in (3, len(whole) // 2, len(whole) - 20):
        upstream = Forced(kind, whole, Fault(at, "reset"), begin=begin)
        got, record = await talk(upstream, **how)
        assert seen(got) == seen(expected)
        assert len(record.resumed) == 1
        if upstream.beginnings[1]:
            assert {"response_format", "structured_outputs"}.isdisjoint(upstream.requests[1].json)


@both
@each("forcing,format", [("grammar", "tool_call"), ("grammar", "invoke"), ("schema", "tool_call")])
@alternating
async def test_a_constraint_applies_to_the_rest_of_the_call(forcing, format):
    whole = write_calls([Call("write_file", json.dumps(OTHER["arguments"]))], format)
    if forcing == "schema":
        whole = json.dumps(OTHER)
    how = {"table": {"forcing": forcing}, "format": format, "ask": FORCED}
    for at in (3, len(whole) // 2, len(whole) - 4):
        upstream = Continuing("llama.cpp", whole, Fault(at, "reset"))
        got, _ = await talk(upstream, **how)
        assert (got.error, got.reason) == (None, "calls")
        sent, given = upstream.requests[1].json, upstream.beginnings[1]
        if not given:
            assert {"response_format", "grammar"} & sent.keys()
        else:
            assert "response_format" not in sent
            assert rest_grammar(sent["grammar"], whole[len(given) :]) is not None
            assert rest_grammar(sent["grammar"], "I am sorry") is None


@both
async def test_the_known_text_is_demanded_after_another_reply():
    upstream = Continuing("llama.cpp", WHOLE, Fault(AT, "error"), instead=["I am sorry, where was I?"])
    got, _ = await talk(upstream)
    assert seen(got) == await undisturbed("chat")
    first, second = (request.json for request in upstream.requests[1:])
    assert "grammar" not in first
    assert rest_grammar(second["grammar"], WHOLE[len(upstream.beginnings[2]) :]) is not None
    assert rest_grammar(second["grammar"], "I am sorry") is None


class Forced(Continuing):
    """An upstream whose prompt may end with the beginning of the reply from the start."""

    def __init__(self, *args: Any, begin: str) -> None:
        super().__init__(*args)
        self.begin = begin

    def beginning(self, body: Any) -> str:
        given = super().beginning(body)
        assert given.startswith(self.begin)
        return given.removeprefix(self.begin)


@both
async def test_the_record_the_log_and_the_usage(caplog):
    caplog.set_level("INFO", "streamtool.exchange")
    upstream = Continuing("completions", WHOLE, Fault(AT, "reset"))
    got, record = await talk(upstream)
    words = f"upstream died at character {AT} inside write_file"
    assert str(record.resumed[0]) == words
    (line,) = [line for line in caplog.records if line.name == "streamtool.exchange"]
    assert f"resumed: 1, {words}" in line.getMessage()
    (noted,) = line.streamtool["resumed"]
    assert (noted["cause"], noted["character"], noted["place"]) == ("upstream died", AT, "write_file")
    assert got.usage == (record.usage.input, record.usage.output) == (11, 7)
    assert record.usage.retried is not None
    assert record.usage.retried.output >= AT // 4
    assert not record.attempts


UNKNOWN = '<tool_call>{"name": "other", "arguments": {}}</tool_call>'


@both
@each("kind", KINDS)
@alternating
async def test_an_attempt_that_continues_a_rejected_one_is_continued(kind):
    """The prompt of the third attempt is that of the second, with the correction, and then the text of the second."""
    first, second = f"I will look. {UNKNOWN}", f"Then I write. {SECOND}"
    replies = InTurn(kind, [(first, None), (second, Fault(8, "reset")), (second, None)])
    got, record = await talk(replies, unknown_tools="retry")
    assert (got.error, got.reason) == (None, "calls")
    assert got.parts[0].startswith("I will look. Then I write.")
    assert len(got.ids) == 1
    assert record.attempts == ("unknown tool",)
    assert 8 < record.resumed[0].character <= len(first) + 8
    assert replies.beginnings[2] == "Then I"
    assert "other" in json.dumps(replies.requests[2].json)


@both
@each("kind", KINDS)
@alternating
async def test_a_continued_reply_may_be_rejected(kind):
    first = f"I will look at both of them. {UNKNOWN}"
    replies = InTurn(kind, [(first, Fault(12, "reset")), (first, None), (f"Then I write. {SECOND}", None)])
    got, record = await talk(replies, unknown_tools="retry")
    assert (got.error, got.reason) == (None, "calls")
    assert got.parts[0].startswith("I will look at both of them. Then I write.")
    assert (record.attempts, len(record.resumed)) == (("unknown tool",), 1)


class InTurn(Continuing):
    """An upstream whose requests get these replies, in this order."""

    def __init__(self, kind: str, replies: list[tuple[str, Fault | None]]) -> None:
        super().__init__(kind, "", *(fault for _, fault in replies))
        self.replies = [whole for whole, _ in replies]

    def reply(self, request: Any) -> Any:
        self.whole = self.replies.pop(0)
        return super().reply(request)


@both
async def test_reasoning_and_calls_that_the_upstream_separates_are_not_continued():
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1700000000, "model": "up"}
    call = {"index": 0, "id": "call_1", "function": {"name": "write_file", "arguments": '{"path": "'}}
    for delta in ({"reasoning_content": "Hm."}, {"tool_calls": [call]}):
        upstream = Continuing("vLLM", WHOLE)
        deltas = ({"content": "I write"}, delta, {"content": " now"})[: 2 if "tool_calls" in delta else 3]
        steps = [sse({**head, "choices": [{"index": 0, "delta": one, "finish_reason": None}]}) for one in deltas]
        upstream.app = ScriptedUpstream(Script(tuple(steps)))
        got, _ = await talk(upstream)
        assert got.error is not None
        assert len(upstream.requests) == 1


@both
async def test_several_choices_are_not_continued():
    upstream = Continuing("completions", WHOLE, Fault(AT, "error"))
    got, _ = await talk(upstream, ask=evolve(ASK, n=2))
    assert got.error is not None
    assert len(upstream.requests) == 1


@both
async def test_a_reply_that_the_client_has_begun_is_not_continued():
    asked = evolve(ASK, turns=(*ASK.turns, ("assistant", "I will")))
    upstream = Continuing("llama.cpp", WHOLE, Fault(AT, "error"))
    upstream.beginning = lambda body: ""  # type: ignore[method-assign]
    got, _ = await talk(upstream, ask=asked)
    assert got.error is not None
    assert len(upstream.requests) == 1


@both
@each("kind", KINDS)
@alternating
async def test_text_that_follows_the_seam_is_not_buffered(kind):
    """Each piece of the second attempt reaches the client before the upstream sends the next one."""
    at = WHOLE.index("円")
    upstream = Continuing(kind, WHOLE, Fault(at, "reset"))
    app = ToolMiddleware(upstream.app, settings=settings_for(kind))
    if (found := engine_of(kind)) is not None:
        app.templates.engines.note("u", found)
    stepwise = upstream.reply

    def held(request: Any) -> Any:
        script = stepwise(request)
        if len(upstream.beginnings) == 1:
            return script
        seam = len(upstream.beginnings[1])
        tokens, size = list(upstream.tokens(WHOLE[seam:])), 0
        for count, token in enumerate(tokens):
            size += len(token)
            if seam + size > at + 8:
                return evolve(script, steps=(*script.steps[: count + 2], Hold(), *script.steps[count + 2 :]))
        raise AssertionError

    upstream.app._scripts = (held,)
    received = b""
    async with stream_asgi(app, path("chat"), body=json.dumps(write("chat", ASK)).encode()) as reply:
        async for piece in reply:
            received += piece
            if "円周率" in arguments_in(received):
                upstream.app.release()
    assert len(upstream.requests) == 2
    assert arguments_in(received).count("円周率") == 2


def arguments_in(data: bytes) -> str:
    deltas = [event["choices"][0]["delta"] for event in events(data) if event.get("choices")]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    return "".join(call["function"].get("arguments", "") for call in calls if call["index"] == 0)
