"""vLLM: one tool parser and one reasoning parser, both named `streamtool`, for every format.

    vllm serve … --enable-auto-tool-choice --tool-parser-plugin FILE --tool-call-parser streamtool
                 --reasoning-parser-plugin FILE --reasoning-parser streamtool

FILE is this file; `streamtool plugin vllm` prints its path. vLLM imports it under its own name, so it must not be
called `vllm`.

vLLM tells a parser that the text is over if `engine_based_streaming` is set (`finish_streaming`). Versions that do not
know that are told the end by the token: the last one of a reply that ends by itself. It also says whether the model has
stopped by itself, which vLLM does not.

The reasoning parser is asked until reasoning is over; what follows goes to the tool parser, which sends reasoning too
if more of it comes.
"""

from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any

from vllm.reasoning import ReasoningParser, ReasoningParserManager

from statemachine import Event, Parser, tools_of
from streamtool.adapters.deltas import OpenAIDeltas, joined, message_of, openai_deltas
from streamtool.adapters.reasoning import CLOSERS, Parted, ReasoningReader
from streamtool.adapters.sent_calls import SentCalls
from streamtool.generation_prompt import last_opener

Tokens = Sequence[int]
NEAR = 32
"""Tokens at the end of a prompt in which an opener or a closer of reasoning is looked for."""


def found(name: str, *places: str) -> Any:
    """What has this name in the first of these modules; versions of vLLM differ in where they keep it.

    Raises:
        ImportError: none of them has it.

    """
    for place in places:
        try:
            return getattr(import_module(place), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"this version of vLLM has no {name}: {', '.join(places)}")


PARSERS = ("vllm.tool_parsers", "vllm.entrypoints.openai.tool_parsers")
PROTOCOLS = (
    "vllm.entrypoints.generate.base.protocol",
    "vllm.entrypoints.openai.engine.protocol",
    "vllm.entrypoints.openai.protocol",
)
ToolParser = found("ToolParser", *PARSERS)
ToolParserManager = found("ToolParserManager", *PARSERS)
DeltaMessage = found("DeltaMessage", *PROTOCOLS)
ExtractedToolCallInformation = found("ExtractedToolCallInformation", *PROTOCOLS)
REASONING = "reasoning" if "reasoning" in DeltaMessage.model_fields else "reasoning_content"


def keep_special_tokens(request: Any) -> Any:
    """The request with special tokens in its text: many markers are some."""
    request.skip_special_tokens = False
    return request


class StreamtoolToolParser(ToolParser):  # type: ignore[misc, valid-type]  # vLLM has no types here
    """Reads the calls of one reply."""

    supports_required_and_named = False
    engine_based_streaming = True
    _deltas: OpenAIDeltas | None = None
    _ended_by: int | None = None
    """The last token."""

    def adjust_request(self, request: Any) -> Any:
        """The request as the engine gets it."""
        request = super().adjust_request(request)
        return keep_special_tokens(request) if request.tools and request.tool_choice != "none" else request

    def extract_tool_calls(self, model_output: str, request: Any) -> Any:
        """The calls of a whole reply, and its text."""
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
        """What this piece of a reply brings; None: nothing yet."""
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
        """What was held back; vLLM calls it when the text is over."""
        if self._deltas is None:
            return None
        stopped = self._ended_by in getattr(self.model_tokenizer, "all_special_ids", ())
        return self._message(self._reply.close(None if stopped else "length"))

    @property
    def _end_of_text(self) -> int | None:
        return getattr(self.model_tokenizer, "eos_token_id", None)

    def _parser(self, request: Any) -> Parser:
        """A parser of the offered tools, as the server or, before vLLM 0.11, the request has them."""
        tools = getattr(self, "tools", None) or request.tools or ()
        named = [function for tool in tools if hasattr(function := getattr(tool, "function", tool), "name")]
        return Parser(tools_of(named))

    def _message(self, events: list[Event]) -> Any:
        self._sent.note(events)
        message = joined(self._deltas.deltas(events)) if self._deltas is not None else {}
        return DeltaMessage(**message) if message else None


class StreamtoolReasoningParser(ReasoningParser):  # type: ignore[misc]  # vLLM has no types here
    """Parts the reasoning of one reply from the rest."""

    engine_based_streaming = True
    _reader: ReasoningReader | None = None
    _prefix = ""

    def adjust_request(self, request: Any) -> Any:
        """The request as the engine gets it."""
        return keep_special_tokens(request)

    def set_prompt_token_ids(self, prompt_token_ids: Tokens) -> None:
        """Whether the prompt has opened reasoning."""
        self._prefix = last_opener(self._end_of(prompt_token_ids, NEAR))

    adjust_initial_state_from_prompt = set_prompt_token_ids

    def is_reasoning_end(self, input_ids: Tokens) -> bool:
        """Whether a prompt ends behind reasoning that it has closed: the model is not to think."""
        return self._end_of(input_ids, NEAR).rstrip().endswith(CLOSERS)

    def is_reasoning_end_streaming(self, input_ids: Tokens, delta_ids: Iterable[int]) -> bool:
        """Whether reasoning has ended in these last tokens; closers may take several."""
        text = self._end_of(input_ids, len(list(delta_ids)) + NEAR // 4)
        return any(closer in text for closer in CLOSERS)

    def has_engine_confirmed_reasoning_end(self) -> bool:
        """Whether what follows is for the tool parser."""
        return self._reader is not None and self._reader.over

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """The tokens of a piece in which reasoning has ended: nobody asks which are which."""
        return input_ids

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        """Reasoning, and the rest, of a whole reply."""
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
        """What this piece of a reply brings; None: nothing yet."""
        if self._reader is None:
            self._reader = ReasoningReader(self._prefix)
        return self._message(self._reader.feed(delta_text))

    def finish_streaming(self) -> Any:
        """What was held back when reasoning, or the reply, was over."""
        return None if self._reader is None else self._message(self._reader.close())

    def _message(self, parted: Parted) -> Any:
        fields = {key: text for key, text in ((REASONING, parted.reasoning), ("content", parted.rest)) if text}
        return DeltaMessage(**fields) if fields else None

    def _end_of(self, tokens: Tokens, count: int) -> str:
        decode: Callable[[list[int]], str] = self.model_tokenizer.decode
        return decode(list(tokens[-count:]))


ToolParserManager.register_module("streamtool", module=StreamtoolToolParser)
ReasoningParserManager.register_module("streamtool", module=StreamtoolReasoningParser)
