"""The strict one-object protocol, section by section: template, registry, results, rejections, the final answer."""

import json

import pytest
from support.agents import events_of, last_said, only, prompt, scripted, story, switched

from streamtool.agent import Agent, OutputDelta, Rejected, ThoughtDelta, ToolCallResult, tool
from streamtool.core.errors import AgentError
from streamtool.settings import Settings
from streamtool.testing import Script, text

both = pytest.mark.anyio
upstreams = pytest.mark.parametrize("how", ["app", "http"])

UPSERT = "kom.memory.v1.upsert_memory"
SEARCH = "kom.memory.v1.search_memory"
SAVE = (
    '{"thought":"need to upsert note","action":{"tool":"kom.memory.v1.upsert_memory","args":{"namespace":'
    '"project:metal","items":[{"text":"Embedding model comparison takeaways"}]}}}'
)
ASKED = 'Save this note: "Embedding model comparison takeaways" into project:metal'


class Notes:
    """Notes in memory, accessed through two tools."""

    def __init__(self):
        self.items = []

    def upsert(self, namespace: str, items: list[dict[str, str]]) -> dict[str, int]:
        """Save notes."""
        self.items += [(namespace, item["text"]) for item in items]
        return {"upserted": len(items)}

    def search(self, namespace: str, query: dict[str, str]) -> list[str]:
        """Find notes."""
        return [text for place, text in self.items if place == namespace and query["text"] in text]

    @property
    def tools(self):
        return [tool(self.upsert, name=UPSERT), tool(self.search, name=SEARCH)]


@pytest.fixture(scope="module")
def switch():
    with switched() as made:
        yield made


def agent(upstream, tools, **options):
    return Agent(upstream, tools, format="action_object", settings=Settings(schema="json"), **options)


@both
async def test_the_template_contains_the_tools_their_schemas_and_the_forms_of_actions_and_final_answers():
    upstream = scripted('{"final": {"content": "ok"}}')
    assert await agent(upstream, Notes().tools).ask(ASKED) == "ok"
    request = upstream.requests[0].json
    system = request["messages"][0]
    assert system["role"] == "system"
    assert "Each reply is one object and nothing else: one call, or the final answer." in system["content"]
    assert "Never invent a tool." in system["content"]
    assert f'{{"name": "{UPSERT}"' in system["content"]
    assert '"additionalProperties": {"type": "string"}' in system["content"]  # a strict schema
    assert '"action": {"tool": "kom.memory.v1.upsert_memory", "args": ' in system["content"]
    assert '{"final": {"content": ' in system["content"]
    assert "tools" not in request


@both
@upstreams
async def test_the_example_session(how, switch):
    """Save a note: action, result, final; the content of the final answer may be any value."""
    notes = Notes()
    upstream = scripted(SAVE, '{"final":{"content":{"status":"ok","upserted":1}}}')
    events = await events_of(agent(switch.at(upstream, how), notes.tools), ASKED)
    assert notes.items == [("project:metal", "Embedding model comparison takeaways")]
    assert "".join(event.text for event in only(events, ThoughtDelta)) == "need to upsert note"
    assert story(events) == [("result", UPSERT, '{"upserted":1}'), ("final", '{"status":"ok","upserted":1}')]
    assert '{"upserted":1}' in last_said(upstream)


@both
@upstreams
async def test_each_step_uses_the_previous_result(how, switch):
    def second(request):
        found = json.loads(request.json["messages"][-1]["content"].split("\n")[1])
        return text(json.dumps({"action": {"tool": "double", "args": {"x": found["n"]}}}))

    def third(request):
        found = request.json["messages"][-1]["content"].split("\n")[1]
        return text(json.dumps({"final": {"content": f"It is {found}."}}))

    def count() -> dict[str, int]:
        return {"n": 21}

    def double(x: int) -> int:
        return 2 * x

    upstream = scripted('{"thought": "first", "action": {"tool": "count", "args": {}}}', second, third)
    events = await events_of(agent(switch.at(upstream, how), [count, double]))
    assert story(events) == [("result", "count", '{"n":21}'), ("result", "double", "42"), ("final", "It is 42.")]


