"""Names of tools on their way to an upstream that takes native tools, and back.

A model that reads its tools as text may read any name. Native tools have names of letters, digits, `_` and `-`, 64 at
most, so there other names are replaced (`kom.memory.v1.search` by `kom_memory_v1_search`), each by one of its own, and
put back in what comes.
Sources: the references of Chat Completions (`function.name`) and of Messages (`tools[].name`).
"""

import re
from collections.abc import Iterable
from typing import Final

from attrs import evolve

from streamtool.conversation import Message, Tool

LONGEST: Final = 64
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_-]")


class Names:
    """The names of one agent's tools. Without `restricted` every name stays what it is."""

    __slots__ = ("_back", "_out")

    def __init__(self, names: Iterable[str], *, restricted: bool) -> None:
        self._out: dict[str, str] = {}
        self._back: dict[str, str] = {}
        listed = list(names) if restricted else []
        taken = {name for name in listed if _legal(name) == name}
        for name in listed:
            legal = _legal(name)
            if legal == name:
                continue
            number = 1
            while legal in taken:
                number += 1
                legal = f"{_legal(name)[: LONGEST - len(str(number)) - 1]}_{number}"
            taken.add(legal)
            self._out[name] = legal
            self._back[legal] = name

    def offered(self, tool: Tool) -> Tool:
        """The tool under the name by which the upstream knows it."""
        return evolve(tool, name=self._out[tool.name]) if tool.name in self._out else tool

    def out(self, message: Message) -> Message:
        """A message with the upstream's names; the same object if there is nothing to do."""
        if not any(call.name in self._out for call in message.calls):
            return message
        calls = (evolve(call, name=self._out.get(call.name, call.name)) for call in message.calls)
        return evolve(message, calls=tuple(calls), raw=())

    def back(self, name: str) -> str:
        """The name by which everybody else knows a tool."""
        return self._back.get(name, name)


def _legal(name: str) -> str:
    return _FOREIGN.sub("_", name)[:LONGEST] or "_"
