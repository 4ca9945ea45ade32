"""The matrix of cases that emulated tools have to pass, with the official clients, over sockets on both sides.

    client (openai, anthropic) ─▶ proxy under uvicorn ─▶ upstream under uvicorn with scripted replies

The client's view is read from the official clients' own objects, the model's view from the requests that arrived.
docs/checklist.md maps the lines of the checklist to these tests.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import anthropic
import openai
import pytest
from attrs import field, frozen
from support.dialects import CLIENTS, Ask, write
from support.servers import uvicorn_server, wait_for

from streamtool.exchange.record import Record
from streamtool.proxy import Proxy
from streamtool.settings import Settings
from streamtool.testing import Recorded, Script, ScriptedUpstream, text

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS = (
    ("get_weather", "The weather in a city.", WEATHER),
    ("read_file", "Reads a file.", {"type": "object", "properties": {"path": {"type": "string"}}}),
)
ASKED = (("system", "Be brief."), ("user", "What is the weather in Oslo?"))
WRITTEN = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
AGAIN = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}\n</tool_call>'
OSLO = ("get_weather", {"city": "Oslo"})
ROME = ("get_weather", {"city": "Rome", "days": 2})
DENIED = "I'm sorry, but I don't have access to any tools in this conversation."
BLOCKED = "I cannot access files on your computer. Please paste the content here."
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}

protocols = pytest.mark.parametrize("protocol", CLIENTS)
streamed = pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])


@frozen
class Said:
    """A reply as the client sees it."""

    text: str
    calls: list[tuple[str, Any]]
    """Name and arguments of each call."""
    ends: str
    """`calls`, `text` or `cut`."""
    ids: list[str] = field(factory=list, eq=False)

    def turns(self, *results: str) -> tuple[Any, ...]:
        """Return the reply and the results of its calls, as the next request sends them back."""
        said = [("assistant", self.text)] if self.text else []
        calls = [("call", id, *call) for id, call in zip(self.ids, self.calls, strict=True)]
        return (*said, *calls, *(("result", id, one) for id, one in zip(self.ids, results, strict=True)))


@frozen
class Place:
    """The proxy, the clients that reach it, and the upstream after it."""

    upstream: ScriptedUpstream
    records: list[Record]
    clients: dict[str, Any]
    _scripts: dict[str, Iterator[Script]]
    _names: Iterator[int] = field(factory=count)
    _asked: Counter[str] = field(factory=Counter)

    def model(self, *replies: str) -> str:
        """Register a model that gives these replies in order, and return its name."""
        name = f"model-{next(self._names)}"
        self._scripts[name] = iter([text(reply, usage=USAGE) for reply in replies])
        return name

    def ask(self, protocol: str, model: str, ask: Ask) -> Said:
        """Return the official client's view of the reply."""
        self._asked[model] += 1
        body = {**write(protocol, ask), "model": model}
        if protocol == "responses":
            body["store"] = True
        return READS[protocol](self.clients[protocol], body)

    def prompts(self, model: str) -> list[list[Any]]:
        """Return the messages of each request that the model has read; tools never reach it as tools."""
        bodies = [request.json for request in self.upstream.requests if request.json["model"] == model]
        assert all(body.keys().isdisjoint({"tools", "tool_choice", "parallel_tool_calls"}) for body in bodies)
        assert {message["role"] for body in bodies for message in body["messages"]} <= {"system", "user", "assistant"}
        return [body["messages"] for body in bodies]

    def record(self, model: str) -> Record:
        """Return the record of the model's last exchange, as soon as it has been logged."""

        def said() -> list[Record]:
            return [record for record in self.records if record.model == model]

        wait_for(lambda: len(said()) == self._asked[model], "the record of the exchange")
        return said()[-1]


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    scripts: dict[str, Iterator[Script]] = {}

    def reply(request: Recorded) -> Script:
        return next(scripts[request.json["model"]])

    upstream, records = ScriptedUpstream(reply), list[Record]()
    with uvicorn_server(upstream) as behind:
        proxy = Proxy(Settings(upstreams={"model": {"url": behind.url}}), on_exchange=records.append)
        with uvicorn_server(proxy) as served:
            options: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": 10.0}
            of_openai = openai.OpenAI(base_url=f"{served.url}/v1", **options)
            of_anthropic = anthropic.Anthropic(base_url=served.url, **options)
            clients = {"chat": of_openai, "responses": of_openai, "messages": of_anthropic}
            with of_openai, of_anthropic:
                yield Place(upstream, records, clients, scripts)


def read_chat(client: openai.OpenAI, body: dict[str, Any]) -> Said:
    if body.pop("stream"):
        with client.chat.completions.stream(**body) as stream:
            choice = stream.get_final_completion().choices[0]
    else:
        choice = client.chat.completions.create(**body).choices[0]
    made = choice.message.tool_calls or []
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in made]
    ends = {"tool_calls": "calls", "stop": "text", "length": "cut"}[choice.finish_reason]
    return Said(choice.message.content or "", calls, ends, [call.id for call in made])


