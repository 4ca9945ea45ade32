"""The OpenAI Agents SDK with a wrapped client and a text-only model: its `Runner` runs the loop in both protocols."""

import json
from contextlib import asynccontextmanager

import pytest
from openai import AsyncOpenAI
from support.clients import KINDS, TIMEOUT, Model, Outcome
from support.servers import uvicorn_server

import streamtool

MODELS = {"chat": "OpenAIChatCompletionsModel", "responses": "OpenAIResponsesModel"}
"""Protocol → the name of the SDK's class. The SDK is imported by the tests: only one worker needs it."""


@pytest.fixture
def anyio_backend():
    """Select asyncio, which the SDK requires."""
    return "asyncio"


@pytest.fixture(scope="module")
def place():
    model = Model()
    with uvicorn_server(model.app) as served:
        yield model, f"{served.url}/v1"


@asynccontextmanager
async def wrapped(url, **options):
    plain = AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=TIMEOUT)
    async with streamtool.wrap(plain, **options) as client:
        yield client


def tool_of(task, offer):
    async def run(_, arguments):
        return task.result(offer.name, json.loads(arguments))

    from agents import FunctionTool

    return FunctionTool(offer.name, offer.description, offer.parameters, run, strict_json_schema=False)


async def loop(model, task, streamed):
    from agents import Agent, ModelSettings, RunConfig, Runner
    from agents.items import MessageOutputItem, ToolCallItem

    quiet = RunConfig(tracing_disabled=True)
    tools = [tool_of(task, offer) for offer in task.offers]
    agent = Agent("helper", instructions=task.system, tools=tools, model=model, model_settings=ModelSettings())
    if streamed:
        result = Runner.run_streamed(agent, task.question, run_config=quiet)
        types = [event.data.type async for event in result.stream_events() if event.type == "raw_response_event"]
        pieces = types.count("response.function_call_arguments.delta")
    else:
        result, pieces = await Runner.run(agent, task.question, run_config=quiet), 2
    assert result.final_output == task.final
    calls = [item.raw_item for item in result.new_items if isinstance(item, ToolCallItem)]
    said = [item.raw_item.content[0].text for item in result.new_items if isinstance(item, MessageOutputItem)]
    texts = [*([] if task.opening else [None]), *said]
    return Outcome(
        [(call.call_id, call.name, json.loads(call.arguments)) for call in calls], texts, [None, None], pieces
    )


@pytest.mark.anyio
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("protocol", MODELS)
async def test_the_runner_completes_a_task(place, protocol, streamed, kind):
    import agents

    model, url = place
    task = model.task(kind)
    async with wrapped(url) as client:
        outcome = await loop(getattr(agents, MODELS[protocol])(task.model, client), task, streamed)
    model.check(task, outcome, calls=None, end=None)


@pytest.mark.anyio
async def test_a_provider_uses_the_client_for_all_agents(place):
    from agents import OpenAIProvider

    model, url = place
    task = model.task("two")
    async with wrapped(url) as client:
        provider = OpenAIProvider(openai_client=client, use_responses=False)
        outcome = await loop(provider.get_model(task.model), task, streamed=True)
    model.check(task, outcome, calls=None, end=None)
