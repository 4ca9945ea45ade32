"""Agents of Python libraries: `python_agents.py LIBRARY PROTOCOL STREAMED TASK` lets a shell tool work on a task.

`STREAMTOOL_URL` is the URL of the proxy.
"""

import asyncio
import os
import subprocess
import sys
from typing import Any

URL = os.environ["STREAMTOOL_URL"]
MODEL = "qwen3-coder"


def shell(command: str = "") -> str:
    """Run a shell command."""
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=False).stdout or "done"


def langgraph_model(protocol: str, streamed: bool) -> Any:
    """Return LangChain's model of the protocol."""
    if protocol == "messages":
        from langchain_anthropic import ChatAnthropic

        return ChatAnthropic(model_name=MODEL, base_url=URL, api_key="none", streaming=streamed)
    from langchain_openai import ChatOpenAI

    responses = protocol == "responses"
    return ChatOpenAI(
        model=MODEL, base_url=f"{URL}/v1", api_key="none", streaming=streamed, use_responses_api=responses
    )


async def langgraph(protocol: str, streamed: bool, task: str) -> str:
    """Return the answer of LangGraph's agent."""
    from langchain.agents import create_agent

    agent: Any = create_agent(langgraph_model(protocol, streamed), [shell])
    ask: Any = {"messages": [("user", task)]}
    return str((await agent.ainvoke(ask))["messages"][-1].content)


async def openai_agents(protocol: str, streamed: bool, task: str) -> str:
    """Return the answer of the OpenAI Agents SDK."""
    from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, RunConfig, Runner, function_tool
    from openai import AsyncOpenAI

    kind: Any = OpenAIChatCompletionsModel if protocol == "chat" else OpenAIResponsesModel
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key="none")
    agent = Agent("helper", model=kind(MODEL, client), tools=[function_tool(shell)])
    quiet = RunConfig(tracing_disabled=True)
    if not streamed:
        return str((await Runner.run(agent, task, run_config=quiet)).final_output)
    run = Runner.run_streamed(agent, task, run_config=quiet)
    async for _ in run.stream_events():
        pass
    return str(run.final_output)


if __name__ == "__main__":
    library, spoken, mode, asked = sys.argv[1:]
    run_library = langgraph if library == "langgraph" else openai_agents
    print(asyncio.run(run_library(spoken, mode == "streamed", asked)))
