"""A model that searches for tools: the proxy answers the search itself and asks again, and the client does not see it."""

import itertools
import json
import logging
import re
from typing import Any

import pytest
from support.dialects import CLIENTS, Ask, said
from support.scripted_replies import ModelClient
from support.sweeps import alternating, each

from statemachine import Call, write
from streamtool.settings import LimitSettings, Settings
from streamtool.testing import Script

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
TOOLS = (
    ("ping", "Pings a host.", SCHEMA),
    ("send_email", "Sends an email.", {"type": "object", "properties": {"address": {"type": "string"}}}),
    ("book_flight", "Books a flight.", {"type": "object", "properties": {"airport": {"type": "string"}}}),
)
SETTINGS = Settings(select_tools=1, format="tool_call")
SEARCH = '<tool_call>{"name": "tool_search", "arguments": {"query": "an email"}}</tool_call>'
CALL = '<tool_call>{"name": "send_email", "arguments": {"address": "a@b.c"}}</tool_call>'
CALLED = ("send_email", '{"address": "a@b.c"}')

both = pytest.mark.anyio


def ask(stream: bool, choice: str = "auto", *, parallel: bool = True) -> Ask:
    return Ask((("user", "Ping it."),), TOOLS, stream, choice, parallel=parallel)


def meant(parts: Any) -> list[Any]:
    return [part.strip() if isinstance(part, str) else (part[0], json.loads(part[1])) for part in parts]


def texts(request: Any) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in request.json["messages"]]


@both
@each("client", CLIENTS)
@each("stream", [True, False])
@alternating
async def test_the_client_does_not_see_a_search(client: str, stream: bool):
    talk = ModelClient(f"Let me see.\n{SEARCH}", f"Now.\n{CALL}", settings=SETTINGS)
    got = await talk.ask(client, ask(stream))
    assert meant(got.parts) == ["Let me see.\n\nNow.", (CALLED[0], json.loads(CALLED[1]))]
    assert got.reason == "calls"
    first, second = map(texts, talk.upstream.requests)
    assert second[: len(first)] == first
    (_, said_), (role, result) = second[len(first) :]
    assert said_ == 'Let me see.\n<tool_call>\n{"name": "tool_search", "arguments": {"query":"an email"}}\n</tool_call>'
    assert (role, result) == (
        "user",
        '<tool_response name="tool_search">\nsend_email(address?: string)\n Sends an email.\n</tool_response>',
    )
    record = talk.records[0]
    assert (record.attempts, record.details, record.calls, record.unmet) == (("tool search",), ("an email",), 1, None)
    assert record.usage.retried is not None
    assert "parameters of 2 tools" in record.dropped


@both
@each("stream", [True, False])
@alternating
async def test_only_three_searches_are_answered(stream: bool):
    talk = ModelClient(SEARCH, settings=SETTINGS)
    got = await talk.ask("chat", ask(stream))
    assert got.parts == ()
    assert talk.causes == ("tool search",) * 3 + ("too many searches",) * 2
    assert talk.records[0].unmet == "too many searches"
    assert dict(talk.records[0].discarded) == {"tool search": len('{"query": "an email"}')}
    assert len(texts(talk.upstream.requests[-1])) == len(texts(talk.upstream.requests[0])) + 6
    assert "No further search is possible." in talk.last(4)


@both
@alternating
async def test_searches_do_not_count_as_retries():
    limited = Settings(select_tools=1, retries=0, limits=LimitSettings(attempts=1))
    talk = ModelClient(SEARCH, SEARCH, CALL, settings=limited)
    got = await talk.ask("chat", ask(True))
    assert (meant(got.parts), talk.causes) == (meant([CALLED]), ("tool search",) * 2)


@both
@alternating
async def test_a_search_may_be_followed_by_a_rejected_attempt():
    denied = "I'm sorry, but I don't have access to any tools in this conversation."
    talk = ModelClient(SEARCH, denied, CALL, settings=SETTINGS)
    got = await talk.ask("chat", ask(True))
    assert (meant(got.parts), talk.causes) == (meant([CALLED]), ("tool search", "tools denied"))
    _, second, third = map(texts, talk.upstream.requests)
    assert third[:-1] == second[:-1]
    assert third[-1][1].startswith(second[-1][1])


