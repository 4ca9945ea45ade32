"""The embedded sample model: it depends only on its prompt."""

import itertools
import json
import random
import string

import anyio
import jsonschema_rs
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from support.sweeps import each

from statemachine import FORMATS, parse, write
from statemachine import Call as Written
from streamtool.core.conversation import Conversation, Message, TextPart, Tool, ToolCall, ToolChoice, ToolResult
from streamtool.prompting import project
from streamtool.sample import OfferedTool, Sample, SampleParameter, app, learn, read_offers, reply
from streamtool.schemas.parameters import signature
from streamtool.settings import ResultSettings, Settings

STYLES = ["compact", "json", "markdown"]


def user(text):
    return Message("user", (TextPart(text),))


def prompt(*messages, tools, format="tool_call", choice=None, **settings):
    """Return the prompt as sent to the upstream."""
    conversation = Conversation("chat", "m", messages, tools, choice=choice or ToolChoice())
    projected = project(conversation, Settings(**settings).for_model("m"), format)
    return [{"role": message.role, "content": message.text} for message in projected.messages]


def calls_in(text, tools, format="tool_call"):
    visible, calls = parse(text, {tool.name: tool.parameters or {} for tool in tools}, formats=[format])
    return visible, [(call.name, json.loads(call.arguments)) for call in calls]


def random_tools(seed):
    """Return three tools with random names and schemas."""
    chance = random.Random(seed)

    def word():
        return chance.choice(string.ascii_letters) + "".join(chance.choices(string.ascii_letters + "_0123456789", k=7))

    kinds = [
        {"type": "string"},
        {"type": "integer"},
        {"type": "boolean"},
        {"enum": [word(), word()]},
        {"type": "array", "items": {"type": "string"}},
        {"type": "object", "properties": {word(): {"type": "number"}}, "additionalProperties": False},
        {"type": "string", "default": word()},
        {"type": ["integer", "null"]},
    ]

    def schema():
        properties = {
            word(): {**chance.choice(kinds), "description": f"Some {word()} (or so): {word()}."} for _ in range(4)
        }
        return {
            "type": "object",
            "properties": properties,
            "required": chance.sample(list(properties), 3),
            "additionalProperties": False,
        }

    return tuple(Tool(word(), f"{word()} {word()}.\n\n- {word()} (x) (required)\nEnd.", schema()) for _ in range(3))


@each("format, style", zip(FORMATS, itertools.cycle(STYLES), strict=False))
def test_it_calls_an_offered_tool_validly_in_the_taught_format(format, style):
    tools = random_tools(f"{format} {style}")
    wanted = random.Random(format).choice(tools)
    messages = prompt(user(f"Use {wanted.name} for Paris, 7 times."), tools=tools, format=format, schema=style)
    visible, calls = calls_in(reply(messages), tools, format)
    assert [name for name, _ in calls] == [wanted.name]
    jsonschema_rs.validator_for(wanted.parameters).validate(calls[0][1])
    assert visible.strip() == ("" if format in ("action_object", "bare_call") else "Let me look that up.")
    # the reply parses the same when all formats of the default settings are enabled
    listened = Settings(format=format).for_model("m").listened_formats
    names = {tool.name: tool.parameters or {} for tool in tools}
    _, found = parse(reply(messages), names, formats=listened)
    assert [(call.name, json.loads(call.arguments)) for call in found] == calls


@each("format", [name for name in FORMATS if name != "action_object"])
def test_it_calls_both_tools_named_by_the_user(format):
    tools = random_tools(format)
    messages = prompt(user(f"First {tools[2].name}, then {tools[0].name}."), tools=tools, format=format)
    _, calls = calls_in(reply(messages), tools, format)
    assert [name for name, _ in calls] == [tools[2].name, tools[0].name]


WEATHER = Tool(
    "get_weather",
    "Get the weather.",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
)
TIME = Tool("get_time", "Get the time.", {"type": "object", "properties": {"zone": {"type": "string"}}})
TOOLS = (WEATHER, TIME)
EXAMPLE = [Written("get_weather", '{"city": "Paris", "days": 3}'), Written("get_time", '{"zone": "CET"}')]


def test_arguments_are_taken_from_the_users_message():
    _, calls = calls_in(reply(prompt(user("How is the weather in Paris for 3 days?"), tools=TOOLS)), TOOLS)
    assert calls == [("get_weather", {"city": "Paris", "days": 3})]


def test_both_and_and_request_two_calls():
    for text in ("Do both in Rome", "Weather and time in Rome"):
        _, calls = calls_in(reply(prompt(user(text), tools=TOOLS)), TOOLS)
        assert calls == [("get_weather", {"city": "Rome", "days": 1}), ("get_time", {"zone": "Rome"})]


