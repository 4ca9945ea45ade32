"""Output parser for LangChain that converts chunks of text to message chunks with pieces of calls.

    chain = model | ToolCallParser(tools)

`model` is any chat model or LLM that writes its calls as text. Everything else in the model's chunks (id, usage,
metadata, non-text blocks) is passed on. Reasoning is placed in `additional_kwargs["reasoning_content"]`, where
LangChain expects it.
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
"""Keys that integrations use in response metadata to report why the model stopped."""
NATURAL = {"stop", "end_turn", "stop_sequence", "eos_token", "complete", "completed", "tool_calls", "tool_use"}
"""Values of these keys, in lower case, for a model that stopped on its own."""
INCOMPLETE = "incomplete_tool_calls"
"""Key in the last chunk's metadata for the ids of calls that were cut off."""


class ToolCallParser(RunnableGenerator[Piece, AIMessage]):
    """Streams `AIMessageChunk`s. `invoke` returns an `AIMessage` whose `invalid_tool_calls` include the calls that were
    cut off.

    `tools` are LangChain tools or any tools that `Parser` accepts. `options` are options of `Parser`. `bind` can
    override any of these.
    """

    def __init__(self, tools: Tools = None, **options: Any) -> None:
        self.options = {"tools": tools, **options}
        super().__init__(self._read, self._aread, name=type(self).__name__)

    def _read(self, pieces: Iterator[Piece], **options: Any) -> Iterator[AIMessage]:
        reply = _ReplyChunks(**{**self.options, **options})
        for piece in pieces:
            yield from reply.feed(piece)
        yield from reply.close()

    async def _aread(self, pieces: AsyncIterator[Piece], **options: Any) -> AsyncIterator[AIMessage]:
        reply = _ReplyChunks(**{**self.options, **options})
        async for piece in pieces:
            for chunk in reply.feed(piece):
                yield chunk
        for chunk in reply.close():
            yield chunk

    def invoke(self, input: Piece, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:  # noqa: A002
        """Return the complete message."""
        return whole_message(super().invoke(input, config, **kwargs))

    async def ainvoke(self, input: Piece, config: RunnableConfig | None = None, **kwargs: Any) -> AIMessage:  # noqa: A002
        """Return the complete message."""
        return whole_message(await super().ainvoke(input, config, **kwargs))


def whole_message(merged: AIMessage) -> AIMessage:
    """Convert merged chunks to a message. Calls that were cut off become invalid calls, whereas LangChain would treat
    them as valid ones.
    """
    cut = merged.response_metadata.get(INCOMPLETE, ())
    written = {chunk["id"]: chunk["args"] for chunk in getattr(merged, "tool_call_chunks", ())}
    message = message_chunk_to_message(merged)
    assert isinstance(message, AIMessage)  # noqa: S101  the chunk was created from an AIMessageChunk
    calls = message.tool_calls
    message.tool_calls = [call for call in calls if call["id"] not in cut]
    message.invalid_tool_calls += [
        invalid_tool_call(name=call["name"], args=written[call["id"]], id=call["id"], error="the call is not complete")
        for call in calls
        if call["id"] in cut
    ]
    return message


class _ReplyChunks:
    """Converts the pieces of one reply to message chunks."""

    def __init__(self, tools: Tools, **options: Any) -> None:
        self._deltas = OpenAIDeltas(Parser(_plain(tools), **options), new_id=new_call_id, reasoning="reasoning_content")
        self._id: str | None = None
        self._reason: str | None = None

    def feed(self, piece: Piece) -> Iterator[AIMessageChunk]:
        """Yield the chunks for the text in a piece of the reply, and then one for the piece's other contents."""
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
        """Yield the last chunks."""
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
    """Convert LangChain tools, and classes that describe a tool, to the OpenAI format. Other tools are returned
    unchanged.
    """
    if tools is None or isinstance(tools, (str, Mapping)):
        return tools
    return [convert_to_openai_tool(tool) if isinstance(tool, (BaseTool, type)) else tool for tool in tools]


def _is_text(block: str | dict[Any, Any]) -> bool:
    return isinstance(block, str) or block.get("type") == "text"
