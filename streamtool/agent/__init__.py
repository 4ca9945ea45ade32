"""An agent: a thin runtime that lets a model call tools, and executes them.

`agent` is what programs use; `loop` is the loop, `talk` one request and its reply, `execute` the calls of a reply,
`functions` and `servers` the tools, `events` what a run tells.
"""

from streamtool.agent.agent import Agent, Run
from streamtool.agent.events import (
    ArgumentsDelta,
    CallEnd,
    CallStart,
    Event,
    Final,
    Progress,
    ReasoningDelta,
    Rejected,
    Result,
    TextDelta,
    TurnStart,
)
from streamtool.agent.functions import FunctionTool, tool
from streamtool.agent.servers import McpServer
from streamtool.agent.tools import Answer, Tool

__all__ = [
    "Agent",
    "Answer",
    "ArgumentsDelta",
    "CallEnd",
    "CallStart",
    "Event",
    "Final",
    "FunctionTool",
    "McpServer",
    "Progress",
    "ReasoningDelta",
    "Rejected",
    "Result",
    "Run",
    "TextDelta",
    "Tool",
    "TurnStart",
    "tool",
]
