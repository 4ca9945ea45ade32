"""SGLang: a detector of calls and one of reasoning, both named `streamtool`, for every format.

    sglang serve … --tool-call-parser streamtool --reasoning-parser streamtool

SGLang calls `register` itself: it is an entry point of `sglang.srt.plugins`. Versions without plugins need one import
of this module before the arguments are read.

SGLang says when the text is over (`finish`), but not why. A detector has no place for reasoning; what the detector of
reasoning has not taken out is left out.
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
from streamtool.adapters.reasoning import Parted, ReasoningReader
from streamtool.adapters.sent_calls import SentCalls

NAME = "streamtool"
OPEN, CLOSE = "<tool_call>", "</tool_call>"
"""The format to which SGLang's grammar holds a model that has to call."""


class StreamtoolDetector(BaseFormatDetector):  # type: ignore[misc]  # SGLang has no types here
    """Reads the calls of one reply."""

    def __init__(self) -> None:
        super().__init__()
        self._parser: Parser | None = None
        self._sent = SentCalls(self.prev_tool_call_arr, self.streamed_args_for_tool)

    def has_tool_call(self, text: str) -> bool:
        """Whether a whole reply is to be parsed: only `detect_and_parse` is told the tools, so each is."""
        return True

    def detect_and_parse(self, text: str, tools: list[Any]) -> Any:
        """The calls of a whole reply, and its text. `tool_index` is the place of the tool in the request."""
        schemas = offered(tools)
        places = {name: place for place, name in enumerate(schemas)}
        visible, calls = parse(text, schemas)
        items = [ToolCallItem(tool_index=places[c.name], name=c.name, parameters=c.arguments) for c in calls]
        return StreamingParseResult(normal_text=visible, calls=items)

    def parse_streaming_increment(self, new_text: str, tools: list[Any]) -> Any:
        """What this piece of a reply brings. `tool_index` is the number of the call."""
        if self._parser is None:
            self._parser = Parser(offered(tools))
        return self._result(self._parser.feed(new_text))

    def finish(self, tools: list[Any]) -> Any:
        """What was held back."""
        return self._result([] if self._parser is None else self._parser.close())

    def structure_info(self) -> Callable[[str], Any]:
        """What stands around the arguments of a call to which SGLang's grammar holds the model."""

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


class StreamtoolReasoningDetector(BaseReasoningFormatDetector):  # type: ignore[misc]  # SGLang has no types here
    """Parts the reasoning of one reply from the rest. The markers are for SGLang's grammar."""

    def __init__(self, **options: Any) -> None:
        super().__init__("<think>", "</think>", **options)
        self._reader = ReasoningReader(self.think_start_token if self._in_reasoning else "")

    def detect_and_parse(self, text: str) -> Any:
        """Reasoning, and the rest, of a whole reply."""
        return self._part(self._reader.read(text))

    def parse_streaming_increment(self, new_text: str) -> Any:
        """What this piece of a reply brings."""
        return self._part(self._reader.feed(new_text))

    def finish(self) -> Any:
        """What was held back."""
        return self._part(self._reader.close())

    def _part(self, parted: Parted) -> Any:
        return ReasoningParseResult(normal_text=parted.rest, reasoning_text=parted.reasoning)


def offered(tools: Iterable[Any]) -> dict[str, Any]:
    """The schemas of a request's tools, by name."""
    return dict(tools_of([tool.function for tool in tools]) or {})


def register() -> None:
    """Enters both into SGLang's tables."""
    FunctionCallParser.ToolCallParserEnum[NAME] = StreamtoolDetector
    ReasoningParser.DetectorMap[NAME] = StreamtoolReasoningDetector


register()
