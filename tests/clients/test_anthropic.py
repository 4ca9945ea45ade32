"""The official anthropic client, with Messages."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.lib.tools import BetaFunctionTool
from support.clients import KINDS, TIMEOUT, Outcome, Task

ways = pytest.mark.parametrize("way", ["streamed", "whole", "helper"])
kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def client(place: Any) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=place.url, api_key="none", max_retries=0, timeout=TIMEOUT) as client:
        yield client


def together(events: Any) -> tuple[list[dict[str, Any]], str | None, int]:
    """Return the content accumulated from raw events, the stop reason, and the number of argument deltas."""
    content: list[dict[str, Any]] = []
    given: dict[int, list[str]] = {}
    reason, seen = None, []
    for event in events:
        seen.append(event.type)
        match event.type:
            case "message_start":
                assert (event.message.role, event.message.content, event.message.stop_reason) == ("assistant", [], None)
            case "content_block_start":
                assert event.index == len(content)
                content.append(event.content_block.model_dump(exclude_none=True))
            case "content_block_delta" if event.delta.type == "text_delta":
                content[event.index]["text"] += event.delta.text
            case "content_block_delta":
                assert event.delta.type == "input_json_delta"
                given.setdefault(event.index, []).append(event.delta.partial_json)
            case "message_delta":
                reason = event.delta.stop_reason
                assert event.usage.output_tokens == 7
    for index, parts in given.items():
        assert content[index]["input"] == {}
        content[index]["input"] = json.loads("".join(parts))
    assert (seen[0], seen[-1]) == ("message_start", "message_stop")
    return content, reason, max((len(parts) for parts in given.values()), default=0)


def turn(client: anthropic.Anthropic, way: str, **request: Any) -> tuple[list[Any], str | None, int]:
    """Return the content, the stop reason, and the number of argument deltas (2 if the reply was not streamed)."""
    if way == "streamed":
        return together(client.messages.create(stream=True, **request))
    if way == "whole":
        message, pieces = client.messages.create(**request), 2
    else:
        with client.messages.stream(**request) as stream:
            pieces = sum(event.type == "input_json" for event in stream)
            message = stream.get_final_message()
    assert (message.role, message.usage.output_tokens) == ("assistant", 7)
    return [block.model_dump(exclude_none=True) for block in message.content], message.stop_reason, pieces


def loop(client: anthropic.Anthropic, way: str, task: Task) -> Outcome:
    request: dict[str, Any] = {
        "model": task.model,
        "max_tokens": 1000,
        "system": task.system,
        "tools": [
            {"name": offer.name, "description": offer.description, "input_schema": offer.parameters}
            for offer in task.offers
        ],
    }
    asked = {"role": "user", "content": task.question}
    first, reason, pieces = turn(client, way, messages=[asked], **request)
    said = [block["text"] for block in first if block["type"] == "text"]
    used = first[len(said) :]
    assert len(said) == (1 if task.opening else 0)
    assert [block["type"] for block in used] == ["tool_use" for _ in task.calls]
    calls = [(block["id"], block["name"], block["input"]) for block in used]
    results = [
        {"type": "tool_result", "tool_use_id": id, "content": task.result(name, given)} for id, name, given in calls
    ]
    messages = [asked, {"role": "assistant", "content": first}, {"role": "user", "content": results}]
    second, end, _ = turn(client, way, messages=messages, **request)
    assert [block["type"] for block in second] == ["text"]
    return Outcome(calls, ["".join(said), second[0]["text"]], [reason, end], pieces)


@kinds
@ways
def test_messages(place, client, way, kind):
    task = place.model.task(kind)
    place.model.check(task, loop(client, way, task), calls="tool_use", end="end_turn")


def tool_of(task: Task, name: str, description: str, parameters: dict[str, Any]) -> Any:
    def run(**arguments: Any) -> str:
        return task.result(name, arguments)

    # the function does not declare the types of its arguments; only the schema does
    return BetaFunctionTool(run, name=name, description=description, input_schema=parameters)


def run_tools(client: anthropic.Anthropic, streamed: bool, task: Task, **options: Any) -> Outcome:
    runner: Any = client.beta.messages.tool_runner(
        model=task.model,
        max_tokens=1000,
        system=task.system,
        messages=[{"role": "user", "content": task.question}],
        tools=[tool_of(task, offer.name, offer.description, offer.parameters) for offer in task.offers],
        stream=streamed,
        max_iterations=5,
        **options,
    )
    replies = [item.get_final_message() if streamed else item for item in runner]
    calls = [(b.id, b.name, b.input) for reply in replies for b in reply.content if b.type == "tool_use"]
    texts = ["".join(b.text for b in reply.content if b.type == "text") for reply in replies]
    return Outcome(calls, texts, [reply.stop_reason for reply in replies])


@kinds
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_the_clients_own_loop(place, client, streamed, kind):
    task = place.model.task(kind)
    outcome = run_tools(client, streamed, task, thread=False)
    place.model.check(task, outcome, calls="tool_use", end="end_turn")


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
def test_the_clients_own_loop_works_with_a_server_without_threads(place, client, streamed):
    task = place.model.task("two")
    place.model.check(task, run_tools(client, streamed, task), calls="tool_use", end="end_turn")
