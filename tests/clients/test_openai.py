"""The official openai client, with Chat Completions and Responses."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from support.clients import KINDS, TIMEOUT, Outcome, Task

ways = pytest.mark.parametrize("way", ["streamed", "whole", "helper"])
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def client(place: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{place.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT) as client:
        yield client


# --- Chat Completions ------------------------------------------------------------------------------------------------


def chat_turn(client: openai.OpenAI, way: str, **request: Any) -> tuple[dict[str, Any], str | None, int]:
    """Return the message, the finish reason, and the number of argument deltas (2 if the reply was not streamed)."""
    if way == "whole":
        choice = client.chat.completions.create(**request).choices[0]
        return choice.message.model_dump(exclude_none=True), choice.finish_reason, 2
    if way == "helper":
        with client.chat.completions.stream(**request) as stream:
            pieces = sum(event.type == "tool_calls.function.arguments.delta" for event in stream)
            choice = stream.get_final_completion().choices[0]
        assert choice.message.role == "assistant"
        return choice.message.model_dump(exclude_none=True), choice.finish_reason, pieces
    content, reason, pieces = "", None, 0
    calls: list[dict[str, Any]] = []
    for chunk in client.chat.completions.create(stream=True, **request):
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for part in choice.delta.tool_calls or ():
            if part.index == len(calls):
                calls.append({"id": part.id, "type": part.type, "function": {"name": part.function.name}})
            calls[part.index]["function"].setdefault("arguments", "")
            calls[part.index]["function"]["arguments"] += part.function.arguments
            pieces += 1
    return {"role": "assistant", "content": content} | ({"tool_calls": calls} if calls else {}), reason, pieces


def chat_loop(client: openai.OpenAI, way: str, task: Task) -> Outcome:
    request = {
        "model": task.model,
        "tools": [
            {
                "type": "function",
                "function": {"name": offer.name, "description": offer.description, "parameters": offer.parameters},
            }
            for offer in task.offers
        ],
    }
    messages: list[Any] = [
        {"role": "system", "content": task.system},
        {"role": "user", "content": task.question},
    ]
    first, reason, pieces = chat_turn(client, way, messages=messages, **request)
    calls = [(c["id"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in first["tool_calls"]]
    results = [{"role": "tool", "tool_call_id": id, "content": task.result(name, given)} for id, name, given in calls]
    second, end, _ = chat_turn(client, way, messages=[*messages, first, *results], **request)
    assert "tool_calls" not in second
    return Outcome(calls, [first.get("content"), second["content"]], [reason, end], pieces)


@kinds
@ways
def test_chat(place, client, way, kind):
    task = place.model.task(kind)
    place.model.check(task, chat_loop(client, way, task), calls="tool_calls", end="stop")


# --- Responses -------------------------------------------------------------------------------------------------------


def response_of(client: openai.OpenAI, way: str, **request: Any) -> tuple[Any, int]:
    """Return the response, and the number of argument deltas (2 if the reply was not streamed)."""
    if way == "whole":
        return client.responses.create(**request), 2
    if way == "helper":
        with client.responses.stream(**request) as stream:
            pieces = sum(event.type == "response.function_call_arguments.delta" for event in stream)
            return stream.get_final_response(), pieces
    events = list(client.responses.create(stream=True, **request))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == events[-1].response.output
    given = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(given) == "".join(item.arguments for item in done if item.type == "function_call")
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == events[-1].response.output_text
    return events[-1].response, len(given)


def responses_loop(client: openai.OpenAI, way: str, task: Task) -> Outcome:
    request: dict[str, Any] = {
        "model": task.model,
        "instructions": task.system,
        "tools": [
            {
                "type": "function", "name": offer.name, "description": offer.description,
                "parameters": offer.parameters, "strict": False,
            }
            for offer in task.offers
        ],
    }  # fmt: skip
    asked: list[Any] = [{"role": "user", "content": task.question}]
    first, pieces = response_of(client, way, input=asked, **request)
    said = ["message"] if task.opening else []
    assert [item.type for item in first.output] == [*said, *("function_call" for _ in task.calls)]
    found = [item for item in first.output if item.type == "function_call"]
    assert not {item.id for item in found} & {item.call_id for item in found}
    calls = [(item.call_id, item.name, json.loads(item.arguments)) for item in found]
    results = [
        {"type": "function_call_output", "call_id": id, "output": task.result(name, given)} for id, name, given in calls
    ]
    second, _ = response_of(client, way, input=[*asked, *first.output, *results], **request)
    assert [item.type for item in second.output] == ["message"]
    assert second.id != first.id
    assert (second.usage.input_tokens, second.usage.output_tokens) == (11, 7)
    return Outcome(calls, [first.output_text, second.output_text], [first.status, second.status], pieces)


@kinds
@ways
def test_responses(place, client, way, kind):
    task = place.model.task(kind)
    place.model.check(task, responses_loop(client, way, task), calls="completed", end="completed")
