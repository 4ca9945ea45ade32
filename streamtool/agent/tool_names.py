"""Translation of tool names for upstreams with native tools.

A model that reads its tools as text accepts any name. The name of a native tool must consist of at most 64 letters,
digits, `_` and `-`. Other names are replaced with unique valid ones (`kom.memory.v1.search` with
`kom_memory_v1_search`) and restored in replies.

Sources: the API references for Chat Completions (`function.name`) and Messages (`tools[].name`).
"""

import re
from collections.abc import Iterable
from typing import Final

from attrs import evolve

from streamtool.core.conversation import Message, Tool

MAX_LENGTH: Final = 64
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_-]")


class Names:
    """Translates the names of one agent's tools. If `restricted` is false, all names remain unchanged."""

    def __init__(self, names: Iterable[str], *, restricted: bool) -> None:
        self._out: dict[str, str] = {}
        self._back: dict[str, str] = {}
        listed = list(names) if restricted else []
        taken = {name for name in listed if _legal_name(name) == name}
        for name in listed:
            legal = _legal_name(name)
            if legal == name:
                continue
            number = 1
            while legal in taken:
                number += 1
                legal = f"{_legal_name(name)[: MAX_LENGTH - len(str(number)) - 1]}_{number}"
            taken.add(legal)
            self._out[name] = legal
            self._back[legal] = name

    def translate_tool(self, tool: Tool) -> Tool:
        """Return the tool under the name that the upstream uses."""
        return evolve(tool, name=self._out[tool.name]) if tool.name in self._out else tool

    def translate_message(self, message: Message) -> Message:
        """Return a message with the names that the upstream uses, or the same object if nothing changes."""
        if not any(call.name in self._out for call in message.calls):
            return message
        calls = (evolve(call, name=self._out.get(call.name, call.name)) for call in message.calls)
        return evolve(message, calls=tuple(calls), raw=())

    def original_name(self, name: str) -> str:
        """Return the original name of a tool."""
        return self._back.get(name, name)


def _legal_name(name: str) -> str:
    return _FOREIGN.sub("_", name)[:MAX_LENGTH] or "_"
