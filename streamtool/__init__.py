"""Streamed tool calls for language models that only write text: parser, ASGI middleware, reverse proxy, transport,
agent.

    from streamtool import Parser, ToolMiddleware

Each public name is loaded from its home module on first use, so a program that uses only the parser does not load the
HTTP code. `docs/design.md` has a diagram of the layers, from the parser (`statemachine`) up to the command line.

The parser's import name, `statemachine`, is also used by the distribution python-statemachine. If both were installed,
they would share one folder, so the import fails with an explanation if it finds the other package.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_SENTENCE = (
    "streamtool needs its own package `statemachine`, but the package installed under this name{place} belongs to "
    "another distribution (python-statemachine uses the same import name). Install only one of the two in an "
    "environment, then reinstall streamtool."
)
_MARK = "streamtool.statemachine/1"

try:
    import statemachine
except ImportError as error:  # files of both distributions are mixed in one folder
    raise ImportError(_SENTENCE.format(place="")) from error

if getattr(statemachine, "STREAMTOOL", None) != _MARK:
    raise ImportError(_SENTENCE.format(place=f" ({getattr(statemachine, '__file__', None)})"))

if TYPE_CHECKING:
    from statemachine import (
        FORMATS,
        ArgumentsDelta,
        Call,
        CallEnd,
        CallStart,
        Discarded,
        Event,
        Limits,
        Parser,
        ReasoningDelta,
        TextDelta,
        parse,
        tools_of,
        write,
    )
    from streamtool.agent import Agent, McpServer
    from streamtool.core.errors import AgentError, RequestError, SettingsError, StreamtoolError, UpstreamError
    from streamtool.exchange.record import Record
    from streamtool.middleware import ToolMiddleware
    from streamtool.proxy import Proxy
    from streamtool.settings import LimitSettings, Settings
    from streamtool.transport import SyncToolTransport, ToolTransport
    from streamtool.transport.wrap import wrap

    __version__: str

HOMES = {
    "Call": "statemachine",
    "FORMATS": "statemachine",
    "Parser": "statemachine",
    "parse": "statemachine",
    "ArgumentsDelta": "statemachine",
    "CallEnd": "statemachine",
    "CallStart": "statemachine",
    "Discarded": "statemachine",
    "Event": "statemachine",
    "ReasoningDelta": "statemachine",
    "TextDelta": "statemachine",
    "tools_of": "statemachine",
    "write": "statemachine",
    "Agent": "streamtool.agent",
    "McpServer": "streamtool.agent",
    "AgentError": "streamtool.core.errors",
    "RequestError": "streamtool.core.errors",
    "SettingsError": "streamtool.core.errors",
    "StreamtoolError": "streamtool.core.errors",
    "UpstreamError": "streamtool.core.errors",
    "Record": "streamtool.exchange.record",
    "ToolMiddleware": "streamtool.middleware",
    "Proxy": "streamtool.proxy",
    "LimitSettings": "streamtool.settings",
    "Limits": "statemachine",
    "Settings": "streamtool.settings",
    "SyncToolTransport": "streamtool.transport",
    "ToolTransport": "streamtool.transport",
    "wrap": "streamtool.transport.wrap",
}
"""The home module of each public name."""

__all__ = [
    "FORMATS",
    "Agent",
    "AgentError",
    "ArgumentsDelta",
    "Call",
    "CallEnd",
    "CallStart",
    "Discarded",
    "Event",
    "LimitSettings",
    "Limits",
    "McpServer",
    "Parser",
    "Proxy",
    "ReasoningDelta",
    "Record",
    "RequestError",
    "Settings",
    "SettingsError",
    "StreamtoolError",
    "SyncToolTransport",
    "TextDelta",
    "ToolMiddleware",
    "ToolTransport",
    "UpstreamError",
    "parse",
    "tools_of",
    "wrap",
    "write",
]


def __getattr__(name: str) -> Any:
    """Return a public name from its home module; `__version__` comes from the installed distribution."""
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  reads files, and is rarely needed

        try:
            return version("streamtool")
        except PackageNotFoundError:  # run from a source folder, without being installed
            return "unknown"
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, including those not loaded yet."""
    return sorted({*globals(), *__all__, "__version__"})
