"""Agents of Pydantic AI with tools, through its models for OpenAI (both protocols) and Anthropic."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from support.clients import KINDS, TIMEOUT, Outcome, Task
from support.pydantic_ai_loop import loop
from support.sweeps import halved

REASONS = {"chat": ("tool_call", "stop"), "responses": ("stop", "stop"), "messages": ("tool_call", "stop")}
"""Protocol → Pydantic AI's names for the finish reasons of the two turns."""


@asynccontextmanager
async def model_of(protocol: str, url: str, name: str) -> AsyncIterator[Any]:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    async with httpx2.AsyncClient() as http:
        if protocol == "messages":
            claude = AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=TIMEOUT, http_client=http)
            yield AnthropicModel(name, provider=AnthropicProvider(anthropic_client=claude))
        else:
            openai = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT, http_client=http)
            kind = OpenAIChatModel if protocol == "chat" else OpenAIResponsesModel
            yield kind(name, provider=OpenAIProvider(openai_client=openai))


async def played(url: str, protocol: str, streamed: bool, task: Task) -> Outcome:
    async with model_of(protocol, url, task.model) as model:
        return await loop(model, task, streamed)


@halved("protocol, streamed, kind", REASONS, [True, False], KINDS)
def test_pydantic_ai(place, protocol, streamed, kind):
    task = place.model.task(kind)
    calls, end = REASONS[protocol]
    place.model.check(task, anyio.run(played, place.url, protocol, streamed, task), calls=calls, end=end)
