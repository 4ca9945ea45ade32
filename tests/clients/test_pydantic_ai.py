"""Agents of Pydantic AI with tools, through its models of OpenAI (both protocols) and Anthropic."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from anthropic import AsyncAnthropic
from clients.common import KINDS, TIMEOUT, Outcome, Task
from openai import AsyncOpenAI
from pydantic_ai import Agent, AgentRunResultEvent, Tool
from pydantic_ai.messages import ModelResponse, PartDeltaEvent, TextPart, ToolCallPart, ToolCallPartDelta
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

REASONS = {"chat": ("tool_call", "stop"), "responses": ("stop", "stop"), "messages": ("tool_call", "stop")}
"""Protocol -> what Pydantic AI calls the ends of the two turns."""


@asynccontextmanager
async def model_of(protocol: str, url: str, name: str) -> AsyncIterator[Model]:
    async with httpx2.AsyncClient() as http:
        if protocol == "messages":
            claude = AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=TIMEOUT, http_client=http)
            yield AnthropicModel(name, provider=AnthropicProvider(anthropic_client=claude))
        else:
            openai = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT, http_client=http)
            kind = OpenAIChatModel if protocol == "chat" else OpenAIResponsesModel
            yield kind(name, provider=OpenAIProvider(openai_client=openai))


def tool_of(task: Task, name: str, description: str, parameters: dict[str, Any]) -> Tool[None]:
    def run(**arguments: Any) -> str:
        return task.result(name, arguments)

    return Tool.from_schema(run, name, description, parameters)


async def loop(url: str, protocol: str, streamed: bool, task: Task) -> Outcome:
    tools = [tool_of(task, offer.name, offer.description, offer.parameters) for offer in task.offers]
    async with model_of(protocol, url, task.model) as model:
        agent = Agent(model, tools=tools, system_prompt=task.system, retries=0)
        if streamed:
            # `run_stream` would take the text before the calls for the answer; the documentation says so
            async with agent.run_stream_events(task.question) as run:
                events = [event async for event in run]
            (run_result,) = [event.result for event in events if isinstance(event, AgentRunResultEvent)]
            deltas = [event.delta for event in events if isinstance(event, PartDeltaEvent)]
            pieces = sum(isinstance(delta, ToolCallPartDelta) for delta in deltas)
        else:
            run_result, pieces = await agent.run(task.question), 2
    assert run_result.output == task.final
    replies = [message for message in run_result.all_messages() if isinstance(message, ModelResponse)]
    parts = [part for reply in replies for part in reply.parts if isinstance(part, ToolCallPart)]
    texts = ["".join(part.content for part in reply.parts if isinstance(part, TextPart)) for reply in replies]
    calls = [(part.tool_call_id, part.tool_name, part.args_as_dict()) for part in parts]
    return Outcome(calls, texts, [reply.finish_reason for reply in replies], pieces)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("protocol", REASONS)
def test_pydantic_ai(place, protocol, streamed, kind):
    task = place.model.task(kind)
    calls, end = REASONS[protocol]
    place.model.check(task, anyio.run(loop, place.url, protocol, streamed, task), calls=calls, end=end)
