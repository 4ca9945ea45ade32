"""The agent loop: streams events, executes concurrently and in order, bounds everything, and modifies no argument."""

import asyncio
import copy
import json
import sys
import threading
import time

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.agents import WEATHER, events_of, get_weather, last_said, only, plain, prompt, scripted, story

from streamtool.agent import (
    Agent,
    Final,
    OutputDelta,
    Rejected,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
    TurnStart,
    Veto,
    tool,
)
from streamtool.core.errors import AgentError, RequestError, SettingsError, UpstreamError, UpstreamRefused
from streamtool.core.reply import Reason
from streamtool.settings import Settings, UpstreamSettings
from streamtool.testing import Die, Hold, Script, ScriptedUpstream, chunk, status, text
from streamtool.testing.upstream import DONE

both = pytest.mark.anyio


def calls(*names: str, **arguments: object) -> str:
    given = json.dumps(arguments)
    return "".join(f'<tool_call>{{"name": "{name}", "arguments": {given}}}</tool_call>\n' for name in names)


@both
async def test_events_are_reported_as_they_happen():
    upstream = scripted(text("Let me look.\n", WEATHER, size=8), "It is mild.")
    events = await events_of(Agent(upstream, [get_weather]))
    id = only(events, ToolCallStart)[0].id
    assert events[0] == TurnStart(1)
    assert "".join(event.text for event in events if isinstance(event, OutputDelta)) == "Let me look.It is mild."
    assert "".join(event.text for event in only(events, ToolArgumentsDelta)) == '{"city": "Paris"}'
    assert only(events, ToolCallEnd) == [ToolCallEnd(id, "get_weather", '{"city": "Paris"}')]
    assert [(event.id, event.text, event.error) for event in only(events, ToolCallResult)] == [
        (id, "18 °C in Paris", False)
    ]
    final = events[-1]
    assert isinstance(final, Final)
    assert (final.text, final.reason, final.turns) == ("It is mild.", Reason.STOP, 2)
    assert [message["role"] for message in final.messages] == ["assistant", "tool", "assistant"]
    assert final.messages[1] == {"role": "tool", "tool_call_id": id, "content": "18 °C in Paris"}


@both
async def test_each_piece_is_reported_before_the_next_arrives():
    upstream = scripted(Script((*text("Half ", done=False, finish=None).steps, Hold(), *text("and half.").steps)))
    async with Agent(upstream).run("Go.") as run:
        assert await anext(run) == TurnStart(1)
        seen = ""
        while seen != "Half ":
            seen += (await anext(run)).text
        upstream.release()
        assert (await run.final()).text.startswith("Half and half.")


@both
async def test_the_answer_continues_a_conversation():
    upstream = scripted("Hello Ann.", WEATHER, "Mild.")
    agent = Agent(upstream, [get_weather], system="Be brief.")
    messages = [{"role": "user", "content": "I am Ann."}]
    async with agent.run(messages) as run:
        messages += (await run.final()).messages
    assert await agent.ask([*messages, {"role": "user", "content": "Weather?"}]) == "Mild."
    sent = upstream.requests[1].json["messages"]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "user"]
    assert sent[0]["content"].startswith("Be brief.")
    assert sent[2]["content"] == "Hello Ann."


@both
async def test_calls_of_a_reply_run_concurrently_and_results_are_returned_in_order():
    met = {"a": anyio.Event(), "b": anyio.Event()}

    async def a() -> str:
        met["a"].set()
        await met["b"].wait()
        await anyio.sleep(0.01)
        return "from a"

    async def b() -> str:
        met["b"].set()
        await met["a"].wait()
        return "from b"

    upstream = scripted(calls("a", "b"), "Both.")
    with anyio.fail_after(5):
        events = await events_of(Agent(upstream, [a, b]))
    assert [event.text for event in only(events, ToolCallResult)] == ["from b", "from a"]  # reported as they arrive
    told = last_said(upstream)
    assert told.index("from a") < told.index("from b")  # in the order of the calls


@both
async def test_sync_functions_run_concurrently_in_threads():
    barrier = threading.Barrier(2)

    def wait() -> int:
        barrier.wait(5)
        return threading.get_ident()

    events = await events_of(Agent(scripted(calls("wait", "wait"), "ok"), [wait]))
    threads = {event.text for event in only(events, ToolCallResult)}
    assert len(threads - {str(threading.main_thread().ident)}) == 2