FRAMES = ("tool_result", "doai", "windlass", "<<{name} {id}>>\n{content}\n<</>>")
"""Frames of results; each format is tried with one of them and the default."""


@each("format", FORMATS)
def test_after_results_it_answers_and_quotes_them(format):
    called = Message("assistant", calls=(ToolCall("c1", "get_weather", "{}"), ToolCall("c2", "get_time", "{}")))
    got = Message(
        "user",
        results=(ToolResult("c1", (TextPart("Sunny\n21 C"),)), ToolResult("c2", (TextPart('{"now": "12:00"}'),))),
    )
    for frame in ("default", FRAMES[list(FORMATS).index(format) % len(FRAMES)]):
        messages = prompt(user("Both!"), called, got, tools=TOOLS, format=format, results=ResultSettings(frame=frame))
        visible, calls = calls_in(reply(messages), TOOLS, format)
        assert (visible, calls) == ('Here is what I found: Sunny\n21 C | {"now": "12:00"}', []), frame


def test_a_new_question_is_a_new_call():
    called = Message("assistant", calls=(ToolCall("c1", "get_weather", "{}"),))
    got = Message("user", results=(ToolResult("c1", (TextPart("Sunny"),)),))
    answer = Message("assistant", (TextPart("Sunny."),))
    messages = prompt(user("Paris?"), called, got, answer, user("And Rome for 2 days?"), tools=(WEATHER,))
    _, calls = calls_in(reply(messages), (WEATHER,))
    assert calls == [("get_weather", {"city": "Rome", "days": 2})]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (ToolChoice("none"), []),
        (ToolChoice("required"), ["get_weather", "get_time"]),
        (ToolChoice("required", parallel=False), ["get_weather"]),
        (ToolChoice("required", ("get_time",)), ["get_time"]),
        (ToolChoice("auto", ("get_time",)), ["get_time"]),
        (ToolChoice(parallel=False), ["get_weather"]),
    ],
)
@pytest.mark.parametrize("system_role", [True, False])
def test_it_obeys_the_tool_choice(choice, names, system_role):
    messages = prompt(user("Do both in Rome"), tools=TOOLS, choice=choice, system_role=system_role)
    visible, calls = calls_in(reply(messages), TOOLS)
    assert [name for name, _ in calls] == names
    assert visible


def test_tool_choice_none_is_obeyed_in_the_action_object_format():
    messages = prompt(user("Rome"), tools=TOOLS, choice=ToolChoice("none"), format="action_object")
    assert json.loads(reply(messages)) == {"final": {"content": "Without tools I can only say: Rome"}}


def test_without_a_tool_prompt_it_echoes():
    assert reply([{"role": "system", "content": "x"}, {"role": "user", "content": "Hello"}]) == "You said: Hello"
    assert reply([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]) == "You said: Hi"
    assert reply([]) == "You said: "


def test_names_alone_suffice_for_a_call_without_arguments():
    messages = prompt(user("get_time please"), tools=TOOLS, schema_budget=1)
    assert calls_in(reply(messages), TOOLS)[1] == [("get_time", {})]


def test_it_calls_tools_known_only_from_the_history():
    called = Message("assistant", calls=(ToolCall("c1", "get_time", '{"zone": "CET"}'),))
    got = Message("user", results=(ToolResult("c1", (TextPart("12:00"),)),))
    answer = Message("assistant", (TextPart("Noon."),))
    messages = prompt(user("Time?"), called, got, answer, user("Again."), tools=())
    assert calls_in(reply(messages), TOOLS)[1] == [("get_time", {})]


def test_listed_signatures_are_parsed():
    assert read_offers(
        'f(a: string, "b c"?: (integer|null)[] = [1], d: {e?: "x)"|"y", [key]: any}|null)\n  g(x: y)'
    ) == (
        OfferedTool(
            "f",
            (
                SampleParameter("a", ("word", "string")),
                SampleParameter("b c", ("array", ("word", "integer")), required=False, default=[1]),
                SampleParameter("d", ("object", (SampleParameter("e", ("literal", "x)"), required=False),))),
            ),
        ),
    )


SCHEMAS = st.recursive(
    st.sampled_from(
        [
            {"type": "string"},
            {"type": "null"},
            {"enum": ["a|b", '")', 1.5, None, {"x": []}]},
            {},
            True,
            {"type": "s, t"},
        ]
    ),
    lambda inner: (
        inner.map(lambda schema: {"type": "array", "items": schema})
        | st.lists(inner, min_size=1, max_size=3).map(lambda schemas: {"anyOf": schemas})
        | inner.map(lambda schema: {"type": "object", "additionalProperties": schema})
        | st.dictionaries(st.sampled_from(["a", "b c", '"', "ä.ö", "x-y$", ""]), inner, max_size=3).map(
            lambda properties: {"properties": properties, "required": list(properties)[:1]}
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["p", "q r", "(", "s: t"]), SCHEMAS, max_size=3))
def test_every_signature_can_be_parsed(properties):
    (offer,) = read_offers(signature("f", {"properties": properties}))
    assert (offer.name, [parameter.name for parameter in offer.parameters]) == ("f", list(properties))


