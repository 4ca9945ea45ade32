"""Pydantic AI with a wrapped client, before a model of text: its agents play the loop in both protocols."""

import json
from contextlib import asynccontextmanager

import pytest
from clients.common import KINDS, TIMEOUT, Model, Outcome
from openai import AsyncOpenAI
from pydantic_ai import Agent, AgentRunResultEvent, Tool
from pydantic_ai.messages import ModelResponse, PartDeltaEvent, TextPart, ToolCallPart, ToolCallPartDelta
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from servers import uvicorn_server

import streamtool

MODELS = {"chat": (OpenAIChatModel, "tool_call"), "responses": (OpenAIResponsesModel, "stop")}
"""Protocol -> the model, and what Pydantic AI calls the end of a turn with calls."""


@pytest.fixture
def anyio_backend():
    """Pydantic AI asks for asyncio's loop."""
    return "asyncio"


@pytest.fixture(scope="module")
def place():
    model = Model()
    with uvicorn_server(model.app) as served:
        yield model, f"{served.url}/v1"


@asynccontextmanager
async def provider(url):
    plain = AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=TIMEOUT)
    async with streamtool.wrap(plain) as client:
        yield OpenAIProvider(openai_client=client)


def tool_of(task, offer):
    def run(**arguments):
        return task.result(offer.name, arguments)

    return Tool.from_schema(run, offer.name, offer.description, offer.parameters)


async def loop(model, task, streamed):
    tools = [tool_of(task, offer) for offer in task.offers]
    agent = Agent(model, tools=tools, system_prompt=task.system, retries=0)
    if streamed:
        async with agent.run_stream_events(task.question) as run:
            events = [event async for event in run]
        (result,) = [event.result for event in events if isinstance(event, AgentRunResultEvent)]
        deltas = [event.delta for event in events if isinstance(event, PartDeltaEvent)]
        pieces = sum(isinstance(delta, ToolCallPartDelta) for delta in deltas)
    else:
        result, pieces = await agent.run(task.question), 2
    assert result.output == task.final
    replies = [message for message in result.all_messages() if isinstance(message, ModelResponse)]
    parts = [part for reply in replies for part in reply.parts if isinstance(part, ToolCallPart)]
    texts = ["".join(part.content for part in reply.parts if isinstance(part, TextPart)) for reply in replies]
    calls = [(part.tool_call_id, part.tool_name, json.loads(part.args_as_json_str())) for part in parts]
    return Outcome(calls, texts, [reply.finish_reason for reply in replies], pieces)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("protocol", MODELS)
async def test_an_agent_plays_a_task(place, protocol, streamed, kind):
    model, url = place
    task = model.task(kind)
    made, reason = MODELS[protocol]
    async with provider(url) as openai:
        outcome = await loop(made(task.model, provider=openai), task, streamed)
    model.check(task, outcome, calls=reason, end="stop")