@both
@each(
    ("reply", "parts"),
    [
        (f"{CALL}\n{SEARCH}", [CALLED]),
        (f"{CALL}{SEARCH}{CALL.replace('a@', 'd@')}", [CALLED, ("send_email", '{"address": "d@b.c"}')]),
    ],
)
@alternating
async def test_a_search_after_a_call_is_dropped(reply: str, parts: Any):
    talk = ModelClient(reply, settings=SETTINGS)
    got = await talk.ask("chat", ask(True))
    assert (meant(got.parts), talk.causes) == (meant(parts), ())
    assert dict(talk.records[0].discarded)["tool search"]


@both
@alternating
async def test_a_call_after_a_search_in_the_same_reply_waits_for_the_result():
    talk = ModelClient(f"{SEARCH}\n{CALL}", "No.", settings=SETTINGS)
    got = await talk.ask("chat", ask(True))
    assert (meant(got.parts), talk.causes) == (["No."], ("tool search",))


@both
@each("choice", ["none", "required", "send_email"])
@alternating
async def test_the_tool_choice_is_obeyed(choice: str):
    talk = ModelClient(f"So.\n{SEARCH}", CALL if choice != "none" else "No.", settings=SETTINGS)
    got = await talk.ask("chat", ask(True, choice))
    if choice == "none":
        assert got.reason == "stop"
        assert "tool search" not in talk.causes
    else:
        assert meant(got.parts) == meant([CALLED])
        assert talk.causes == (("tool search",) if choice == "required" else ("wrong tool",))


@both
@alternating
async def test_a_truncated_search_ends_the_reply():
    talk = ModelClient(said("chat", SEARCH[:-30], "length"), settings=SETTINGS)
    got = await talk.ask("chat", ask(True))
    assert (got.parts, got.reason, talk.causes) == ((), "length", ())


@both
@alternating
async def test_a_tool_may_be_called_before_its_parameters_are_shown():
    talk = ModelClient(CALL, settings=SETTINGS)
    got = await talk.ask("chat", ask(True))
    assert "address" not in texts(talk.upstream.requests[0])[0][1]
    assert (meant(got.parts), talk.causes) == (meant([CALLED]), ())


@both
@alternating
async def test_a_clients_own_tool_search_is_delivered():
    tools = (*TOOLS, ("tool_search", "Searches.", {"type": "object", "properties": {"query": {"type": "string"}}}))
    talk = ModelClient(SEARCH, settings=SETTINGS)
    got = await talk.ask("chat", Ask((("user", "Ping it."),), tools, True))
    assert meant(got.parts) == [("tool_search", {"query": "an email"})]
    assert "find_tools(query: string)" in texts(talk.upstream.requests[0])[0][1]


@both
@each("client", ["chat", "messages"])
@alternating
async def test_the_prompt_and_the_reply_are_a_prefix_of_the_next_prompt(client: str):
    """The client repeats only what it has seen; the searches are part of the stored transcripts."""
    answer = "Sent."
    replies = (
        f"Let me see.\n{SEARCH}",
        f"Now.\n{CALL}",
        SEARCH.replace("an email", "a flight"),
        answer,
        "You are welcome.",
    )
    talk = ModelClient(*replies, settings=SETTINGS)
    turns: list[Any] = [("user", "Ping it.")]
    got = await talk.ask(client, Ask(tuple(turns), TOOLS, True))
    turns += [
        ("assistant", got.parts[0]),
        ("call", got.ids[0], *meant([got.parts[1]])[0]),
        ("result", got.ids[0], "ok"),
    ]
    got = await talk.ask(client, Ask(tuple(turns), TOOLS, True))
    assert meant(got.parts) == [answer]
    turns += [("assistant", answer), ("user", "Thank you.")]
    await talk.ask(client, Ask(tuple(turns), TOOLS, True))
    prompts = [texts(request) for request in talk.upstream.requests]
    assert len(prompts) == len(replies)
    for (now, reply), later in zip(zip(prompts, replies, strict=True), prompts[1:], strict=False):
        assert later[: len(now)] == now
        if "tool_search" not in reply:
            assert later[len(now)] == ("assistant", reply)


