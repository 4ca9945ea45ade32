"""Calls that turn out to be unreadable in the middle: another attempt continues them from the last good character."""

import json
import random
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest
from attrs import evolve, frozen
from support.continuing import COMPLETING, KINDS, Continuing, Fault, seen, talked
from support.dialects import ALL_CLIENTS, Ask, Got
from support.sweeps import alternating, each

from streamtool.exchange.exchange import Exchange
from streamtool.exchange.record import Record
from streamtool.exchange.resumption import split_at_seam
from streamtool.forcing.continuation import rest_grammar
from streamtool.protocols.registry import client_protocol
from streamtool.settings import Settings
from streamtool.testing import Script

both = pytest.mark.anyio

WRITE = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "content": {"type": "string"},
        "lines": {"type": "integer"},
        "mode": {"type": "object", "properties": {"owner": {"type": "integer"}, "group": {"type": "integer"}}},
    },
}
ASK = Ask((("user", "Write the file."),), (("write_file", "Writes a file.", WRITE), ("ping", "Pings.", {})))


@frozen
class Broken:
    """A call with a break: the model first writes `good` and then `bad`, and `rest` when it continues."""

    good: str
    bad: str
    rest: str

    @property
    def whole(self) -> str:
        return self.good + self.rest


def broken(begin: str, end: str, cases: dict[str, tuple[str, str, str]]) -> dict[str, Broken]:
    return {kind: Broken(begin + good, bad, rest + end) for kind, (good, bad, rest) in cases.items()}


OTHER = '<tool_call>{"name": "ping", "arguments": {}}</tool_call>'
INVOKE = '<invoke name="write_file">\n<parameter name="path">b</parameter>\n</invoke>'
JSON = broken(
    'I write it. <tool_call>{"name": "write_file", "arguments": ',
    "}</tool_call>",
    {
        "broken JSON": ('{"path": "/a b.py", "content": "x y"', ": 5, 6}}</tool_call>", ', "lines": 3}'),
        "no key": ('{"path": "/a b.py", ', '5, "content": "x"}}</tool_call>', '"lines": 3}'),
        "a key without a value": ('{"path": "/a b.py", "content": ', "}}</tool_call>", '"x\\ny", "lines": 3}'),
        "no value and a comma": ('{"path": "/a b.py", "content": ', ', "lines": 3}}</tool_call>', '"x", "lines": 3}'),
        "another format": ('{"path": "/a b.py", "content": ', INVOKE, '"x", "lines": 3}'),
        "another format in place of a key": ('{"path": "/a b.py", ', INVOKE, '"lines": 3}'),
        "a missing quote": ('{"path": ', '/a b.py", "lines": 3}}</tool_call>', '"/a b.py", "lines": 3}'),
        "a missing last quote": ('{"path": "/a b.py", "content": "x y}}', "", '", "lines": 3}'),
        "a wrong closer": ('{"path": "/a b.py", "mode": {"owner": 1', "]}}</tool_call>", ', "group": 2}}'),
        "text in place of a value": ('{"path": ', 'the file, "content": "x"}}</tool_call>', '"/a b.py", "lines": 3}'),
        "text in place of a number": ('{"path": "/a", "lines": ', "about three}}</tool_call>", '3, "mode": {}}'),
        "an unterminated string": ('{"path": "/a b.py", "content": "x \\"y\\" größe', "", '", "lines": 3}'),
        "an unterminated name": ('{"path": "/a b.py", "con', "", 'tent": "x"}'),
    },
)
PARAMETERS = broken(
    'I write it.\n<function_calls>\n<invoke name="write_file">\n<parameter name="path">/a b.py</parameter>\n',
    "</parameter>\n</invoke>\n</function_calls>",
    {
        "broken JSON": ('<parameter name="mode">{"owner": 5', ": 6}</parameter>\n</invoke>", ', "group": 6}'),
        "a key without a value": ('<parameter name="mode">{"owner": ', "}</parameter>\n</invoke>", "5}"),
        "another format": ('<parameter name="mode">{"owner": ', OTHER, "5}"),
        "a missing quote": ('<parameter name="mode">{"owner": 5, group', '": 6}</parameter>\n</invoke>', ": 6}"),
        "a wrong closer": ('<parameter name="mode">{"owner": 5', "]</parameter>\n</invoke>", "}"),
        "text in place of a value": ('<parameter name="mode">{"owner": ', "me and you}</parameter>", "5}"),
        "an unterminated value": ('<parameter name="content">x y\nz', "", "\n100"),
    },
)
EXPRESSIONS = broken(
    "<|python_start|>[write_file(",
    ")]<|python_end|>",
    {
        "broken JSON": ('path="/a b.py", lines=3', " 5)]", ', mode={"owner": 1}'),
        "broken object": ('path="/a b.py", mode={"owner": 5', ": 6})]", ', "group": 6}'),
        "a key without a value": ('path="/a b.py", content=', ")]", '"x"'),
        "no value and a comma": ('path="/a b.py", content=', ", lines=3)]", '"x", lines=3'),
        "another format": ('path="/a b.py", content=', OTHER, '"x", lines=3'),
        "another format in place of a key": ('path="/a b.py", ', OTHER, 'content="x", lines=3'),
        "a wrong closer": ('path="/a b.py", content="x"', "}]", ", lines=3"),
        "text in place of a value": ('path="/a b.py", lines=', "three of them, or four)]", "3"),
        "an unterminated string": ('path="/a b.py", content="x y', "", '", lines=3'),
    },
)
BODIES = {"JSON": JSON, "parameters": PARAMETERS, "expression": EXPRESSIONS}
BREAKS = {f"{body}, {kind}": one for body, kinds in BODIES.items() for kind, one in kinds.items()}
FORMATS = {"JSON": "tool_call", "parameters": "invoke", "expression": "pythonic"}


