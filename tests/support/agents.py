"""Shared by the tests of the agent: scripted upstreams, in process and over a socket, and runs as lists."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.servers import uvicorn_server

from streamtool.agent import (
    Agent,
    Event,
    Final,
    McpServer,
    OutputDelta,
    Rejected,
    ThoughtDelta,
    ToolArgumentsDelta,
    ToolCallResult,
)
from streamtool.testing import Recorded, Script, ScriptedUpstream, text

WEATHER = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'


def get_weather(city: str) -> str:
    """Return the weather in a city."""
    return f"18 °C in {city}"


def plain(way: str = "", *, notes: Path | str = os.devnull, **options: Any) -> McpServer:
    """Return an MCP server that starts immediately, and ends or misbehaves in the given way."""
    script = str(Path(__file__).parent.parent / "agent" / "servers" / "plain.py")
    return McpServer([sys.executable, "-S", script, way], env={"NOTES": str(notes)}, **{"name": "plain", **options})


def scripted(*replies: str | Script | Callable[[Recorded], Script]) -> ScriptedUpstream:
    """Return an upstream that gives these replies in order."""
    return ScriptedUpstream(*(text(one) if isinstance(one, str) else one for one in replies))


class Switch:
    """An app that is replaced for each test, so that all tests share one server."""

    def __init__(self) -> None:
        self.app: Any = None
        self.url = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)

    def at(self, upstream: ScriptedUpstream, how: str) -> Any:
        """Return the upstream as an agent accepts it: the app itself, or a URL."""
        self.app = upstream
        return upstream if how == "app" else self.url


@contextmanager
def switched() -> Iterator[Switch]:
    """Serve the switch."""
    switch = Switch()
    with uvicorn_server(switch, lifespan="off") as server:
        switch.url = server.url
        yield switch


async def events_of(agent: Agent, messages: Any = "Go.") -> list[Event]:
    async with agent.run(messages) as run:
        return [event async for event in run]


def only(events: list[Event], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def story(events: list[Event]) -> list[tuple[str, ...]]:
    """Return the events without the deltas."""
    told: list[tuple[str, ...]] = []
    for event in events:
        match event:
            case Rejected():
                told.append(("rejected", event.why))
            case ToolCallResult():
                told.append(("result", event.name, event.text))
            case Final():
                told.append(("final", event.text))
            case OutputDelta() | ThoughtDelta() | ToolArgumentsDelta():
                pass
    return told


def last_said(upstream: ScriptedUpstream, request: int = -1) -> str:
    """Return the last message of a request."""
    return str(upstream.requests[request].json["messages"][-1]["content"])


def prompt(upstream: ScriptedUpstream, request: int = -1) -> str:
    return json.dumps(upstream.requests[request].json["messages"], ensure_ascii=False)