@both
async def test_an_exception_in_a_tool_is_its_result():
    def bad() -> None:
        raise ValueError("bad luck")

    async def worse() -> None:
        raise ExceptionGroup("several", [KeyError("x")])

    upstream = scripted(calls("bad", "worse"), "I see.")
    events = await events_of(Agent(upstream, [bad, worse]))
    assert {event.name: (event.text, event.error) for event in only(events, ToolCallResult)} == {
        "bad": ("Error: ValueError: bad luck", True),
        "worse": ("Error: KeyError: 'x'", True),
    }
    assert "Error: ValueError: bad luck" in last_said(upstream)


@both
async def test_a_tool_that_raises_system_exit_only_fails_its_call():
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def leave() -> None:
        sys.exit("bye")

    async def part() -> None:
        sys.exit("bye bye")

    def mute() -> None:
        raise Unspeakable

    events = await events_of(Agent(scripted(calls("leave", "part", "mute"), "I see."), [leave, part, mute]))
    assert {event.name: event.text for event in only(events, ToolCallResult)} == {
        "leave": "Error: SystemExit: bye",
        "part": "Error: SystemExit: bye bye",
        "mute": "Error: Unspeakable",
    }
    assert events[-1].text == "I see."


@both
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_cancelled_within_a_tool_does_not_cancel_the_run():
    async def waits() -> None:
        task = asyncio.ensure_future(asyncio.sleep(60))
        task.cancel()
        await task

    events = await events_of(Agent(scripted(calls("waits"), "I see."), [waits]))
    assert [(event.text, event.error) for event in only(events, ToolCallResult)] == [("Error: CancelledError", True)]
    assert events[-1].text == "I see."


@both
async def test_a_base_exception_in_a_tool_is_propagated():
    class Stop(BaseException):
        pass

    async def stop() -> None:
        raise Stop

    with pytest.raises(BaseExceptionGroup) as raised:
        await Agent(scripted(calls("stop")), [stop]).ask("Go.")
    assert raised.group_contains(Stop)


