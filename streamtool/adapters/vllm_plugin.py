"""vLLM: a tool parser and a reasoning parser, both named `streamtool`, for every format.

    vllm serve … --enable-auto-tool-choice --tool-parser-plugin FILE --tool-call-parser streamtool
                 --reasoning-parser-plugin FILE --reasoning-parser streamtool

FILE is this file; `streamtool plugin vllm` prints its path. vLLM imports it under the file's name, so the file must not
be called `vllm`.

If a parser sets `engine_based_streaming`, vLLM notifies the parser of the end of the text (`finish_streaming`). In
versions of vLLM without this feature, the parser recognizes the end by the last token, provided that the model itself
ended the reply. That token also shows whether the model stopped on its own, which vLLM does not report.

vLLM calls the reasoning parser until the reasoning ends. It passes the text after the reasoning to the tool parser,
which also emits any further reasoning.
"""

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

from vllm.reasoning import ReasoningParser, ReasoningParserManager

from statemachine import Event, Parser, tools_of
from streamtool.adapters.deltas import OpenAIDeltas, merge_deltas, message_of, openai_deltas
from streamtool.adapters.reasoning import CLOSERS, ReasoningReader, SplitText
from streamtool.adapters.sent_calls import SentCalls
from streamtool.models.generation_prompt import last_opener

Tokens = Sequence[int]
NEAR = 32
"""Number of tokens at the end of a prompt in which to search for a reasoning opener or closer."""


def import_first(name: str, *places: str) -> Any:
    """Return the object with this name from the first of these modules that defines it. Different versions of vLLM
    define it in different modules.

    Raises:
        ImportError: none of the modules defines it.
    """
    for place in places:
        try:
            return getattr(import_module(place), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"this version of vLLM does not define {name} in any of {', '.join(places)}")


PARSERS = ("vllm.tool_parsers", "vllm.entrypoints.openai.tool_parsers")
PROTOCOLS = (
    "vllm.entrypoints.generate.base.protocol",
    "vllm.entrypoints.openai.engine.protocol",
    "vllm.entrypoints.openai.protocol",
)
ToolParser = import_first("ToolParser", *PARSERS)
ToolParserManager = import_first("ToolParserManager", *PARSERS)
DeltaMessage = import_first("DeltaMessage", *PROTOCOLS)
ExtractedToolCallInformation = import_first("ExtractedToolCallInformation", *PROTOCOLS)
REASONING = "reasoning" if "reasoning" in DeltaMessage.model_fields else "reasoning_content"


def keep_special_tokens(request: Any) -> Any:
    """Keep special tokens in the text of the reply to a request, because many markers are special tokens."""
    request.skip_special_tokens = False
    return request


class StreamtoolToolParser(ToolParser):  # type: ignore[misc, valid-type]  # the base class is untyped
    """Reads the calls in one reply."""

    supports_required_and_named = False
    engine_based_streaming = True
    _deltas: OpenAIDeltas | None = None
    _ended_by: int | None = None
    """Last token received."""

    def adjust_request(self, request: Any) -> Any:
        """Return the request to pass to the engine."""
        request = super().adjust_request(request)
        return keep_special_tokens(request) if request.tools and request.tool_choice != "none" else request

    def extract_tool_calls(self, model_output: str, request: Any) -> Any:
        """Return the calls and the text of a complete reply."""
        deltas = openai_deltas(self._parser(request))
        message = message_of([*deltas.feed(model_output), *deltas.close()])
        calls = message.get("tool_calls", [])
        return ExtractedToolCallInformation(tools_called=bool(calls), tool_calls=calls, content=message.get("content"))

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Tokens,
        current_token_ids: Tokens,
        delta_token_ids: Tokens,
        request: Any,
    ) -> Any:
        """Return the message for this piece of a reply, or None if there is nothing to send yet."""
        if self._deltas is None:
            self._reply = self._parser(request)
            self._deltas = openai_deltas(self._reply, reasoning=REASONING)
            self._sent = SentCalls(self.prev_tool_call_arr, self.streamed_args_for_tool)
        events = self._reply.feed(delta_text)
        if delta_token_ids:
            self._ended_by = delta_token_ids[-1]
            if self._ended_by == self._end_of_text and not getattr(request, "ignore_eos", False):
                events += self._reply.close()
        return self._message(events)

    def finish_streaming(self) -> Any:
        """Return the message for the text that was still buffered. vLLM calls this at the end of the text."""
        if self._deltas is None:
            return None
        stopped = self._ended_by in getattr(self.model_tokenizer, "all_special_ids", ())
        return self._message(self._reply.close(None if stopped else "length"))

    @property
    def _end_of_text(self) -> int | None:
        return getattr(self.model_tokenizer, "eos_token_id", None)

    def _parser(self, request: Any) -> Parser:
        """Return a parser for the offered tools, which vLLM passes to the tool parser or, before vLLM 0.11, with the
        request.
        """
        tools = getattr(self, "tools", None) or request.tools or ()
        named = [function for tool in tools if hasattr(function := getattr(tool, "function", tool), "name")]
        return Parser(tools_of(named))

    def _message(self, events: list[Event]) -> Any:
        self._sent.note(events)
        message = merge_deltas(self._deltas.deltas(events)) if self._deltas is not None else {}
        return DeltaMessage(**message) if message else None