def read_responses(client: openai.OpenAI, body: dict[str, Any]) -> Said:
    if body.pop("stream"):
        with client.responses.stream(**body) as stream:
            response = stream.get_final_response()
    else:
        response = client.responses.create(**body)
    made = [item for item in response.output if item.type == "function_call"]
    assert response.status == "completed"
    calls = [(call.name, json.loads(call.arguments)) for call in made]
    return Said(response.output_text, calls, "calls" if calls else "text", [call.call_id for call in made])


def read_messages(client: anthropic.Anthropic, body: dict[str, Any]) -> Said:
    if body.pop("stream"):
        with client.messages.stream(**body) as stream:
            message = stream.get_final_message()
    else:
        message = client.messages.create(**body)
    said = "".join(block.text for block in message.content if block.type == "text")
    made = [block for block in message.content if block.type == "tool_use"]
    ends = {"tool_use": "calls", "end_turn": "text", "max_tokens": "cut"}[message.stop_reason]
    return Said(said, [(call.name, call.input) for call in made], ends, [call.id for call in made])


READS: dict[str, Callable[[Any, dict[str, Any]], Said]] = {
    "chat": read_chat,
    "responses": read_responses,
    "messages": read_messages,
}


# --- the turns of a loop ---------------------------------------------------------------------------------------------


@protocols
@streamed
def test_a_call_in_a_single_turn(place: Place, protocol: str, stream: bool):
    model = place.model(f"I look.\n{WRITTEN}")
    assert place.ask(protocol, model, Ask(ASKED, TOOLS, stream)) == Said("I look.", [OSLO], "calls")
    [[system, user]] = place.prompts(model)
    assert (system["role"], user) == ("system", {"role": "user", "content": "What is the weather in Oslo?"})
    assert system["content"].startswith("Be brief.\n\n# Tools\n")
    assert "get_weather(city: string, days?: integer)\n The weather in a city." in system["content"]
    record = place.record(model)
    assert (record.mode, record.tool_prompt, record.calls, record.turn) == ("emulate", True, 1, "first decision")


@protocols
@streamed
def test_the_loop_continues_after_each_result_to_another_call_and_to_the_answer(
    place: Place, protocol: str, stream: bool
):
    model = place.model(WRITTEN, f"Now Rome.\n{AGAIN}", "Oslo has rain, Rome has sun.")
    turns: tuple[Any, ...] = ASKED
    replies = [Said("", [OSLO], "calls"), Said("Now Rome.", [ROME], "calls")]
    for reply, result in zip(replies, ("rain", "sun"), strict=True):
        said = place.ask(protocol, model, Ask(turns, TOOLS, stream))
        assert said == reply
        turns += said.turns(result)
    assert place.ask(protocol, model, Ask(turns, TOOLS, stream)) == Said("Oslo has rain, Rome has sun.", [], "text")
    first, second, third = place.prompts(model)
    assert second[: len(first)] == first
    assert third[: len(second)] == second
    assert third[len(first) :] == [
        {"role": "assistant", "content": WRITTEN},
        {"role": "user", "content": '<tool_response name="get_weather">\nrain\n</tool_response>'},
        {"role": "assistant", "content": f"Now Rome.\n{AGAIN}"},
        {"role": "user", "content": '<tool_response name="get_weather">\nsun\n</tool_response>'},
    ]
    assert place.record(model).turn == "result received, next decision pending"


@protocols
@streamed
@pytest.mark.parametrize("known", [True, False], ids=["the same client", "nothing remembered"])
def test_a_later_turn_without_the_tools_stays_emulated(place: Place, protocol: str, stream: bool, known: bool):
    """If the tools are in the store, the prompt just grows; otherwise they are inferred from the calls in the
    history.
    """
    model = place.model(WRITTEN, AGAIN) if known else place.model(AGAIN)
    if known:
        said = place.ask(protocol, model, Ask(ASKED, TOOLS, stream))
    else:
        said = Said("", [OSLO], "calls", ["call_nobody_knows"])
    later = Ask(ASKED + said.turns("rain"), stream=stream)
    assert place.ask(protocol, model, later) == Said("", [ROME], "calls")
    prompt = place.prompts(model)[-1]
    if known:
        assert prompt[: len(ASKED)] == place.prompts(model)[0]
    assert "# Tools" in prompt[0]["content"]
    assert "get_weather" in prompt[0]["content"]
    assert [message["content"] for message in prompt[2:]] == [
        WRITTEN if known else '<invoke name="get_weather">\n<parameter name="city">Oslo</parameter>\n</invoke>',
        '<tool_response name="get_weather">\nrain\n</tool_response>',
    ]
    assert place.record(model).mode == "emulate"
    assert place.record(model).history