@both
@upstreams
async def test_a_call_rejected_for_the_surrounding_text_is_executed_when_sent_alone(how, switch):
    """The rejection quotes the reply, in a user message."""
    notes = Notes()
    upstream = scripted(f"Sure! {SAVE}", SAVE, '{"final": {"content": "Saved."}}')
    events = await events_of(agent(switch.at(upstream, how), notes.tools), ASKED)
    assert "Sure!" in upstream.requests[1].json["messages"][-1]["content"]
    assert notes.items == [("project:metal", "Embedding model comparison takeaways")]
    assert story(events)[1:] == [("result", UPSERT, '{"upserted":1}'), ("final", "Saved.")]


INVALID = {
    "nothing": ("", "it is no JSON object"),
    "prose": ("I'd rather write prose.", "it is no JSON object"),
    "prose before it": ('Sure! {"final": {"content": "x"}}', "there is text before the object"),
    "prose behind it": ('{"final": {"content": "x"}} Done.', "it is no valid JSON"),
    "a fence": ('```json\n{"final": {"content": "x"}}\n```', "there is text before the object"),
    "damaged": ('{"thought": "x", "final": {"content": "x"', "it is no valid JSON"),
    "trailing comma": ('{"final": {"content": "x"},}', "it is no valid JSON"),
    "another key": ('{"final": {"content": "x"}, "mood": 1}', "it has the unknown key `mood`"),
    "neither": ('{"thought": "x"}', "it needs either `action` or `final`"),
    "both": ('{"action": {"tool": "f"}, "final": {"content": 1}}', "it has both `action` and `final`"),
    "no object of arguments": ('{"action": {"tool": "f", "args": [1]}}', "`args` is no object"),
    "an invented field": (
        '{"action": {"tool": "f", "args": {}, "id": 1}}',
        "`action` holds `tool`, a name, and `args`",
    ),
}


@both
@upstreams
async def test_invalid_json_is_rejected_and_retried(how, switch):
    upstream = scripted('{"thought": "broken', '{"final": {"content": "now"}}')
    events = await events_of(agent(switch.at(upstream, how), Notes().tools), "Go.")
    assert story(events) == [("rejected", "protocol"), ("final", "now")]
    assert only(events, Rejected)[0].id is None
    assert "Your last reply was rejected: it is no valid JSON" in last_said(upstream)
    assert '{"thought": "broken' in last_said(upstream)
    assert "".join(event.text for event in only(events, OutputDelta)).endswith("now")


@both
@pytest.mark.parametrize("case", INVALID)
async def test_everything_but_one_object_of_the_protocol_is_rejected(case):
    reply, why = INVALID[case]
    upstream = scripted(reply, '{"final": {"content": "now"}}')

    def f() -> str:
        raise AssertionError("what was rejected is not executed")

    assert story(await events_of(agent(upstream, [f])))[-1] == ("final", "now")
    assert why in last_said(upstream)


@both
async def test_a_correction_is_removed_after_the_retry():
    upstream = scripted("no", '{"action": {"tool": "f", "args": {}}}', '{"final": {"content": 1}}')
    assert await agent(upstream, [tool(lambda: "done", name="f")]).ask("Go.") == "1"
    assert "rejected" in prompt(upstream, 1)
    assert "rejected" not in prompt(upstream, 2)


@both
async def test_retries_are_bounded():
    upstream = scripted("no")
    with pytest.raises(AgentError, match="did not follow the protocol in 3 attempts: it is no JSON object") as error:
        await agent(upstream, Notes().tools).ask("Go.")
    assert error.value.code == "protocol"
    assert len(upstream.requests) == 3


@both
async def test_without_strict_text_is_the_answer():
    upstream = scripted("I'd rather write prose.")
    assert await agent(upstream, Notes().tools, strict=False).ask("Go.") == "I'd rather write prose."


