"""The output parser for LangChain, checked with LangChain: chunks, sums of chunks, chains, chat models."""

import json

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.language_models.fake import FakeStreamingListLLM
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage, message_chunk_to_message
from langchain_core.tools import tool
from support.engine_cases import in_pieces
from support.sweeps import each

from conformance.cases import FOLDER, all_cases
from streamtool.adapters.langchain import ToolCallParser

CASES = [case for case in all_cases(FOLDER) if not case.options and case.reason is None]
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}</tool_call>'
REPLY = f"<think>Which one?</think>Let me look. {CALL}"
MARKED = "<tool_call><function=get_weather><parameter=city>12</parameter><parameter=days>2</parameter></function></tool_call>"
anyio = pytest.mark.anyio
asyncio_only = pytest.mark.parametrize("anyio_backend", ["asyncio"])  # LangChain requires asyncio


@tool
def get_weather(city: str, days: int = 1) -> str:
    """The weather in a city."""
    return f"rain in {city} for {days}"


def merged(chunks):
    chunks = list(chunks)
    assert all(isinstance(chunk, AIMessageChunk) for chunk in chunks)
    return chunks[0] + chunks[1:]


def calls_of(message):
    return [(call["name"], call["args"]) for call in message.tool_calls]


@each("case", CASES[::3], ids=lambda case: case.id)
def test_langchain_accumulates_the_events_of_the_case(case):
    parser = ToolCallParser(case.tools)
    calls = [event for event in case.events if event["type"] == "call"]
    text = "".join(event["text"] for event in case.events if event["type"] == "text")
    streamed = merged(parser.transform(iter(in_pieces(case.text, case.id))))
    assert streamed.content == text
    assert [chunk["name"] for chunk in streamed.tool_call_chunks] == [call["name"] for call in calls]
    ids = [call["id"] for call in calls]
    for number, (chunk, call) in enumerate(zip(streamed.tool_call_chunks, calls, strict=True)):
        assert chunk["args"] == call["arguments"] or json.loads(chunk["args"]) == json.loads(call["arguments"])
        given = call["id"] if call["id"] not in ids[:number] else None  # a repeated id is replaced
        assert chunk["id"] == given if given else chunk["id"].startswith("call_")
    whole = parser.invoke(case.text)
    assert type(whole) is AIMessage and whole.content == text
    complete = [call for call in calls if call["complete"]]
    assert calls_of(whole) == [(call["name"], json.loads(call["arguments"])) for call in complete]
    cut = [(call["name"], call["arguments"]) for call in calls if not call["complete"]]
    assert [(call["name"], call["args"]) for call in whole.invalid_tool_calls] == cut


def test_a_call_is_reported_while_it_is_written():
    seen = []

    def pieces():
        for piece in ("Hm. ", '<tool_call>{"name": "get_weather", "arguments": {"city": "Pa', "ri", 's"}}</tool_call>'):
            seen.append("read")
            yield piece

    found = [
        (len(seen), chunk.content, [call["args"] for call in chunk.tool_call_chunks])
        for chunk in ToolCallParser([get_weather]).transform(pieces())
    ]
    assert found == [
        (1, "Hm. ", []),
        (2, "", [""]),
        (2, "", ['{"city": "Pa']),
        (3, "", ["ri"]),
        (4, "", ['s"}']),
        (4, "", []),
    ]


def test_a_chat_model_keeps_its_id_its_metadata_and_its_usage():
    usage = {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}
    chunks = [AIMessageChunk(content=piece, id="run-1") for piece in in_pieces(REPLY, 1)]
    chunks.append(AIMessageChunk(content="", id="run-1", response_metadata={"finish_reason": "stop"}))
    chunks.append(AIMessageChunk(content="", id="run-1", usage_metadata=usage, chunk_position="last"))
    found = list(ToolCallParser([get_weather]).transform(iter(chunks)))
    assert [chunk.chunk_position for chunk in found if chunk.chunk_position] == ["last"] and found[-1].chunk_position
    message = message_chunk_to_message(merged(found))
    assert (message.id, message.usage_metadata, message.text) == ("run-1", usage, "Let me look. ")
    assert message.response_metadata == {"finish_reason": "stop"}
    assert [block["type"] for block in message.content_blocks] == ["reasoning", "text", "tool_call"]
    assert message.content_blocks[0]["reasoning"] == "Which one?"
    assert calls_of(message) == [("get_weather", {"city": "Paris", "days": 2})]


