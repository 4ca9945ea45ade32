"""The loop of a task as a Pydantic AI agent runs it, over any of its models.

The package is imported when the loop runs: each worker collects all tests, but only one runs these.
"""

from typing import Any

from support.clients import Outcome, Task


def tool_of(task: Task, name: str, description: str, parameters: dict[str, Any]) -> Any:
    from pydantic_ai import Tool

    def run(**arguments: Any) -> str:
        return task.result(name, arguments)

    return Tool.from_schema(run, name, description, parameters)


async def loop(model: Any, task: Task, streamed: bool) -> Outcome:
    """Return the agent's view; fail if its answer is not the task's."""
    from pydantic_ai import Agent, AgentRunResultEvent
    from pydantic_ai.messages import ModelResponse, PartDeltaEvent, TextPart, ToolCallPart, ToolCallPartDelta

    tools = [tool_of(task, offer.name, offer.description, offer.parameters) for offer in task.offers]
    agent = Agent(model, tools=tools, system_prompt=task.system, retries=0)
    if streamed:
        # `run_stream` would take the text before the calls for the answer, as documented
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