@both
@upstreams
async def test_an_unknown_tool_is_rejected_with_the_list(how, switch):
    upstream = scripted('{"action": {"tool": "rm", "args": {"path": "/"}}}', '{"final": {"content": "sorry"}}')
    events = await events_of(agent(switch.at(upstream, how), Notes().tools))
    assert story(events) == [("rejected", "unknown tool"), ("final", "sorry")]
    assert f"There is no tool `rm`. The tools are: `{UPSERT}`, `{SEARCH}`." in last_said(upstream)


@both
@upstreams
async def test_invalid_arguments_are_answered_with_the_schema(how, switch):
    upstream = scripted(
        '{"action": {"tool": "kom.memory.v1.search_memory", "args": {"namespace": "project:metal", "query": "x"}}}',
        '{"action": {"tool": "kom.memory.v1.search_memory", "args": {"namespace": "p", "query": {"text": "x"}}}}',
        '{"final": {"content": "nothing found"}}',
    )
    events = await events_of(agent(switch.at(upstream, how), Notes().tools))
    assert story(events) == [("rejected", "arguments"), ("result", SEARCH, "[]"), ("final", "nothing found")]
    told = last_said(upstream, 1)
    assert "That part of the schema is: " in told
    assert '{"type":"object","additionalProperties":{"type":"string"}}' in told
    assert 'The arguments were: {"namespace": "project:metal", "query": "x"}' in told


@both
async def test_a_long_thought_is_truncated_and_the_reply_accepted():
    upstream = scripted('{"thought": "' + "x" * 300 + '", "final": {"content": "fine"}}')
    events = await events_of(agent(upstream, Notes().tools))
    assert "".join(event.text for event in only(events, ThoughtDelta)) == "x" * 200
    assert story(events) == [("final", "fine")]


@both
async def test_reasoning_before_the_object_is_not_extra_text():
    upstream = scripted('<think>Hm { … }</think>\n{"final": {"content": "fine"}}')
    assert story(await events_of(agent(upstream, Notes().tools))) == [("final", "fine")]


@both
async def test_the_sample_model_follows_the_protocol():
    notes = Notes()
    events = await events_of(agent("sample", notes.tools), f"Use {UPSERT} for Metal")
    assert [event.name for event in only(events, ToolCallResult)] == [UPSERT]
    assert not only(events, Rejected)
    assert story(events)[-1] == ("final", f"Here is what I found: {only(events, ToolCallResult)[0].text}")


@both
@upstreams
async def test_the_command_format_runs_the_same_loop(how, switch):
    notes = Notes()
    notes.items.append(("project:metal", "embedding model"))
    command = f'@{SEARCH} {{"namespace":"project:metal", "query":{{"text":"embedding model"}}}}'
    upstream = scripted(command, "Found it.")
    events = await events_of(Agent(switch.at(upstream, how), notes.tools, format="command"))
    assert story(events) == [("result", SEARCH, '["embedding model"]'), ("final", "Found it.")]


@both
@pytest.mark.parametrize("format", ["tool_call", "invoke", "react", "labelled"])
async def test_other_formats_run_the_same_loop(format):
    def get_weather(city: str) -> str:
        """The weather in a city."""
        return f"rain in {city}"

    events = await events_of(Agent("sample", [get_weather], format=format), "What is the weather in Paris?")
    assert story(events) == [
        ("result", "get_weather", "rain in Paris"),
        ("final", "Here is what I found: rain in Paris"),
    ]


@both
async def test_a_format_whose_markers_are_the_tool_names():
    def get_weather(city: str) -> str:
        return f"rain in {city}"

    upstream = scripted("I look.\n<get_weather>\n<city>Paris</city>\n</get_weather>", "It rains.")
    events = await events_of(Agent(upstream, [get_weather], format="tag", settings=Settings(formats=("tag",))))
    assert story(events) == [("result", "get_weather", "rain in Paris"), ("final", "It rains.")]


@both
async def test_an_upstream_error_is_not_a_protocol_violation():
    upstream = scripted(Script((b'{"error": {"message": "no room"}}',), 503, "application/json"))
    with pytest.raises(Exception, match="no room"):
        await agent(upstream, Notes().tools).ask("Go.")
