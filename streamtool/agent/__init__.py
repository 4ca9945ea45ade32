"""An agent: a thin runtime that lets a model call tools, and executes them.

`agent` is what programs use; `loop` is the loop, `model_client` one request and its reply, `execution` the calls of a
reply, `functions` and `mcp_servers` the tools, `events` what a run tells.
"""

from streamtool.agent.agent import Agent, AgentRun
from streamtool.agent.events import (
    Event,
    Final,
    OutputDelta,
    Progress,
    Rejected,
    ThoughtDelta,
    ToolArgumentsDelta,
    ToolCallEnd,
    ToolCallResult,
    ToolCallStart,
    TurnStart,
    Veto,
)
from streamtool.agent.functions import FunctionTool, tool
from streamtool.agent.mcp_servers import McpServer
from streamtool.agent.tools import ExecutableTool, ToolOutput

__all__ = [
    "Agent",
    "AgentRun",
    "Event",
    "ExecutableTool",
    "Final",
    "FunctionTool",
    "McpServer",
    "OutputDelta",
    "Progress",
    "Rejected",
    "ThoughtDelta",
    "ToolArgumentsDelta",
    "ToolCallEnd",
    "ToolCallResult",
    "ToolCallStart",
    "ToolOutput",
    "TurnStart",
    "Veto",
    "tool",
]
