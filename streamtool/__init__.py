"""Streamed tool calls for language models that only write text: parser, ASGI middleware, reverse proxy, transport,
agent.

    from streamtool import Parser, ToolMiddleware

Each name below has one home module and is loaded from there at its first use, so that a program which only parses does
not pay for HTTP. The layers, from the parser (`statemachine`) up to the command line, are drawn in `docs/design.md`.

The parser's import name, `statemachine`, is also that of the distribution python-statemachine. Both would be installed
into one folder, so the import ends here, with a sentence, when it finds anything but ours.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

_SENTENCE = (
    "streamtool needs its own package `statemachine`, but what is installed under this name{place} belongs to another "
    "distribution (python-statemachine has the same import name). Install only one of the two in an environment, then "
    "reinstall streamtool."
)
_MARK = "streamtool.statemachine/1"

try:
    import statemachine
except ImportError as error:  # a folder in which two distributions are mixed
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
    from streamtool.errors import AgentError, RequestError, SettingsError, StreamtoolError, UpstreamError
    from streamtool.exchange import Record
    from streamtool.http.middleware import ToolMiddleware
    from streamtool.http.transport import SyncToolTransport, ToolTransport
    from streamtool.http.wrap import wrap
    from streamtool.proxy import Proxy
    from streamtool.settings import LimitSettings, Settings

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
    "AgentError": "streamtool.errors",
    "RequestError": "streamtool.errors",
    "SettingsError": "streamtool.errors",
    "StreamtoolError": "streamtool.errors",
    "UpstreamError": "streamtool.errors",
    "Record": "streamtool.exchange",
    "ToolMiddleware": "streamtool.http.middleware",
    "Proxy": "streamtool.proxy",
    "LimitSettings": "streamtool.settings",
    "Limits": "statemachine",
    "Settings": "streamtool.settings",
    "SyncToolTransport": "streamtool.http.transport",
    "ToolTransport": "streamtool.http.transport",
    "wrap": "streamtool.http.wrap",
}
"""Public name -> the module that defines it."""

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
    """A public name, from its home; `__version__` from the installed distribution."""
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  reads files; most never ask

        try:
            return version("streamtool")
        except PackageNotFoundError:  # used from a folder, not installed
            return "unknown"
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__, "__version__"})