def test_blocks_other_than_text_are_passed_on():
    image = {"type": "image", "url": "http://127.0.0.1/a.png"}
    message = AIMessage(content=[{"type": "text", "text": f"Look. {CALL}"}, image])
    found = ToolCallParser([get_weather]).invoke(message)
    assert found.content == ["Look. ", image]
    assert calls_of(found) == [("get_weather", {"city": "Paris", "days": 2})]


@pytest.mark.parametrize(
    "metadata", [{"finish_reason": "length"}, {"stop_reason": "max_tokens"}, {"done_reason": "length"}]
)
def test_a_truncated_call_is_invalid(metadata):
    cut = AIMessage(
        content=f'{CALL}<tool_call>{{"name": "get_weather", "arguments": {{"city": "Par', response_metadata=metadata
    )
    found = ToolCallParser([get_weather]).invoke(cut)
    assert calls_of(found) == [("get_weather", {"city": "Paris", "days": 2})]
    (invalid,) = found.invalid_tool_calls
    assert (invalid["name"], invalid["args"]) == ("get_weather", '{"city": "Par')
    chunk = merged(ToolCallParser([get_weather]).stream(cut))
    assert chunk.response_metadata == {**metadata, "incomplete_tool_calls": [chunk.tool_call_chunks[1]["id"]]}


@pytest.mark.parametrize(
    ("reason", "complete"), [("STOP", True), ("stop", True), ("eos_token", True), ("length", False)]
)
def test_a_missing_closer_is_implied_if_the_model_stopped_regularly(reason, complete):
    text = "<tool_call><function=get_weather><parameter=city>Paris</parameter>"
    found = ToolCallParser([get_weather]).invoke(AIMessage(text, response_metadata={"finish_reason": reason}))
    assert calls_of(found) == ([("get_weather", {"city": "Paris"})] if complete else [])
    assert len(found.invalid_tool_calls) == (not complete)


def test_the_schema_of_a_langchain_tool_gives_values_their_types():
    assert calls_of(ToolCallParser([get_weather]).invoke(MARKED)) == [("get_weather", {"city": "12", "days": 2})]
    assert calls_of(ToolCallParser([get_weather.args_schema]).invoke(MARKED)) == [
        ("get_weather", {"city": "12", "days": 2})
    ]


def test_tools_and_options_can_be_bound():
    parser = ToolCallParser()
    assert calls_of(parser.bind(tools=[get_weather]).invoke(CALL)) == [("get_weather", {"city": "Paris", "days": 2})]
    assert parser.bind(tools=["ping"]).invoke(CALL).content == CALL
    assert merged(parser.bind(formats=["invoke"]).stream(CALL)).content == CALL


def test_langchain_tools_execute_the_parsed_calls():
    message = (GenericFakeChatModel(messages=iter([AIMessage(REPLY)])) | ToolCallParser([get_weather])).invoke("Paris?")
    result = get_weather.invoke(message.tool_calls[0])
    assert isinstance(result, ToolMessage) and result.content == "rain in Paris for 2"


@anyio
@asyncio_only
async def test_chains_stream_sync_and_async(anyio_backend):
    def chain(model):
        return model | ToolCallParser([get_weather])

    chat = GenericFakeChatModel(messages=iter([AIMessage(REPLY)] * 4))
    llm = FakeStreamingListLLM(responses=[REPLY])
    asked = [HumanMessage("Paris?")]
    found = [merged(chain(model).stream(asked)) for model in (chat, llm)]
    for model in (chat, llm):
        chunks = [chunk async for chunk in chain(model).astream(asked)]
        assert sum(bool(chunk.tool_call_chunks) for chunk in chunks) > 2
        found += [merged(chunks), await chain(model).ainvoke(asked)]
    for message in found:
        assert message.text == "Let me look. "
        assert message.additional_kwargs == {"reasoning_content": "Which one?"}
        assert calls_of(message) == [("get_weather", {"city": "Paris", "days": 2})]
