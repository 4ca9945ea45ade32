"""The calls of a reply in the two lists into which vLLM and SGLang look when it ends.

`prev_tool_call_arr` holds what was parsed and `streamed_args_for_tool` what was sent. The engines send the difference
at the end. There is none: each piece of arguments is sent as it is parsed. So both lists receive the arguments when the
call is over, and a long call is not copied with each of its pieces.
"""

from collections.abc import Iterable
from typing import Any

from statemachine import ArgumentsDelta, CallEnd, CallStart, Event


class SentCalls:
    """Keeps both lists."""

    __slots__ = ("_parsed", "_pieces", "_sent")

    def __init__(self, parsed: list[dict[str, Any]], sent: list[str]) -> None:
        self._parsed = parsed
        self._sent = sent
        self._pieces: list[str] = []

    def note(self, events: Iterable[Event]) -> None:
        """Enters what these events say of calls."""
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
