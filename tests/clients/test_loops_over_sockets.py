"""Regression tests for sessions that ended wrongly, with the official clients over sockets."""

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import openai
from attrs import frozen
from support.dialects import said
from support.servers import uvicorn_server

from streamtool.middleware import ToolMiddleware
from streamtool.testing import ScriptedUpstream

SCHEMA: Any = {"type": "object", "properties": {"x": {"type": "integer"}}}
CHAT_TOOL: Any = {"type": "function", "function": {"name": "ping", "parameters": SCHEMA}}
TOOL: Any = {"type": "function", "name": "ping", "parameters": SCHEMA}
CLAUDE_TOOL: Any = {"name": "ping", "input_schema": SCHEMA}
CALL = '<tool_call>{"name": "ping", "arguments": {"x": 1}}</tool_call>'
PATCH = '<tool_call>{"name": "apply_patch", "arguments": {"x": 1}}</tool_call>'


@frozen
class Place:
    """A server with a model that gives these replies, and a client for each protocol."""

    model: ScriptedUpstream
    openai: openai.OpenAI
    claude: anthropic.Anthropic


@contextmanager
def place(*replies: str) -> Iterator[Place]:
    model = ScriptedUpstream(*(said("chat", reply) for reply in replies))
    with (
        uvicorn_server(ToolMiddleware(model, app_protocol="chat")) as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client,
        anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as claude,
    ):
        yield Place(model, client, claude)


def test_a_quoted_call_is_text_but_a_repeated_call_is_a_call():
    asked: Any = [{"role": "user", "content": f"Could not parse: `Sure! {CALL}`. Send the call alone."}]
    with place(f"You mean {CALL}, I think.", CALL) as here:
        ask = {"model": "m", "messages": asked, "tools": [CHAT_TOOL]}
        first = here.openai.chat.completions.create(**ask).choices[0]
        assert (first.message.content, first.message.tool_calls) == (f"You mean {CALL}, I think.", None)
        (call,) = here.openai.chat.completions.create(**ask).choices[0].message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("ping", {"x": 1})


def test_a_call_of_an_unknown_tool_after_visible_text_is_retried():
    with place(f"I will patch it.\n{PATCH}", CALL) as here:
        with here.openai.responses.stream(model="m", input="Fix it.", tools=[TOOL]) as stream:
            response = stream.get_final_response()
        message, call = response.output
        assert (message.content[0].text.strip(), call.name, response.status) == (
            "I will patch it.",
            "ping",
            "completed",
        )
        assert "No tool has the name" in here.model.requests[1].json["messages"][-1]["content"]


def test_when_all_attempts_name_an_unknown_tool_the_client_gets_the_call():
    with place(f"I will patch it.\n{PATCH}") as here:
        with here.openai.responses.stream(model="m", input="Fix it.", tools=[TOOL]) as stream:
            *_, last = stream
        assert last.type == "response.completed"
        assert [item.name for item in last.response.output if item.type == "function_call"] == ["apply_patch"]
        asked: Any = [{"role": "user", "content": "Fix it."}]
        message = here.claude.messages.create(model="m", max_tokens=99, messages=asked, tools=[CLAUDE_TOOL])
        assert message.stop_reason == "tool_use"
        assert [block.name for block in message.content if block.type == "tool_use"] == ["apply_patch"]


def test_prompt_and_reply_are_a_prefix_of_the_next_prompt_with_single_and_forced_calls():
    written = 'So.\n<tool_call>{"name": "ping",   "arguments": {"x":1}}</tool_call>'
    with place(written, written, "Done.") as here:
        messages: list[Any] = [{"role": "user", "content": "Ping it twice."}]
        for choice in ("required", "auto", "auto"):
            reply = here.openai.chat.completions.create(
                model="m", messages=messages, tools=[CHAT_TOOL], tool_choice=choice, parallel_tool_calls=False
            )
            message = reply.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": "ok"} for call in message.tool_calls or ()
            ]
        prompts = ["".join(f"[{m['role']}]{m['content']}" for m in r.json["messages"]) for r in here.model.requests]
        assert len(prompts) == 3
        for now, later in itertools.pairwise(prompts):
            assert later.startswith(f"{now}[assistant]{written}")