class Breaking(Continuing):
    """An upstream whose first reply breaks, and `again` of those that continue it."""

    def __init__(self, kind: str, one: Broken, again: int = 0, **given: Any) -> None:
        breaks = [Fault(len(one.good), "broken", one.bad)] * (1 + again)
        super().__init__(kind, one.whole, *breaks, **given)


async def talk(upstream: Continuing, client: str = "chat", *, ask: Ask = ASK, **given: Any) -> tuple[Got, Record]:
    """Return the client's view of the reply, which is valid, and the record."""
    return (await talked(upstream, client, ask, **given)).pair


KNOWN: dict[Any, tuple[Any, ...]] = {}
"""The replies of undisturbed upstreams."""


async def undisturbed(client: str, whole: str, **given: Any) -> tuple[Any, ...]:
    key = (client, whole, tuple(given))
    if key not in KNOWN:
        got, record = await talk(Continuing("completions", whole), client, **given)
        assert (got.error, got.reason, record.resumed) == (None, "calls", ())
        KNOWN[key] = seen(got)
    return KNOWN[key]


def pieces(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


def cases(seed: int, clients: int = len(ALL_CLIENTS)) -> Iterator[tuple[str, str, str, int]]:
    """Yield cases: break, upstream, client, size of the upstream's pieces. Each break occurs with this many clients."""
    chance = random.Random(seed)
    for number, name in enumerate(BREAKS):
        for turn in range(clients):
            client = ALL_CLIENTS[(number + turn) % len(ALL_CLIENTS)]
            yield name, KINDS[(number + turn + seed) % len(KINDS)], client, chance.choice((1, 4, 16, 1000))


async def check(name: str, kind: str, client: str, size: int) -> None:
    one = BREAKS[name]
    upstream = Breaking(kind, one, tokens=lambda text: pieces(text, size))
    got, record = await talk(upstream, client)
    assert seen(got) == await undisturbed(client, one.whole)
    assert len(upstream.requests) == 2
    assert one.good.startswith(upstream.beginnings[1])
    (interruption,) = record.resumed
    assert interruption.cause == "malformed call"
    assert interruption.character == len(one.good)


@both
@each("name,kind,client,size", list(cases(0, clients=2)))
@alternating
async def test_the_client_sees_the_call_as_if_it_had_not_been_broken(name, kind, client, size):
    await check(name, kind, client, size)


@pytest.mark.long
@both
@each("name,kind,client,size", [case for seed in range(1, 9) for case in cases(seed)])
@alternating
async def test_the_same_with_other_pieces_and_upstreams(name, kind, client, size):
    await check(name, kind, client, size)


@both
@each("kind", KINDS)
@alternating
async def test_a_continuation_may_break_too(kind):
    for name in ("JSON, broken JSON", "parameters, another format", "expression, a key without a value"):
        upstream = Breaking(kind, BREAKS[name], again=1)
        got, record = await talk(upstream)
        assert seen(got) == await undisturbed("chat", BREAKS[name].whole)
        assert (len(upstream.requests), len(record.resumed)) == (3, 2)


@both
@each("client", ALL_CLIENTS)
@alternating
async def test_a_call_that_stays_broken_ends_as_if_it_had_not_been_continued(client):
    for name, kind in zip([*BREAKS][::3], cycle(KINDS), strict=False):
        for given in ({"again": 9}, {"instead": ["Sorry."] * 2}, {"statuses": [500] * 2}):
            upstream = Breaking(kind, BREAKS[name], **given)
            got, record = await talk(upstream, client)
            expected, _ = await talk(Breaking(kind, BREAKS[name]), client, resume=0)
            assert (got.error, got.reason) == (expected.error, expected.reason), name
            assert [part[0] for part in got.parts] == [part[0] for part in expected.parts], name
            assert len(upstream.requests) == 3
            assert (record.incomplete, record.error) == (True, None)


@both
async def test_a_reply_that_differs_is_rejected():
    for name, one in list(BREAKS.items())[::3]:
        upstream = Breaking("llama.cpp", one, instead=["I am sorry, where was I?"])
        got, record = await talk(upstream)
        assert seen(got) == await undisturbed("chat", one.whole), name
        assert (len(upstream.requests), len(record.resumed)) == (3, 1)
        assert "grammar" in upstream.requests[1].json


@both
async def test_arguments_that_the_client_has_received_are_not_changed():
    """The parser has named the first positional argument before it turned out not to be one."""
    one = BREAKS["expression, another format in place of a key"]
    other = f"{one.good[split_at_seam(one.good) :]}lines=3)]"
    upstream = Breaking("vLLM", one, instead=[other])
    got, record = await talk(upstream)
    assert seen(got) == await undisturbed("chat", one.whole)
    assert len(upstream.requests) == 3
    upstream = Breaking("vLLM", one, instead=[other] * 2)
    got, record = await talk(upstream)
    assert got.parts == (("write_file", '{"path": "/a b.py", "content": '),)
    assert (got.reason, got.error, record.error) == ("calls", None, None)


@both
@each("given", [{"stream": False}, {"arguments": "complete"}])
@alternating
async def test_a_call_that_is_buffered_or_in_a_whole_reply_is_continued_too(given):
    for name, kind in zip(BREAKS, cycle(KINDS), strict=False):
        one = BREAKS[name]
        got, record = await talk(Breaking(kind, one), **given)
        assert seen(got) == await undisturbed("chat", one.whole, **given), name
        assert (len(record.resumed), record.attempts) == (1, ())


@each("failing", ["error", "end", "cut"])
def test_a_buffered_call_that_cannot_be_continued_ends_with_one_error(failing):
    tool = {"name": "write", "parameters": {"properties": {"path": {"type": "string"}, "text": {"type": "string"}}}}
    asked = {"model": "m", "messages": [{"role": "user", "content": "Go on."}], "stream": True}
    body = json.dumps({**asked, "tools": [{"type": "function", "function": tool}]}).encode()
    chosen = Settings(app_protocol="completions", arguments="complete", resume=2, retries=0)
    exchange = Exchange(chosen, client_protocol("chat"), body, (), new_id="{}1".format, now=1)

    def event(text: str, reason: str | None = None) -> bytes:
        choice = {"index": 0, "text": text, "finish_reason": reason}
        return b"data: " + json.dumps({"id": "q", "object": "text_completion", "choices": [choice]}).encode() + b"\n\n"

    exchange.request()
    exchange.respond(200, ())
    out = exchange.feed(event('<tool_call>\n{"name": "write", "arguments": {"path": "a", "text": "b\n</tool_call>'))
    out += exchange.feed(event("", "stop")) + exchange.close()
    attempts = 0
    while exchange.retry and attempts < 8:
        attempts += 1
        exchange.request()
        exchange.respond(503 if failing == "error" else 200, ())
        if failing != "error":
            out += exchange.feed(event("more"))
        if failing == "end":
            out += exchange.feed(event("", "stop"))
        out += exchange.close()
    assert exchange.done
    assert attempts > 0
    assert out.count(b"cannot be read") == 1


@both
@each("kind", KINDS)
@alternating
async def test_the_model_is_asked_again_if_the_client_has_not_seen_the_call(kind):
    one = BREAKS["JSON, a wrong closer"]
    for given in ({"stream": False}, {"arguments": "complete"}):
        upstream = Breaking(kind, one, again=2)
        got, record = await talk(upstream, limits={"attempts": 4}, **given)
        expected = await undisturbed("chat", one.whole, **given)
        assert (got.parts[-1], got.reason) == (expected[0][-1], "calls")
        assert (record.attempts, len(record.resumed)) == (("malformed",), 2)
        assert "If the task is done" in json.dumps(upstream.requests[3].json)


@both
async def test_a_broken_call_is_not_continued():
    one = BREAKS["JSON, broken JSON"]
    for kind, given in (
        ("unknown", {}),
        ("llama.cpp", {"resume": 0}),
        ("llama.cpp", {"limits": {"attempts": 1}}),
        ("llama.cpp", {"mode": "rescue"}),
        ("llama.cpp", {"limits": {"arguments": 40}}),
    ):
        upstream = Breaking(kind, one)
        _, record = await talk(upstream, **given)
        assert (len(upstream.requests), record.resumed, record.incomplete) == (1, (), True)


@both
async def test_the_second_call_of_a_reply_is_continued():
    first = '<tool_call>{"name": "write_file", "arguments": {"path": "1"}}</tool_call>\n'
    for only, kind in zip(JSON.values(), cycle(KINDS), strict=False):
        one = evolve(only, good=f"<think>Hm.</think>{first}{only.good.partition('. ')[2]}")
        upstream = Breaking(kind, one)
        got, record = await talk(upstream, "messages")
        assert seen(got) == await undisturbed("messages", one.whole)
        assert [entry.character for entry in record.resumed] == [len(one.good)]


LINE = "the same line, 円\\n"


class Repeating(Continuing):
    """An upstream that repeats a line without end, `times` times; then it continues with the rest."""

    def __init__(self, kind: str, times: int = 1, passage: str = LINE) -> None:
        super().__init__(kind, "", tokens=lambda text: pieces(text, 64))
        self.begin = f'<tool_call>{{"name": "write_file", "arguments": {{"path": "a", "content": "begin {passage}'
        self.times, self.passage, self.count = times, passage, 24_000 // len(passage)

    def reply(self, request: Any) -> Script:
        given = self.beginning(request.json)
        assert f"{self.begin}{self.passage}".startswith(given)
        self.times -= 1
        self.whole = (
            f"{self.begin}{self.passage * self.count}"
            if self.times >= 0
            else f'{self.begin}{self.passage}end", "lines": 3}}}}'
        )
        return super().reply(request)


@both
@each("kind", KINDS)
@alternating
async def test_a_model_that_repeats_itself_is_stopped_and_continued(kind):
    for limit in (4096, 16384) if kind == "ollama" else (4096,):
        upstream = Repeating(kind)
        got, record = await talk(upstream, limits={"repetition": limit})
        ((name, arguments),) = got.parts
        assert (name, got.reason) == ("write_file", "calls")
        content = json.loads(arguments)["content"]
        line = json.loads(f'"{LINE}"')
        count = content.count(line)
        assert content == f"begin {line * count}end"
        assert limit <= len((line * count).encode()) <= limit + 3 * 4096 + 64
        assert [(one.cause, one.place) for one in record.resumed] == [("endless repetition", "write_file")]
        if kind == "llama.cpp":
            grammar = upstream.requests[1].json["grammar"]
            again = f"{upstream.begin}{upstream.passage}"[len(upstream.beginnings[1]) :]
            assert any(rest_grammar(grammar, again[:end] + 'end", "lines": 3}}') for end in range(len(again) + 1))


@both
@each("client", ALL_CLIENTS)
@alternating
async def test_a_model_that_keeps_repeating_itself_ends_as_a_cut_call(client):
    for kind, requests in (("llama.cpp", 3), ("unknown", 1)):
        upstream, fields = Repeating(kind, 9), {"max_tokens": 10**6} if client == "messages" else {}
        got, record = await talk(upstream, client, fields=fields, limits={"repetition": 4096})
        assert len(upstream.requests) == requests
        if client == "responses":  # a client that sets no limit gets an error, so that it tries again
            assert (got.reason, got.error is None) == (None, False)
        else:
            assert (got.reason, got.error) == ("length", None)
        assert record.incomplete


@both
async def test_other_texts_are_not_repetitions():
    for limit, passage in ((0, LINE), (2**20, LINE), (4096, f"{'long ' * 300}.")):
        upstream = Repeating("unknown", passage=passage)
        got, record = await talk(upstream, limits={"repetition": limit})
        assert len(got.parts[0][1]) > 23_000
        assert (len(upstream.requests), record.incomplete) == (1, True)


LOOSE = "parameters, a missing quote"
"""The break after text that the grammar for the tool's schema does not allow, so that any arguments may follow."""


@both
async def test_the_rest_of_the_call_is_constrained():
    for name, one in BREAKS.items():
        upstream = Breaking("llama.cpp", one)
        await talk(upstream)
        grammar = upstream.requests[1].json["grammar"]
        again = one.good[len(upstream.beginnings[1]) :]
        rest = one.rest.removesuffix("\n</function_calls>")
        assert rest_grammar(grammar, again + rest) is not None, name
        assert not one.bad or rest_grammar(grammar, again + one.bad) is None or name == LOOSE, name
        assert "grammar" not in upstream.requests[0].json


@both
async def test_other_spellings_of_a_call_are_constrained_by_its_arguments():
    for arguments in ('{"lines": 3, "path": ', '{"other": 3, "path": '):
        one = Broken(
            f'<tool_call>{{"name": "write_file", "arguments": {arguments}', "}}</tool_call>", '"/a"}}</tool_call>'
        )
        upstream = Breaking("llama.cpp", one)
        got, _ = await talk(upstream)
        assert got.parts == (("write_file", f'{arguments}"/a"}}'),)
        grammar = upstream.requests[1].json["grammar"]
        again = one.good[len(upstream.beginnings[1]) :]
        assert rest_grammar(grammar, again + one.rest) is not None
        assert rest_grammar(grammar, again + one.bad) is None


class Forced(Breaking):
    """An upstream whose prompt ends with the beginning of the call from the start."""

    begin = '<tool_call>\n{"name": "write_file", "arguments":'

    def beginning(self, body: Any) -> str:
        given = super().beginning(body)
        assert given.startswith(self.begin)
        return given.removeprefix(self.begin)


@both
@each("kind", [COMPLETING, "completions", "vLLM", "ollama"])
@alternating
async def test_a_call_whose_beginning_is_in_the_prompt_is_continued(kind):
    for only in list(JSON.values())[::2]:
        one = evolve(only, good=f" {only.good.partition(': ')[2].partition(': ')[2]}")
        asked = {"ask": evolve(ASK, choice="write_file"), "table": {"forcing": "prefill"}, "format": "tool_call"}
        upstream = Forced(kind, one)
        got, record = await talk(upstream, **asked)
        arguments = one.whole.strip().removesuffix("}</tool_call>")
        assert (got.parts, got.reason) == ((("write_file", arguments),), "calls")
        assert [entry.character for entry in record.resumed] == [len(one.good)]
