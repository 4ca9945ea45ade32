"""Agent: a thin runtime that lets a model call tools and executes the calls.

`agent` is the public interface and `loop` the loop itself. `model_client` sends one request and reads its reply,
`execution` executes the calls in a reply, `functions` and `mcp_servers` provide the tools, and `events` defines the
events of a run.
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
