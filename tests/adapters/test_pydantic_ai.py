"""Pydantic AI with a wrapped client and a text-only model: its agents run the loop in both protocols."""

from contextlib import asynccontextmanager

import pytest
from openai import AsyncOpenAI
from support.clients import KINDS, TIMEOUT, Model
from support.pydantic_ai_loop import loop
from support.servers import uvicorn_server

import streamtool

MODELS = {"chat": ("OpenAIChatModel", "tool_call"), "responses": ("OpenAIResponsesModel", "stop")}
"""Protocol → the name of the model class, and Pydantic AI's finish reason of a turn with calls."""


@pytest.fixture
def anyio_backend():
    """Select asyncio, which Pydantic AI requires."""
    return "asyncio"


@pytest.fixture(scope="module")
def place():
    model = Model()
    with uvicorn_server(model.app) as served:
        yield model, f"{served.url}/v1"


@asynccontextmanager
async def provider(url):
    from pydantic_ai.providers.openai import OpenAIProvider

    plain = AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=TIMEOUT)
    async with streamtool.wrap(plain) as client:
        yield OpenAIProvider(openai_client=client)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("protocol", MODELS)
async def test_an_agent_completes_a_task(place, protocol, streamed, kind):
    from pydantic_ai.models import openai as models

    model, url = place
    task = model.task(kind)
    made, reason = MODELS[protocol]
    async with provider(url) as openai:
        outcome = await loop(getattr(models, made)(task.model, provider=openai), task, streamed)
    model.check(task, outcome, calls=reason, end="stop")