@protocols
@streamed
def test_a_result_does_not_make_a_further_call_mandatory(place: Place, protocol: str, stream: bool):
    model = place.model("It rains.", "You are welcome.")
    history = (*ASKED, *Said("", [OSLO], "calls", ["call_1"]).turns("rain"))
    assert place.ask(protocol, model, Ask(history, TOOLS, stream)) == Said("It rains.", [], "text")
    thanked = (*history, ("assistant", "It rains."), ("user", "Thanks!"))
    assert place.ask(protocol, model, Ask(thanked, TOOLS, stream)) == Said("You are welcome.", [], "text")
    assert place.record(model).attempts == ()
    assert place.record(model).turn == "first decision"


# --- the tool choice -------------------------------------------------------------------------------------------------


@protocols
@streamed
def test_a_forced_tool(place: Place, protocol: str, stream: bool):
    model = place.model("It is sunny, I guess.", f"Well then.\n{WRITTEN}")
    forced = Ask(ASKED, TOOLS, stream, choice="get_weather")
    said = place.ask(protocol, model, forced)
    assert (said.calls, said.ends) == ([OSLO], "calls")
    assert "I guess" not in said.text
    first, second = place.prompts(model)
    demand = "For this reply: write one call of the tool `get_weather`, and call no other tool."
    assert first[-1]["content"].endswith(demand)
    assert second[-1]["content"].startswith("What is the weather in Oslo?\n\nYour reply did not contain the tool call")
    assert second[-1]["content"].endswith(demand)
    assert place.record(model).attempts == ("required call missing",)


@protocols
@streamed
def test_any_tool_is_required(place: Place, protocol: str, stream: bool):
    model = place.model("It is sunny, I guess.", WRITTEN)
    assert place.ask(protocol, model, Ask(ASKED, TOOLS, stream, choice="required")) == Said("", [OSLO], "calls")
    first, second = place.prompts(model)
    demand = "For this reply: write at least one call; an answer without a call is not accepted."
    assert first[-1]["content"].endswith(demand)
    assert second[-1]["content"].endswith(demand)
    assert place.record(model).attempts == ("required call missing",)


@protocols
@streamed
def test_a_missing_required_call_is_reported_as_unmet(place: Place, protocol: str, stream: bool):
    model = place.model("Sunny.", "Sunny!", "It is sunny.")
    said = place.ask(protocol, model, Ask(ASKED, TOOLS, stream, choice="required"))
    assert said == Said("It is sunny.", [], "text")
    assert place.record(model).attempts == ("required call missing",) * 2
    assert (place.record(model).unmet, place.record(model).outcome) == ("required call missing", "unmet")


@protocols
@streamed
def test_tool_choice_none(place: Place, protocol: str, stream: bool):
    model = place.model("It may rain.")
    assert place.ask(protocol, model, Ask(ASKED, TOOLS, stream, choice="none")) == Said("It may rain.", [], "text")
    [[system, user]] = place.prompts(model)
    assert "# Tools" in system["content"]
    assert user["content"].endswith("For this reply: write no call. Answer without tools.")


# --- streams ---------------------------------------------------------------------------------------------------------


def test_a_streamed_tool_use_of_messages(place: Place):
    model = place.model(f"I look.\n{WRITTEN}")
    body = {**write("messages", Ask(ASKED, TOOLS)), "model": model}
    seen = list(place.clients["messages"].messages.create(**body))
    kinds = [event.type for event in seen]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    starts = [event for event in seen if event.type == "content_block_start"]
    assert [(event.index, event.content_block.type) for event in starts] == [(0, "text"), (1, "tool_use")]
    assert (starts[1].content_block.name, starts[1].content_block.input) == ("get_weather", {})
    deltas = [event for event in seen if event.type == "content_block_delta"]
    assert "".join(d.delta.text for d in deltas if d.delta.type == "text_delta") == "I look."
    pieces = [d.delta.partial_json for d in deltas if d.delta.type == "input_json_delta"]
    assert json.loads("".join(pieces)) == {"city": "Oslo"}
    assert len(pieces) > 3
    assert [event.index for event in seen if event.type == "content_block_stop"] == [0, 1]
    assert seen[-2].delta.stop_reason == "tool_use"


