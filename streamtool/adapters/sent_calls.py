"""Records sent calls in the two lists that vLLM and SGLang read when a reply ends.

`prev_tool_call_arr` contains the parsed arguments and `streamed_args_for_tool` the arguments that were sent. At the end
of a reply, the engines send any parsed arguments that have not been sent yet. Here, there are never any, because each
piece of the arguments is sent as it is parsed. Both lists are therefore updated only when a call ends, which avoids
copying a long call for each of its pieces.
"""

from collections.abc import Iterable
from typing import Any

from attrs import define, field

from statemachine import ArgumentsDelta, CallEnd, CallStart, Event


@define(eq=False)
class SentCalls:
    """Records calls in the engine's two lists."""

    _parsed: list[dict[str, Any]]
    _sent: list[str]
    _pieces: list[str] = field(factory=list, init=False)

    def note(self, events: Iterable[Event]) -> None:
        """Record the calls in these events."""
        for event in events:
            match event:
                case CallStart(name=name):
                    self._parsed.append({"name": name, "arguments": ""})
                    self._sent.append("")
                case ArgumentsDelta(text=text):
                    self._pieces.append(text)
                case CallEnd():
                    arguments = "".join(self._pieces)
                    self._pieces.clear()
                    self._parsed[-1]["arguments"] = self._sent[-1] = arguments
                case _:
                    pass