@both
@alternating
async def test_without_the_store_a_called_tool_is_shown_with_its_result():
    call = ("call", "c1", "send_email", {"address": "a@b.c"})
    turns = (("user", "Ping it."), call, ("result", "c1", "ok"))
    talk = ModelClient("Sent.", settings=SETTINGS)
    await talk.ask("chat", Ask(turns, TOOLS, True))
    assert texts(talk.upstream.requests[0])[-1][1].endswith(
        "The parameters of further tools:\n\nsend_email(address?: string)\n Sends an email."
    )


@both
@alternating
async def test_a_native_search_is_answered_too():
    """Some servers turn calls in text into native ones, although the request contained no tools."""
    call = {"index": 0, "id": "c", "function": {"name": "tool_search", "arguments": '{"query": "an email"}'}}
    chunks = [{"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}]
    chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}]
    native = Script(tuple(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks))
    talk = ModelClient(native, CALL, settings=SETTINGS)
    got = await talk.ask("chat", ask(True))
    assert (meant(got.parts), talk.causes) == (meant([CALLED]), ("tool search",))
    assert "tool_search" in texts(talk.upstream.requests[1])[-2][1]


FORMATS = ("tool_call", "invoke", "pythonic", "qwen3_coder", "object", "fenced", "labelled", "tag")


@both
@each("format", FORMATS)
@alternating
async def test_each_format_can_search(format: str):
    written = write([Call("tool_search", '{"query": "an email"}')], format)
    called = write([Call("send_email", CALLED[1])], format)
    talk = ModelClient(written, called, settings=Settings(select_tools=1, format=format))
    got = await talk.ask("chat", ask(True))
    assert (meant(got.parts), talk.causes) == (meant([CALLED]), ("tool search",))


# --- the warning


NUMBERS = itertools.count(100)


def many(count: int) -> tuple[Any, ...]:
    """Return tools that no other request offers, because a list leads to one warning per process."""
    return tuple((f"tool_{next(NUMBERS)}", "Does it.", SCHEMA) for _ in range(count))


async def warnings(tools: tuple[Any, ...], settings: Settings, requests: int = 2) -> list[str]:
    talk = ModelClient("No.", settings=settings)
    for _ in range(requests):
        await talk.ask("chat", Ask((("user", "Ping it."),), tools, True))
    return [record.warning for record in talk.records]


@both
@alternating
async def test_many_tools_lead_to_one_warning_for_each_list():
    (first, second) = await warnings(many(21), Settings())
    assert re.fullmatch(
        r"21 tools take about \d{3} tokens; small models choose worse above 20: see select_tools", first
    )
    assert second == ""
    assert (await warnings(many(20), Settings())) == ["", ""]
    assert (await warnings(many(22), Settings(mode="native"))) == ["", ""]
    assert (await warnings(many(23), SETTINGS)) == ["", ""]


@both
@alternating
async def test_tools_that_take_half_of_the_context_lead_to_a_warning():
    (first, second) = await warnings(many(3), Settings(context=500))
    assert re.fullmatch(r"3 tools take about \d{3} of 500 tokens", first)
    assert second == ""
    (first, _) = await warnings(many(24), Settings(context=1400))
    assert re.fullmatch(r"24 tools take about \d{3} of 1,400 tokens; small models .*", first)
    assert (await warnings(many(3), Settings(context=5000))) == ["", ""]


@both
async def test_the_log_contains_the_warning(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="streamtool.exchange")
    await warnings(many(25), Settings())
    first, second = caplog.records
    assert (first.levelname, second.levelname) == ("WARNING", "INFO")
    assert first.getMessage().count("25 tools take about") == 1
    assert first.__dict__["streamtool"]["warning"].startswith("25 tools take about")


@both
async def test_the_log_counts_searches(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="streamtool.exchange")
    talk = ModelClient(SEARCH, SEARCH, CALL, settings=SETTINGS)
    await talk.ask("chat", ask(True))
    (record,) = caplog.records
    assert "tool searches 2" in record.getMessage()
    assert "not accepted" not in record.getMessage()
    assert [one["detail"] for one in record.__dict__["streamtool"]["attempts"]] == ["", ""]
