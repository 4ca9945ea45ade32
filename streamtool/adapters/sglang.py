"""SGLang: a tool call detector and a reasoning detector, both named `streamtool`, for every format.

    sglang serve … --tool-call-parser streamtool --reasoning-parser streamtool

SGLang calls `register` itself, through an entry point in the `sglang.srt.plugins` group. In versions without plugins,
import this module before SGLang parses its arguments.

SGLang reports the end of the text (`finish`), but not the finish reason. The result of a tool call detector has no
field for reasoning, so any reasoning that the reasoning detector did not remove is omitted.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from sglang.srt.function_call.base_format_detector import BaseFormatDetector
from sglang.srt.function_call.core_types import StreamingParseResult, StructureInfo, ToolCallItem
from sglang.srt.function_call.function_call_parser import FunctionCallParser
from sglang.srt.parser.reasoning_parser import BaseReasoningFormatDetector, ReasoningParser
from sglang.srt.parser.reasoning_parser import StreamingParseResult as ReasoningParseResult

from statemachine import ArgumentsDelta, CallStart, Event, Parser, TextDelta, parse, tools_of
from streamtool.adapters.reasoning import ReasoningReader, SplitText
from streamtool.adapters.sent_calls import SentCalls

NAME = "streamtool"
OPEN, CLOSE = "<tool_call>", "</tool_call>"
"""Markers of the format that SGLang's grammar uses when the model must call a tool."""


class StreamtoolDetector(BaseFormatDetector):  # type: ignore[misc]  # the base class is untyped
    """Reads the calls in one reply."""

    def __init__(self) -> None:
        super().__init__()
        self._parser: Parser | None = None
        self._sent = SentCalls(self.prev_tool_call_arr, self.streamed_args_for_tool)

    def has_tool_call(self, text: str) -> bool:
        """Return True, so that every complete reply is parsed. The tools are known only in `detect_and_parse`."""
        return True

    def detect_and_parse(self, text: str, tools: list[Any]) -> Any:
        """Return the calls and the text of a complete reply. `tool_index` is the tool's position in the request."""
        schemas = schemas_of(tools)
        places = {name: place for place, name in enumerate(schemas)}
        visible, calls = parse(text, schemas)
        items = [ToolCallItem(tool_index=places[c.name], name=c.name, parameters=c.arguments) for c in calls]
        return StreamingParseResult(normal_text=visible, calls=items)

    def parse_streaming_increment(self, new_text: str, tools: list[Any]) -> Any:
        """Return the result for this piece of a reply. `tool_index` is the number of the call."""
        if self._parser is None:
            self._parser = Parser(schemas_of(tools))
        return self._result(self._parser.feed(new_text))

    def finish(self, tools: list[Any]) -> Any:
        """Return the result for the text that was still buffered."""
        return self._result([] if self._parser is None else self._parser.close())

    def structure_info(self) -> Callable[[str], Any]:
        """Return a function that maps a tool's name to the text that SGLang's grammar writes around a call's
        arguments.
        """

        def around(name: str) -> Any:
            begin = f'{OPEN}\n{{"name": {json.dumps(name)}, "arguments": '
            return StructureInfo(begin=begin, end=f"}}\n{CLOSE}", trigger=OPEN)

        return around

    def _result(self, events: Iterable[Event]) -> Any:
        events = list(events)
        self._sent.note(events)
        items: list[Any] = []
        for event in events:
            match event:
                case CallStart(index=index, name=name):
                    items.append(ToolCallItem(tool_index=index, name=name, parameters=""))
                case ArgumentsDelta(index=index, text=text):
                    items.append(ToolCallItem(tool_index=index, parameters=text))
                case _:
                    pass
        visible = "".join(event.text for event in events if isinstance(event, TextDelta))
        return StreamingParseResult(normal_text=visible, calls=items)


class StreamtoolReasoningDetector(BaseReasoningFormatDetector):  # type: ignore[misc]  # the base class is untyped
    """Separates the reasoning in one reply from its other text. The markers are for SGLang's grammar."""

    def __init__(self, **options: Any) -> None:
        super().__init__("<think>", "</think>", **options)
        self._reader = ReasoningReader(self.think_start_token if self._in_reasoning else "")

    def detect_and_parse(self, text: str) -> Any:
        """Split a complete reply into reasoning and other text."""
        return self._part(self._reader.read(text))

    def parse_streaming_increment(self, new_text: str) -> Any:
        """Split this piece of a reply into reasoning and other text."""
        return self._part(self._reader.feed(new_text))

    def finish(self) -> Any:
        """Return the text that was still buffered, split into reasoning and other text."""
        return self._part(self._reader.close())

    def _part(self, parted: SplitText) -> Any:
        return ReasoningParseResult(normal_text=parted.rest, reasoning_text=parted.reasoning)


def schemas_of(tools: Iterable[Any]) -> dict[str, Any]:
    """Return the schemas of a request's tools, by name."""
    return dict(tools_of([tool.function for tool in tools]) or {})


def register() -> None:
    """Register both detectors in SGLang's tables."""
    FunctionCallParser.ToolCallParserEnum[NAME] = StreamtoolDetector
    ReasoningParser.DetectorMap[NAME] = StreamtoolReasoningDetector


register()