@both
async def test_at_most_a_hundred_calls_run_and_queueing_does_not_count_against_their_timeout():
    inside, most = 0, 0

    async def slow(number: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await anyio.sleep(0.1)
        inside -= 1
        return number

    def slow_too(number: int) -> int:
        time.sleep(0.1)
        return number

    said = "".join(calls(tool.__name__, number=n) for tool in (slow, slow_too) for n in range(100))
    upstream = scripted(text(said, size=1000), "ok")
    events = await events_of(Agent(upstream, [slow, slow_too], timeout=5))
    assert not any(event.error for event in only(events, ToolCallResult))
    assert len(only(events, ToolCallResult)) == 200
    assert 1 < most <= 100
    told = last_said(upstream)
    assert [int(line) for line in told.splitlines() if line.isdigit()] == [*range(100), *range(100)]


@both
@pytest.mark.parametrize("ids", [("same", "same"), (None, None)], ids=["twice the same", "none"])
async def test_calls_with_missing_or_duplicate_ids_are_distinguished(ids):
    def one() -> str:
        return "one"

    def two() -> str:
        return "two"

    made = [
        {"index": i, "type": "function", "function": {"name": name, "arguments": "{}"}, **({"id": id} if id else {})}
        for i, (name, id) in enumerate(zip(("one", "two"), ids, strict=True))
    ]
    reply = Script((chunk({"role": "assistant", "tool_calls": made}), chunk({}, finish="tool_calls"), DONE))
    upstream = scripted(reply, reply, "ok")
    events = await events_of(Agent(upstream, [one, two], mode="native"))
    assert len({event.id for event in only(events, ToolCallResult)}) == 4
    for asked, first, second in (upstream.requests[2].json["messages"][i : i + 3] for i in (1, 4)):
        assert [call["id"] for call in asked["tool_calls"]] == [first["tool_call_id"], second["tool_call_id"]]
        assert [first["content"], second["content"]] == ["one", "two"]


@pytest.mark.trio
async def test_a_call_that_times_out_does_not_affect_the_others(autojump_clock):
    async def slow() -> str:
        await anyio.sleep(1000)
        return "never"

    async def patient() -> str:
        await anyio.sleep(30)
        return "at last"

    tools = [tool(slow, timeout=5), patient]
    events = await events_of(Agent(scripted(calls("slow", "patient"), "ok"), tools, timeout=60))
    assert {event.name: (event.text, event.seconds) for event in only(events, ToolCallResult)} == {
        "slow": ("Error: the call took longer than 5 seconds and was stopped", 5.0),
        "patient": ("at last", 30.0),
    }


@both
async def test_unknown_tools_and_invalid_arguments_are_answered_but_not_executed():
    upstream = scripted(
        calls("get_whether", city="Paris"),
        calls("get_weather", town="Paris"),
        calls("get_weather", city=5) + calls("get_weather", city="Rome"),
        "Done.",
    )
    events = await events_of(Agent(upstream, [get_weather]))
    assert [(event.why, event.name) for event in only(events, Rejected)] == [
        ("unknown tool", "get_whether"),
        ("arguments", "get_weather"),
    ]
    assert "There is no tool `get_whether`. The tools are: `get_weather`." in last_said(upstream, 1)
    assert "city" in last_said(upstream, 2)
    # a number where only a string can be meant is coerced, as everywhere
    assert {event.text for event in only(events, ToolCallResult)} == {"18 °C in 5", "18 °C in Rome"}


@both
async def test_no_tool_is_executed_because_of_a_similar_name():
    upstream = scripted(calls("get_weathers", city="Paris"), calls("getWeather", city="Rome"), "Done.")
    events = await events_of(Agent(upstream, [get_weather], tool_names="edit"))
    assert [(event.why, event.name) for event in only(events, Rejected)] == [("unknown tool", "get_weathers")]
    assert [event.text for event in only(events, ToolCallResult)] == ["18 °C in Rome"]


@both
async def test_replies_without_an_executable_call_are_bounded():
    upstream = scripted(calls("nope"))
    with pytest.raises(AgentError, match=r"an executable call 3 times in a row.*There is no tool `nope`") as e:
        await Agent(upstream, [get_weather]).ask("Go.")
    assert e.value.code == "no_valid_call"
    assert len(upstream.requests) == 3


@both
async def test_turns_are_bounded():
    upstream = scripted(WEATHER)
    with pytest.raises(AgentError, match="no final answer after 4 turns; raise max_turns to allow more") as error:
        await Agent(upstream, [get_weather], max_turns=4).ask("Go.")
    assert error.value.code == "turn_limit"
    assert len(upstream.requests) == 4


@both
async def test_a_truncated_call_is_not_executed():
    cut = text('<tool_call>{"name": "get_weather", "arguments": {"city": "Par', finish="length")
    upstream = scripted(cut, "Sorry.")
    events = await events_of(Agent(upstream, [get_weather]))
    assert story(events) == [("rejected", "incomplete"), ("final", "Sorry.")]
    assert "cut off" in last_said(upstream)


@both
async def test_a_truncated_answer_has_reason_length():
    upstream = scripted(text("Once upon a ti", finish="length"))
    async with Agent(upstream, [get_weather]).run("Go.") as run:
        final = await run.final()
    assert (final.text, final.reason) == ("Once upon a ti", Reason.LENGTH)


@both
async def test_approve_may_deny_a_call():
    asked = []

    async def approve(call: ToolCallEnd) -> bool:
        asked.append((call.name, call.arguments))
        return len(asked) > 1

    upstream = scripted(calls("get_weather", "get_weather", city="Rome"), "Fine.")
    events = await events_of(Agent(upstream, [get_weather], approve=approve))
    assert asked == [("get_weather", '{"city": "Rome"}')] * 2
    assert story(events) == [("rejected", "refused"), ("result", "get_weather", "18 °C in Rome"), ("final", "Fine.")]
    assert "The user refused this call." in last_said(upstream)


@both
async def test_a_veto_gives_the_model_a_reason():
    upstream = scripted(WEATHER, "Fine.")
    events = await events_of(Agent(upstream, [get_weather], approve=lambda _: Veto("ask for Rome instead")))
    assert story(events) == [("rejected", "refused"), ("final", "Fine.")]
    assert "The user refused this call. They say: ask for Rome instead" in last_said(upstream)


@both
async def test_an_abandoned_run_reports_the_messages_it_added():
    upstream = scripted(calls("get_weather", "wait", city="Rome"))
    waiting = anyio.Event()

    async def wait(city: str) -> None:
        waiting.set()
        await anyio.sleep_forever()

    async with Agent(upstream, [get_weather, wait]).run("Go.") as run:
        assert run.messages == ()
        async for event in run:
            if isinstance(event, ToolCallResult):
                break
        await waiting.wait()
    said, result = run.messages
    assert [call["function"]["name"] for call in said["tool_calls"]] == ["get_weather", "wait"]
    assert (result["role"], result["content"]) == ("tool", "18 °C in Rome")
    assert result["tool_call_id"] == said["tool_calls"][0]["id"]

    further = scripted("Fine.")  # the call without a result is marked
    await Agent(further, [get_weather, wait]).ask(
        [{"role": "user", "content": "Go."}, *run.messages, {"role": "user", "content": "Well?"}]
    )
    assert prompt(further).count("interrupted") == 1


# --- errors ----------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("script", "error", "says"),
    [
        (status(429, "slow down"), UpstreamRefused, "slow down"),
        (status(401, "who are you"), UpstreamRefused, "who are you"),
        (text("Half a sen", finish=None, done=False), UpstreamError, "closed the connection"),
        (Script((*text("Half ", finish=None, done=False).steps, Die())), Exception, "failed"),
        (Script((b"<html>no</html>",), 200, "text/html"), UpstreamError, ""),
    ],
    ids=["limit", "key", "broken off", "died", "a page"],
)
@pytest.mark.parametrize("tools", [True, False], ids=["tools", "none"])
async def test_a_failing_upstream_ends_the_run(script, error, says, tools):
    with pytest.raises(error) as raised:
        await Agent(ScriptedUpstream(script), [get_weather] if tools else []).ask("Go.")
    if tools:
        assert says in str(raised.value)