class StreamtoolReasoningParser(ReasoningParser):  # type: ignore[misc]  # the base class is untyped
    """Separates the reasoning in one reply from its other text."""

    engine_based_streaming = True
    _reader: ReasoningReader | None = None
    _prefix = ""

    def adjust_request(self, request: Any) -> Any:
        """Return the request to pass to the engine."""
        return keep_special_tokens(request)

    def set_prompt_token_ids(self, prompt_token_ids: Tokens) -> None:
        """Record whether the prompt ends inside reasoning."""
        self._prefix = last_opener(self._end_of(prompt_token_ids, NEAR))

    adjust_initial_state_from_prompt = set_prompt_token_ids

    def is_reasoning_end(self, input_ids: Tokens) -> bool:
        """Return whether the prompt ends with closed reasoning, which means that the model should not think."""
        return self._end_of(input_ids, NEAR).rstrip().endswith(CLOSERS)

    def is_reasoning_end_streaming(self, input_ids: Tokens, delta_ids: Iterable[int]) -> bool:
        """Return whether reasoning has ended within the last tokens. A closer may consist of several tokens."""
        text = self._end_of(input_ids, len(list(delta_ids)) + NEAR // 4)
        return any(closer in text for closer in CLOSERS)

    def has_engine_confirmed_reasoning_end(self) -> bool:
        """Return whether all further text is for the tool parser."""
        return self._reader is not None and self._reader.ended

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """Return all tokens of the piece in which reasoning has ended. vLLM does not need to know which of them are
        reasoning.
        """
        return input_ids

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        """Return the reasoning and the other text of a complete reply."""
        parted = ReasoningReader(self._prefix).read(model_output)
        return parted.reasoning or None, parted.rest or None

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Tokens,
        current_token_ids: Tokens,
        delta_token_ids: Tokens,
    ) -> Any:
        """Return the message for this piece of a reply, or None if there is nothing to send yet."""
        if self._reader is None:
            self._reader = ReasoningReader(self._prefix)
        return self._message(self._reader.feed(delta_text))

    def finish_streaming(self) -> Any:
        """Return the message for the text that was still buffered when the reasoning, or the reply, ended."""
        return None if self._reader is None else self._message(self._reader.close())

    def _message(self, parted: SplitText) -> Any:
        fields = {key: text for key, text in ((REASONING, parted.reasoning), ("content", parted.rest)) if text}
        return DeltaMessage(**fields) if fields else None

    def _end_of(self, tokens: Tokens, count: int) -> str:
        decode: Callable[[list[int]], str] = self.model_tokenizer.decode
        return decode(list(tokens[-count:]))


ToolParserManager.register_module("streamtool", module=StreamtoolToolParser)
ReasoningParserManager.register_module("streamtool", module=StreamtoolReasoningParser)
