"""An output parser of LangChain: chunks of text in, chunks of messages with pieces of calls out.

    chain = model | ToolCallParser(tools)

`model` is any chat model or LLM that writes its calls as text. What else its chunks carry (id, usage, metadata, blocks
that are no text) travels on. Reasoning stands in `additional_kwargs["reasoning_content"]`, where LangChain looks.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, message_chunk_to_message
from langchain_core.messages.tool import invalid_tool_call, tool_call_chunk
from langchain_core.runnables import RunnableConfig, RunnableGenerator
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from statemachine import Parser
from statemachine.tools import Tools
from streamtool.adapters.deltas import Delta, OpenAIDeltas, new_call_id

Piece = str | BaseMessage
REASONS = ("finish_reason", "stop_reason", "done_reason")
"""Where the integrations put why the model stopped, in the metadata of a response."""
NATURAL = {"stop", "end_turn", "stop_sequence", "eos_token", "complete", "completed", "tool_calls", "tool_use"}
"""What they say there, in whatever case, of a model that stopped by itself."""
INCOMPLETE = "incomplete_tool_calls"
"""Where the ids of calls that were cut stand, in the metadata of the last chunk."""


class ToolCallParser(RunnableGenerator[Piece, AIMessage]):
    """Streams `AIMessageChunk`s; `invoke` gives an `AIMessage`, whose `invalid_tool_calls` are those that were cut.

    `tools` are those of LangChain, or of `Parser`, whose options are taken as well; `bind` replaces any of them.
    """

    def __init__(self, tools: Tools = None, **options: Any) -> None:
        self.options = {"tools": tools, **options}
        super().__init__(self._read, self._aread, name=type(self).__name__)

    def _read(self, pieces: Iterator[Piece], **options: Any) -> Iterator[AIMessage]:
        reply = _Reply(**{**self.options, **options})
        for piece in pieces:
            yield from reply.feed(piece)
        yield from reply.close()

    async def _aread(self, pieces: AsyncIterator[Piece], **options: Any) -> AsyncIterator[AIMessage]:
        reply = _Reply(**{**self.options, **options})
        async for piece in pieces:
            for chunk in reply.feed(piece):
                yield chunk
        for chunk in reply.close():
            yield chunk

    def invoke(self, input: Piece, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:  # noqa: A002
        """The whole message."""
        return whole_message(super().invoke(input, config, **kwargs))

    async def ainvoke(self, input: Piece, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:  # noqa: A002
        """The whole message."""
        return whole_message(await super().ainvoke(input, config, **kwargs))


def whole_message(merged: AIMessage) -> AIMessage:
    """Merged chunks as a message: LangChain takes the beginning of a call for a call, here it is an invalid one."""
    cut = merged.response_metadata.get(INCOMPLETE, ())
    written = {chunk["id"]: chunk["args"] for chunk in getattr(merged, "tool_call_chunks", ())}
    message = message_chunk_to_message(merged)
    assert isinstance(message, AIMessage)  # noqa: S101  what a chunk of one becomes
    calls = message.tool_calls
    message.tool_calls = [call for call in calls if call["id"] not in cut]
    message.invalid_tool_calls += [
        invalid_tool_call(name=call["name"], args=written[call["id"]], id=call["id"], error="the call is not complete")
        for call in calls
        if call["id"] in cut
    ]
    return message


class _Reply:
    """The chunks of one reply."""

    def __init__(self, tools: Tools, **options: Any) -> None:
        self._deltas = OpenAIDeltas(Parser(_plain(tools), **options), new_id=new_call_id, reasoning="reasoning_content")
        self._id: str | None = None
        self._reason: str | None = None

    def feed(self, piece: Piece) -> Iterator[AIMessageChunk]:
        """What a piece of the reply brings; then what else it carries."""
        if isinstance(piece, str):
            yield from self._chunks(self._deltas.feed(piece))
            return
        chunk = piece if isinstance(piece, AIMessageChunk) else AIMessageChunk(**piece.model_dump(exclude={"type"}))
        self._id = chunk.id or self._id
        reasons = (chunk.response_metadata.get(key) for key in REASONS)
        self._reason = next((str(reason).lower() for reason in reasons if reason), self._reason)
        yield from self._chunks(self._deltas.feed(str(chunk.text)))
        blocks = [] if isinstance(chunk.content, str) else [block for block in chunk.content if not _is_text(block)]
        rest = chunk.model_copy(update={"content": blocks or "", "chunk_position": None})
        if rest != AIMessageChunk(content="", id=chunk.id):
            yield rest

    def close(self) -> Iterator[AIMessageChunk]:
        """The last chunks."""
        yield from self._chunks(self._deltas.close(None if self._reason in NATURAL else self._reason))
        cut = {INCOMPLETE: self._deltas.incomplete} if self._deltas.incomplete else {}
        yield AIMessageChunk(content="", id=self._id, chunk_position="last", response_metadata=cut)

    def _chunks(self, deltas: Iterable[Delta]) -> Iterator[AIMessageChunk]:
        for delta in deltas:
            match delta:
                case {"content": text}:
                    yield AIMessageChunk(content=text, id=self._id)
                case {"tool_calls": [entry]}:
                    name, arguments = entry["function"].get("name"), entry["function"]["arguments"]
                    made = tool_call_chunk(name=name, args=arguments, id=entry.get("id"), index=entry["index"])
                    yield AIMessageChunk(content="", id=self._id, tool_call_chunks=[made])
                case _:
                    yield AIMessageChunk(content="", id=self._id, additional_kwargs=delta)


def _plain(tools: Tools) -> Tools:
    """Tools as the parser takes them: those of LangChain, and classes that describe one, as OpenAI writes them."""
    if tools is None or isinstance(tools, (str, Mapping)):
        return tools
    return [convert_to_openai_tool(tool) if isinstance(tool, (BaseTool, type)) else tool for tool in tools]


def _is_text(block: str | dict[Any, Any]) -> bool:
    return isinstance(block, str) or block.get("type") == "text"