def test_foreign_headings_are_not_a_tool_prompt():
    text = "# Tools\n\n## The tools\n\nf(what is this)\n\n## Example\n\nnothing"
    assert reply([{"role": "system", "content": text}, {"role": "user", "content": "Hi"}]) == "You said: Hi"


def test_it_recognises_each_format_from_the_example_alone():
    for name in FORMATS:
        lesson = learn(prompt(user("x"), tools=TOOLS, format=name)[0]["content"])
        assert lesson is not None
        assert lesson.format in (name, FORMATS[name].alias_of)
        assert lesson.format == name or write(EXAMPLE, lesson.format) == write(EXAMPLE, name)


# --- as a server -----------------------------------------------------------------------------------------------------


async def ask(served, body, *, path="/v1/chat/completions", method="POST", leaves_after=None):
    """Return status and body pieces of one request to an ASGI app; the client disconnects after the given number of
    pieces.
    """
    sent, left = [], anyio.Event()
    incoming = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        if incoming:
            return incoming.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)
        if leaves_after is not None and len(sent) > leaves_after:
            left.set()

    await served({"type": "http", "method": method, "path": path, "headers": []}, receive, send)
    return sent[0]["status"], [message["body"] for message in sent[1:]]


def request(text="Rome", **more):
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **more}).encode()


def chunks(pieces):
    events = b"".join(pieces).decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


@pytest.mark.anyio
async def test_a_stream_has_small_deltas_and_a_proper_end():
    status, pieces = await ask(Sample(delta=4), request(stream=True))
    found = chunks(pieces)
    assert status == 200
    assert [chunk["choices"][0]["delta"] for chunk in found] == [
        {"role": "assistant", "content": ""},
        {"content": "You "},
        {"content": "said"},
        {"content": ": Ro"},
        {"content": "me"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in found] == [None] * 5 + ["stop"]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in found}) == 1


@pytest.mark.anyio
async def test_the_usage_chunk_is_sent_on_request():
    _, pieces = await ask(app, request(stream=True, stream_options={"include_usage": True}))
    last = chunks(pieces)[-1]
    assert (last["choices"], last["usage"]) == ([], {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5})


@pytest.mark.anyio
async def test_complete_replies_and_several_choices():
    status, pieces = await ask(app, request(n=2))
    body = json.loads(b"".join(pieces))
    assert status == 200
    assert [(choice["index"], choice["message"]["content"]) for choice in body["choices"]] == [
        (0, "You said: Rome"),
        (1, "You said: Rome"),
    ]
    _, pieces = await ask(app, request(n=2, stream=True))
    assert {chunk["choices"][0]["index"] for chunk in chunks(pieces)} == {0, 1}


@pytest.mark.anyio
async def test_limits_and_stop_strings_end_a_reply():
    _, pieces = await ask(app, request(max_tokens=1))
    choice = json.loads(b"".join(pieces))["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("You ", "length")
    _, pieces = await ask(app, request(stop=["said", "x"]))
    choice = json.loads(b"".join(pieces))["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("You ", "stop")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "path", "method", "status"),
    [
        (b"", "/v1/models", "GET", 200),
        (b"", "/elsewhere", "GET", 404),
        (b"", "/v1/chat/completions", "GET", 405),
        (b"{", "/v1/chat/completions", "POST", 400),
        (b"[]", "/v1/chat/completions", "POST", 400),
        (b'{"messages": 3}', "/v1/chat/completions", "POST", 400),
    ],
)
async def test_other_requests(body, path, method, status):
    found, pieces = await ask(app, body, path=path, method=method)
    assert found == status
    assert ("error" in json.loads(pieces[0])) == (status != 200)


@pytest.mark.trio
async def test_deltas_may_be_delayed(autojump_clock):
    begun = trio.current_time()
    await ask(Sample(delta=100, delay=2.0), request(stream=True))
    assert trio.current_time() - begun == pytest.approx(6.0)


@pytest.mark.trio
async def test_a_disconnecting_client_ends_the_stream(autojump_clock):
    begun = trio.current_time()
    _, pieces = await ask(Sample(delta=1, delay=1.0), request("x" * 1000, stream=True), leaves_after=3)
    assert len(pieces) == 3
    assert trio.current_time() - begun < 10


@pytest.mark.anyio
async def test_lifespan_and_websockets_are_answered():
    words, sent = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}], []

    async def receive():
        return words.pop(0)

    async def send(message):
        sent.append(message["type"])

    await app({"type": "lifespan"}, receive, send)
    await app({"type": "websocket"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close"]
