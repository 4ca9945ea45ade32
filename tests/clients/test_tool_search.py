"""A model that searches for tools, with the official clients over sockets: they receive only the calls of their tools."""

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import openai
import pytest
from attrs import frozen
from support.dialects import said
from support.servers import uvicorn_server, wait_for

from streamtool.exchange.record import Record
from streamtool.middleware import ToolMiddleware
from streamtool.testing import ScriptedUpstream

NAMES = ("ping", "read_file", "list_files", "delete_file", "book_flight", "convert_money", "play_song", "get_weather")
TOOLS = {f"{name}_{group}": f"{name.replace('_', ' ').capitalize()} of {group}." for group in "abc" for name in NAMES}
SCHEMA: Any = {"type": "object", "properties": {"target": {"type": "string"}}, "required": ["target"]}
SEARCH = '<tool_call>{"name": "tool_search", "arguments": {"query": "weather"}}</tool_call>'
CALL = '<tool_call>{"name": "get_weather_b",  "arguments": {"target": "Turin"}}</tool_call>'
REPLIES = (f"Let me see.\n{SEARCH}", CALL, SEARCH, "It rains.", "Goodbye.")
QUESTION = "Ping it, or is it raining?"


@frozen
class Place:
    """A server with a model that gives these replies, and a client for each protocol."""

    model: ScriptedUpstream
    openai: openai.OpenAI
    claude: anthropic.Anthropic
    records: list[Record]

    @property
    def prompts(self) -> list[str]:
        return ["".join(f"[{m['role']}]{m['content']}" for m in r.json["messages"]) for r in self.model.requests]


@contextmanager
def place(*replies: str) -> Iterator[Place]:
    model = ScriptedUpstream(*(said("chat", reply) for reply in replies))
    records: list[Record] = []
    app = ToolMiddleware(model, app_protocol="chat", select_tools=3, on_exchange=records.append)
    with (
        uvicorn_server(app) as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
        anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as claude,
    ):
        yield Place(model, client, claude, records)


def check(here: Place) -> None:
    """Check the prompts of the three requests, which took five attempts."""
    prompts = here.prompts
    assert len(prompts) == len(REPLIES)
    for (now, later), reply in zip(itertools.pairwise(prompts), REPLIES, strict=False):
        assert later.startswith(now if "tool_search" in reply else f"{now}[assistant]{reply}")
    wait_for(lambda: len(here.records) == 3, "all requests are recorded")
    # a record may follow the next request, which the client sends as soon as it has the end of the reply
    assert sorted(record.attempts for record in here.records) == [(), ("tool search",), ("tool search",)]
    assert all(record.usage.retried for record in here.records if record.attempts)
    assert "get_weather_b(target: string)" in prompts[1]
    assert "get_weather_b(target: string)" not in prompts[0]


def chat(here: Place, messages: list[Any], *, stream: bool) -> Any:
    tools: Any = [
        {"type": "function", "function": {"name": name, "description": text, "parameters": SCHEMA}}
        for name, text in TOOLS.items()
    ]
    asked: Any = {"model": "m", "messages": messages, "tools": tools}
    if not stream:
        return here.openai.chat.completions.create(**asked).choices[0].message
    with here.openai.chat.completions.stream(**asked) as told:
        return told.get_final_completion().choices[0].message


@pytest.mark.parametrize("stream", [True, False])
def test_chat(stream: bool):
    with place(*REPLIES) as here:
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        message = chat(here, messages, stream=stream)
        (call,) = message.tool_calls
        assert (message.content.strip(), call.function.name) == ("Let me see.", "get_weather_b")
        assert json.loads(call.function.arguments) == {"target": "Turin"}
        messages += [message.model_dump(include={"role", "content", "tool_calls"})]
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "rain"}]
        message = chat(here, messages, stream=stream)
        assert (message.content, message.tool_calls) == ("It rains.", None)
        messages += [{"role": "assistant", "content": message.content}, {"role": "user", "content": "Thank you."}]
        assert chat(here, messages, stream=stream).content == "Goodbye."
        check(here)


def claude(here: Place, messages: list[Any], *, stream: bool) -> Any:
    tools: Any = [{"name": name, "description": text, "input_schema": SCHEMA} for name, text in TOOLS.items()]
    asked: Any = {"model": "m", "max_tokens": 99, "messages": messages, "tools": tools}
    if not stream:
        return here.claude.messages.create(**asked)
    with here.claude.messages.stream(**asked) as told:
        return told.get_final_message()


@pytest.mark.parametrize("stream", [True, False])
def test_messages(stream: bool):
    with place(*REPLIES) as here:
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        message = claude(here, messages, stream=stream)
        text, call = message.content
        assert (text.text.strip(), call.name, call.input) == ("Let me see.", "get_weather_b", {"target": "Turin"})
        assert message.stop_reason == "tool_use"
        result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}
        said = [block.model_dump(include={"type", "text", "id", "name", "input"}) for block in message.content]
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
        message = claude(here, messages, stream=stream)
        assert [block.text for block in message.content] == ["It rains."]
        messages += [{"role": "assistant", "content": "It rains."}, {"role": "user", "content": "Thank you."}]
        assert claude(here, messages, stream=stream).content[0].text == "Goodbye."
        check(here)


def responses(here: Place, given: Any, *, stream: bool) -> Any:
    tools: Any = [
        {"type": "function", "name": name, "description": text, "parameters": SCHEMA} for name, text in TOOLS.items()
    ]
    asked: Any = {"model": "m", "input": given, "tools": tools}
    if not stream:
        return here.openai.responses.create(**asked)
    with here.openai.responses.stream(**asked) as told:
        return told.get_final_response()


@pytest.mark.parametrize("stream", [True, False])
def test_responses(stream: bool):
    with place(*REPLIES) as here:
        given: list[Any] = [{"role": "user", "content": QUESTION}]
        response = responses(here, given, stream=stream)
        message, call = response.output
        assert (message.content[0].text.strip(), call.name) == ("Let me see.", "get_weather_b")
        given += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
        given += [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
        response = responses(here, given, stream=stream)
        assert response.output_text == "It rains."
        given += [{"role": "assistant", "content": "It rains."}, {"role": "user", "content": "Thank you."}]
        assert responses(here, given, stream=stream).output_text == "Goodbye."
        check(here)