@both
async def test_an_unreachable_url_is_an_error():
    with pytest.raises(UpstreamError, match=r"the upstream at 127\.0\.0\.1:9 cannot be reached"):
        await Agent("http://127.0.0.1:9", [get_weather]).ask("Go.")


@both
async def test_invalid_messages_are_errors():
    with pytest.raises(RequestError, match="role"):
        await Agent("sample", [get_weather]).ask([{"role": "nobody", "content": "x"}])
    open_call = {"id": "c", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    with pytest.raises(RequestError, match="has no result"):
        await Agent("sample", [get_weather]).ask([{"role": "assistant", "tool_calls": [open_call]}])


def test_invalid_settings_are_errors():
    with pytest.raises(SettingsError, match="an agent needs an upstream"):
        Agent(None)
    with pytest.raises(SettingsError, match="expected 1 or more"):
        Agent("sample", max_turns=0)
    with pytest.raises(SettingsError, match="an http or https url"):
        Agent("ftp://x")


@both
async def test_duplicate_tool_names_are_an_error():
    with pytest.raises(SettingsError, match="two tools are named get_weather"):
        await Agent("sample", [get_weather, tool(get_weather)]).ask("Go.")


@both
@pytest.mark.parametrize("names", [("get\ufe0f_weather",), ("caf\xe9", "cafe\u0301")], ids=ascii)
async def test_names_with_something_invisible_or_that_look_the_same_are_an_error(names):
    with pytest.raises(SettingsError, match=r"invisible characters|look the same"):
        await Agent("sample", [tool(get_weather, name=name) for name in names]).ask("Go.")


@both
@pytest.mark.parametrize("error", [LookupError("mine"), SystemExit(3), KeyboardInterrupt()], ids=type)
async def test_an_error_in_the_block_is_raised_unchanged_and_stops_the_run(error):
    pytest.importorskip("mcp")
    upstream = scripted(Script((*text("Half ", done=False, finish=None).steps, Hold())))
    with pytest.raises(type(error)) as raised:
        async with Agent(upstream, [plain()]) as agent, agent.run("Go.") as run:
            await anext(run)
            raise error
    assert raised.value is error
    assert upstream.left == 1


@both
async def test_an_error_in_approve_is_raised():
    def approve(call: ToolCallEnd) -> bool:
        raise LookupError(call.name)

    with pytest.raises(LookupError, match="get_weather"):
        await Agent(scripted(WEATHER), [get_weather], approve=approve).ask("Go.")


@both
async def test_a_finished_run_has_no_more_events():
    async with Agent(scripted("Hello."), [get_weather]).run("Go.") as run:
        assert isinstance([event async for event in run][-1], Final)
        assert [event async for event in run] == []
        with pytest.raises(AgentError, match="the run has ended"):
            await run.final()
    with pytest.raises(AgentError, match="iterate over its events inside its block"):
        await anext(run)


@both
async def test_an_agent_cannot_be_entered_twice_at_the_same_time():
    agent = Agent("sample", [get_weather])
    for _ in range(2):
        async with agent:
            with pytest.raises(AgentError, match="already been entered"):
                await agent.__aenter__()
            assert await agent.ask("Hello") == "Here is what I found: 18 °C in Hello"


@both
async def test_an_agent_may_be_a_tool_of_another_agent():
    inner = Agent("sample", [get_weather])

    async def ask(question: str) -> str:
        return await inner.ask(question)

    def ask_elsewhere(question: str) -> str:
        return anyio.run(inner.ask, question)

    upstream = scripted(calls("ask", "ask_elsewhere", question="Weather in Rome"), "ok")
    records = []
    events = await events_of(Agent(upstream, [ask, ask_elsewhere], on_exchange=records.append))
    assert [event.text for event in only(events, ToolCallResult)] == ["Here is what I found: 18 °C in Rome"] * 2
    assert len(records) == 2


# --- upstreams -------------------------------------------------------------------------------------------------------


@both
async def test_the_model_selects_the_upstream_of_the_settings():
    routed = Settings(upstreams={"here": UpstreamSettings(name="here", url="sample")})
    assert await Agent(None, [get_weather], settings=routed).ask("Weather in Rome") == (
        "Here is what I found: 18 °C in Rome"
    )


@both
async def test_options_are_sent_and_records_are_reported():
    upstream = scripted(WEATHER, "ok")
    records = []
    agent = Agent(upstream, [get_weather], model="m", options={"temperature": 0.5}, on_exchange=records.append)
    await agent.ask("Go.")
    assert [(r.json["model"], r.json["temperature"]) for r in upstream.requests] == [("m", 0.5)] * 2
    assert [record.calls for record in records] == [1, 0]


@both
async def test_an_entered_agent_serves_several_concurrent_runs():
    answers = {}

    async def ask(agent: Agent, city: str) -> None:
        answers[city] = await agent.ask(f"Weather in {city}")

    async with Agent("sample", [get_weather]) as agent, anyio.create_task_group() as tasks:
        for city in ("Rome", "Paris", "Bonn"):
            tasks.start_soon(ask, agent, city)
    assert answers == {city: f"Here is what I found: 18 °C in {city}" for city in ("Rome", "Paris", "Bonn")}


# --- arguments are not modified --------------------------------------------------------------------------------------

words = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
past = st.lists(
    st.one_of(
        words.map(lambda said: [{"role": "user", "content": said or "x"}]),
        words.map(lambda said: [{"role": "user", "content": [{"type": "text", "text": said}]}]),
        st.tuples(words, words).map(
            lambda pair: [
                {
                    "role": "assistant",
                    "content": pair[0] or None,
                    "tool_calls": [
                        {
                            "id": "c1",
                            "type": "function",
                            "function": {"name": "some.tool", "arguments": json.dumps({"city": pair[1]})},
                        }
                    ],
                    "x_extra": {"kept": [1]},
                },
                {"role": "tool", "tool_call_id": "c1", "content": pair[1]},
            ]
        ),
    ),
    max_size=4,
).map(lambda turns: [message for turn in turns for message in turn])


class Listed:
    """A tool that is not a function, with a mutable schema."""

    name = "some.tool"
    description = "A tool."
    timeout = None

    def __init__(self):
        self.parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

    async def call(self, arguments, progressed):
        from streamtool.agent import ToolOutput
        from streamtool.core.conversation import TextPart

        return ToolOutput((TextPart(str(arguments)),))


@settings(max_examples=40)
@given(past, st.sampled_from(["emulate", "native"]), st.sampled_from(["tool_call", "action_object"]))
def test_messages_and_tools_are_never_modified(messages, mode, format):
    messages = [{"role": "system", "content": "s"}, *messages, {"role": "user", "content": "Weather in Rome"}]
    listed = Listed()
    before, schema = copy.deepcopy(messages), copy.deepcopy(listed.parameters)
    upstream = scripted('<tool_call>{"name": "some.tool", "arguments": {"city": "Rome"}}</tool_call>', "ok")
    agent = Agent(upstream, [listed], mode=mode, format=format, strict=False, options={"stop": ["x"]})

    anyio.run(agent.ask, messages)
    assert messages == before
    assert listed.parameters == schema


def test_run_sync_returns_the_answer_and_the_number_of_turns():
    result = Agent("sample", [get_weather]).run_sync("What is the weather in Paris?")
    assert "18 °C in Paris" in result.output
    assert result.output == result.text
    assert result.turns == 2