def test_a_streamed_call_of_chat(place: Place):
    model = place.model(f"I look.\n{WRITTEN}")
    body = {**write("chat", Ask(ASKED, TOOLS)), "model": model}
    seen = list(place.clients["chat"].chat.completions.create(**body))
    deltas = [chunk.choices[0].delta for chunk in seen if chunk.choices]
    assert deltas[0].role == "assistant"
    assert [delta.role for delta in deltas[1:]] == [None] * (len(deltas) - 1)
    assert "".join(delta.content or "" for delta in deltas) == "I look."
    parts = [part for delta in deltas for part in delta.tool_calls or ()]
    assert (parts[0].index, parts[0].type, parts[0].function.name) == (0, "function", "get_weather")
    assert parts[0].id
    assert all(part.id is None and part.function.name is None for part in parts[1:])
    pieces = [part.function.arguments for part in parts if part.function.arguments]
    assert json.loads("".join(pieces)) == {"city": "Oslo"}
    assert len(pieces) > 3
    reasons = [chunk.choices[0].finish_reason for chunk in seen if chunk.choices]
    assert [reason for reason in reasons if reason] == ["tool_calls"]
    assert len({chunk.id for chunk in seen}) == 1


def test_a_streamed_function_call_of_responses(place: Place):
    model = place.model(f"I look.\n{WRITTEN}")
    body = {**write("responses", Ask(ASKED, TOOLS)), "model": model}
    seen = list(place.clients["responses"].responses.create(**body))
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert (seen[0].type, seen[-1].type) == ("response.created", "response.completed")
    added = [event.item.type for event in seen if event.type == "response.output_item.added"]
    assert added == ["message", "function_call"]
    pieces = [event.delta for event in seen if event.type == "response.function_call_arguments.delta"]
    assert json.loads("".join(pieces)) == {"city": "Oslo"}
    assert len(pieces) > 3


# --- failures --------------------------------------------------------------------------------------------------------


@protocols
@streamed
@pytest.mark.parametrize(
    ("refusal", "told", "cause"),
    [
        (DENIED, "You do have tools in this conversation", "tools denied"),
        (BLOCKED, "You need no access of your own", "environment denied"),
    ],
    ids=["tools", "environment"],
)
def test_a_refusal_is_retried_and_hidden_from_the_client(  # noqa: PLR0917  parameters are given by name
    place: Place, protocol: str, stream: bool, refusal: str, told: str, cause: str
):
    model = place.model(refusal, WRITTEN)
    assert place.ask(protocol, model, Ask(ASKED, TOOLS, stream)) == Said("", [OSLO], "calls")
    first, second = place.prompts(model)
    assert second[:-1] == first[:-1]
    assert told in second[-1]["content"]
    assert refusal not in json.dumps(second)
    assert place.record(model).attempts == (cause,)


DAMAGED = {
    "smart quotes": "{“name”: “get_weather”, “arguments”: {“city”: “Oslo”}}",
    "trailing commas": '{"name": "get_weather", "arguments": {"city": "Oslo",},}',
    "arguments as a string": '{"name": "get_weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}',
    "single quotes": "{'name': 'get_weather', 'arguments': {'city': 'Oslo'}}",
    "other keys": '{"tool": "get_weather", "parameters": {"city": "Oslo"}}',
    "a missing bracket": '{"name": "get_weather", "arguments": {"city": "Oslo"}',
}


@protocols
@streamed
@pytest.mark.parametrize("written", DAMAGED.values(), ids=DAMAGED)
def test_damaged_json_is_repaired(place: Place, protocol: str, stream: bool, written: str):
    model = place.model(f"<tool_call>\n{written}\n</tool_call>")
    assert place.ask(protocol, model, Ask(ASKED, TOOLS, stream)) == Said("", [OSLO], "calls")


@protocols
@streamed
def test_invalid_json_reaches_the_client_as_text(place: Place, protocol: str, stream: bool):
    broken = "<tool_call>\nget the weather, please\n</tool_call>"
    model = place.model(broken)
    assert place.ask(protocol, model, Ask(ASKED, TOOLS, stream)) == Said(broken, [], "text")


@protocols
@streamed
@pytest.mark.parametrize("info", ["json action", "json"])
def test_several_action_blocks_are_several_calls(place: Place, protocol: str, stream: bool, info: str):
    blocks = [
        f'```{info}\n{{"tool": "get_weather", "parameters": {{"city": "Oslo"}}}}\n```',
        f'```{info}\n{{"tool": "read_file", "parameters": {{"path": "a.txt"}}}}\n```',
    ]
    model = place.model("Both at once.\n\n" + "\n\n".join(blocks))
    said = place.ask(protocol, model, Ask(ASKED, TOOLS, stream))
    assert said == Said("Both at once.", [OSLO, ("read_file", {"path": "a.txt"})], "calls")
    assert len(set(said.ids)) == 2
    assert dict(place.record(model).found) == {"fenced": 2}


@protocols
@streamed
def test_a_plain_answer_is_unchanged(place: Place, protocol: str, stream: bool):
    model = place.model("Oslo is the capital of Norway.")
    said = place.ask(protocol, model, Ask(ASKED, TOOLS, stream))
    assert said == Said("Oslo is the capital of Norway.", [], "text")
    assert place.record(model).attempts == ()
