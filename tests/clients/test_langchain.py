"""LangChain's chat models for OpenAI (both protocols) and Anthropic, with bound tools."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import reduce
from operator import add
from typing import Any

import httpx2
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI
from support.clients import KINDS, TIMEOUT, Outcome, Task
from support.sweeps import halved

REASONS = {
    "chat": ("finish_reason", "tool_calls", "stop"),
    "responses": ("status", "completed", "completed"),
    "messages": ("stop_reason", "tool_use", "end_turn"),
}
"""Protocol → LangChain's field for the finish reason, and its values after a call and at the end."""


@pytest.fixture(scope="module")
def models(place: Any) -> Iterator[dict[str, BaseChatModel]]:
    """Return chat models by protocol, bound to the task's tools."""
    with ExitStack() as stack:
        http = stack.enter_context(httpx2.Client())
        openai: dict[str, Any] = {
            "model": "any", "base_url": f"{place.url}/v1", "api_key": "none", "max_retries": 0, "http_client": http,
            "timeout": TIMEOUT,
        }  # fmt: skip
        claude = ChatAnthropic(
            model_name="any", base_url=place.url, api_key="none", max_retries=0, max_tokens=1000, timeout=TIMEOUT
        )  # type: ignore[call-arg, arg-type]
        stack.enter_context(claude._client)
        yield {
            "chat": ChatOpenAI(**openai),
            "responses": ChatOpenAI(use_responses_api=True, **openai),
            "messages": claude,
        }


def turn(model: Any, streamed: bool, messages: list[Any]) -> tuple[Any, int]:
    """Return the message, and the number of chunks with a piece of a call (2 if the reply was not streamed)."""
    if not streamed:
        return model.invoke(messages), 2
    chunks = list(model.stream(messages))
    return reduce(add, chunks), sum(bool(chunk.tool_call_chunks) for chunk in chunks)


def loop(model: BaseChatModel, streamed: bool, task: Task, reason: str) -> Outcome:
    tools = [
        {
            "type": "function",
            "function": {"name": offer.name, "description": offer.description, "parameters": offer.parameters},
        }
        for offer in task.offers
    ]
    bound = model.bind_tools(tools, model=task.model)
    messages: list[Any] = [SystemMessage(task.system), HumanMessage(task.question)]
    first, pieces = turn(bound, streamed, messages)
    assert first.invalid_tool_calls == []
    calls = [(call["id"], call["name"], call["args"]) for call in first.tool_calls]
    results = [ToolMessage(task.result(name, given), tool_call_id=id) for id, name, given in calls]
    second, _ = turn(bound, streamed, [*messages, first, *results])
    assert second.tool_calls == []
    reasons = [reply.response_metadata.get(reason) for reply in (first, second)]
    return Outcome(calls, [first.text, second.text], reasons, pieces)


@halved("protocol, streamed, kind", REASONS, [True, False], KINDS)
def test_langchain(place, models, protocol, streamed, kind):
    task = place.model.task(kind)
    reason, calls, end = REASONS[protocol]
    place.model.check(task, loop(models[protocol], streamed, task, reason), calls=calls, end=end)
